"""A boot's own steps: the parts of an image, and the guest's processes in the order they need."""

import dataclasses
import platform
import sys

import pytest

from enclave_image.build import BuiltImage
from enclave_image.eif import EifParts, image_metadata, write_eif
from runtime.artifact.program import BlockTable, Program, TargetPayload, TensorSpec
from tests.e2e.boot.__main__ import main
from tests.e2e.boot.boot import Report, boot_parts, compared, running_guest
from tests.e2e.boot.machines import Parts, Wiring
from tests.e2e.boot.tools import MICROVM, BootError, Tools
from tests.support.compile_service import short_folder

PATIENCE_S = 60.0
# What the programs do as far as this side sees it: the device makes its socket, and the emulator
# connects to it and writes the guest's console.
DEVICE = """
import os, socket, sys, time
words = dict(word.split("=") for word in sys.argv[2].split(","))
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(words["socket"] + "-")
listener.listen()
os.rename(words["socket"] + "-", words["socket"])
time.sleep(1000)
"""
QEMU = """
import socket, sys, time
path = sys.argv[sys.argv.index("-chardev") + 1].partition("path=")[2]
socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect(path)
print("Run /init as init process", flush=True)
{then}
time.sleep(1000)
"""
LISTENS = """print('{"event": "listening", "address": "vsock:any:5005"}', flush=True)"""


def program(path, text):
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


@pytest.fixture
def folder():
    with short_folder() as path:
        yield path


def guest(folder, *, device=DEVICE, then=LISTENS, timeout_s=PATIENCE_S):
    parts = Parts(eif=folder / "e", kernel=folder / "k", initrd=folder / "i", cmdline="quiet")
    tools = Tools(
        qemu=program(folder / "qemu", QEMU.replace("{then}", then)),
        machine=MICROVM,
        device=program(folder / "vd", device),
        kernel=folder / "k",
        pins=folder / "p",
    )
    said = []
    return running_guest(
        tools, Wiring(folder), parts, memory_mib=64, timeout_s=timeout_s, say=said.append
    )


def test_a_guest_is_up_once_its_service_says_so(folder):
    with guest(folder) as beat:
        assert (folder / "console").read_text().splitlines()[-1].startswith('{"event"')
        assert not beat.heard.is_set()


def test_a_guest_that_panics_is_told_with_its_last_lines(folder):
    panics = "print('Kernel panic: no init', flush=True); sys.exit(1)"
    with (
        pytest.raises(BootError, match=r"boot: QEMU ended with exit code 1(.|\n)*no init"),
        guest(folder, then=panics),
    ):
        pass


def test_a_guest_that_does_not_come_up_in_time_is_told(folder):
    with (
        pytest.raises(BootError, match="boot: not within 0 s"),
        guest(folder, then="", timeout_s=0),
    ):
        pass


def test_a_device_that_ends_is_told_before_qemu_starts(folder):
    ends = "import sys; sys.exit('no such option: --vm')"
    with (
        pytest.raises(BootError, match=r"vsock device ended with exit code 1(.|\n)*no such option"),
        guest(folder, device=ends),
    ):
        pass
    assert not (folder / "console").exists()


def test_the_parts_are_the_images_own_bytes(tmp_path):
    eif = tmp_path / "x.eif"
    ramdisks = [b"first" * 9, b"second" * 400_000, b"third"]
    metadata = image_metadata(
        name="x", version="1", tool_version="1", kernel_version="6.12", custom={}
    )
    with eif.open("w+b") as file:
        pcrs = write_eif(
            file,
            EifParts(kernel=b"kernel", cmdline="quiet", ramdisks=ramdisks, metadata=metadata),
        )
    built = BuiltImage(
        families=("cpu",),
        eif=eif,
        size=eif.stat().st_size,
        ramdisks=(),
        pcrs=pcrs.to_json(),
        files_list=tmp_path / "files.json",
        seconds=0.0,
    )
    parts = boot_parts(built, tmp_path)
    assert parts.kernel.read_bytes() == b"kernel"
    assert parts.initrd.read_bytes() == b"".join(ramdisks)
    assert parts.cmdline == "quiet"
    with pytest.raises(BootError, match="without a kernel"):
        boot_parts(dataclasses.replace(built, eif=None), tmp_path)


def test_a_register_that_differs_or_is_missing_is_not_equal():
    builder = {f"PCR{number}": f"{number:096x}" for number in (0, 1, 2, 8)}

    def equal(guest):
        return Report(
            machine="m", builder=builder, guest=guest, label="", artifact_bytes=1, cpu=""
        ).equal

    assert equal(None) is None
    assert equal(dict(builder)) is True
    assert equal(builder | {"PCR1": "0" * 96}) is False
    assert equal({name: builder[name] for name in ("PCR0", "PCR1", "PCR2")}) is False


@pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates x86_64 on x86_64")
def test_a_kernel_without_a_pin_fails_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    listed = "#!/bin/sh\necho 'microvm   a machine'\n"
    (tmp_path / "qemu").write_text(listed)
    (tmp_path / "qemu").chmod(0o755)
    (tmp_path / "bzImage").write_bytes(b"unknown")
    words = ["--qemu", tmp_path / "qemu", "--device", tmp_path / "qemu"]
    assert main([*map(str, words), "--kernel", str(tmp_path / "bzImage")]) == 1
    assert "no pin states" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"qemu", "bzImage"}


def payload(*, rank=1, programs=("forward",)):
    def program(name):
        return Program(
            name=name,
            inputs=(),
            outputs=(TensorSpec(role="logits", name="", shape=(2,) * rank, dtype="float32"),),
            donated=(),
            executable=name.encode(),
            peak_memory_bytes=0,
            flops=0.0,
            bytes_moved=0.0,
        )

    return TargetPayload(
        target="cpu",
        programs={name: program(name) for name in programs},
        blocks=BlockTable(block_size=1, rows=()),
        cpu_name="haswell",
        cpu_features=("avx2",),
        scrubbed=True,
    )


@pytest.mark.parametrize(
    ("other", "differ"),
    [
        (payload(), set()),
        (payload(rank=2), {"program forward"}),
        (payload(programs=("forward", "grad")), {"programs"}),
    ],
)
def test_a_program_of_another_form_is_named(other, differ):
    found = compared(payload(), other)
    assert {name for name, (inside, outside) in found.items() if inside != outside} == differ
