"""What a boot needs: everything that is missing is named, and a QEMU's machines are asked for."""

import platform

import pytest

from tests.e2e.boot.__main__ import main
from tests.e2e.boot.machines import Parts, Wiring, device_command, qemu_command
from tests.e2e.boot.tools import (
    MICROVM,
    NITRO,
    BootError,
    MissingError,
    Tools,
    choose_machine,
    find_tools,
    read_machines,
)

MACHINES = """Supported machines are:
microvm              microvm (i386)
none                 empty machine
pc                   Standard PC (i440FX + PIIX, 1996) (alias of pc-i440fx-10.0)
"""
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates x86_64 on x86_64")


def program(path, text):
    """Write a program that a shell runs."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def emulator(folder, machines):
    listed = folder / "machines"
    listed.write_text(machines)
    return program(folder / "qemu", f'[ "$1 $2" = "-machine help" ] && cat "{listed}"')


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "bzImage"
    path.write_bytes(b"kernel")
    return path


def find(tmp_path, kernel, *, machines=MACHINES, **changes):
    words = {
        "kernel": kernel,
        "pins": tmp_path / "pins.json",
        "qemu": emulator(tmp_path, machines),
        "device": program(tmp_path / "device", "exit 0"),
    }
    return find_tools(**words | changes)


@X86
def test_everything_that_is_missing_is_named_at_once(tmp_path):
    with pytest.raises(MissingError) as caught:
        find_tools(kernel=None, pins=tmp_path, qemu="no-such-qemu", device="no-such-device")
    assert [thing.split()[0] for thing in caught.value.things] == [
        "no-such-qemu",
        "no-such-device",
        "a",
    ]
    assert "KERNEL=FILE" in caught.value.things[2]


@X86
def test_a_kernel_that_is_no_file_is_missing(tmp_path, kernel):
    with pytest.raises(MissingError, match=r"no-kernel is no file"):
        find(tmp_path, tmp_path / "no-kernel")
    assert find(tmp_path, kernel).kernel == kernel


@X86
def test_a_machine_that_attests_is_preferred_and_one_that_lacks_is_missing(tmp_path, kernel):
    assert find(tmp_path, kernel).machine == MICROVM
    with pytest.raises(MissingError, match="a QEMU with the machine nitro-enclave"):
        find(tmp_path, kernel, machine=NITRO)
    both = MACHINES + "nitro-enclave        AWS Nitro Enclave\n"
    assert find(tmp_path, kernel, machines=both).machine == NITRO
    assert find(tmp_path, kernel, machines=both, machine=MICROVM).machine == MICROVM
    with pytest.raises(MissingError, match="a QEMU with the machine microvm"):
        find(tmp_path, kernel, machines="pc     Standard PC\n")


@X86
def test_a_qemu_that_does_not_run_is_a_failure_and_nothing_missing(tmp_path, kernel):
    broken = program(tmp_path / "broken", "echo 'libfdt.so.1: cannot open' >&2; exit 127")
    with pytest.raises(BootError, match=r"does not run: libfdt\.so\.1: cannot open") as caught:
        find(tmp_path, kernel, qemu=broken)
    assert not isinstance(caught.value, MissingError)


def test_machines_are_read_by_their_whole_names():
    assert {"microvm", "pc"} <= read_machines(MACHINES)
    assert choose_machine(read_machines("microvm-old    x\n"), None) is None


@X86
def test_the_command_says_what_is_missing_and_ends_well(tmp_path, capsys):
    words = ["--qemu", "no-such-qemu", "--device", program(tmp_path / "device", "exit 0")]
    assert main([*words, "--kernel", str(tmp_path / "none")]) == 0
    told = capsys.readouterr().out
    assert "skipped" in told
    assert "no-such-qemu" in told
    assert "none is no file" in told
    assert "vhost" not in told


def tools(tmp_path, machine):
    return Tools(
        qemu=tmp_path / "qemu",
        machine=machine,
        device=tmp_path / "device",
        kernel=tmp_path / "bzImage",
        pins=tmp_path / "pins.json",
        data=(tmp_path / "firmware",),
    )


def parts(tmp_path):
    return Parts(
        eif=tmp_path / "x.eif",
        kernel=tmp_path / "kernel",
        initrd=tmp_path / "initrd",
        cmdline="console=ttyS0 panic=30",
    )


def after(command, word):
    """Give the one word that follows another."""
    assert command.count(word) == 1
    return command[command.index(word) + 1]


def test_a_microvm_gets_the_sections_and_memory_that_the_vsock_device_shares(tmp_path):
    wiring = Wiring(tmp_path)
    command = qemu_command(tools(tmp_path, MICROVM), wiring, parts(tmp_path), memory_mib=3072)
    assert command[0] == str(tmp_path / "qemu")
    assert after(command, "-accel") == "tcg"
    assert after(command, "-m") == "3072M"
    assert after(command, "-L") == str(tmp_path / "firmware")
    assert after(command, "-object") == "memory-backend-memfd,id=m,size=3072M,share=on"
    assert after(command, "-M").endswith("memory-backend=m")
    assert "acpi=off" in after(command, "-M").split(",")
    assert after(command, "-append") == "console=ttyS0 panic=30"
    assert after(command, "-initrd") == str(tmp_path / "initrd")
    assert after(command, "-kernel") == str(tmp_path / "kernel")
    assert after(command, "-chardev") == f"socket,id=c,path={wiring.control}"


def test_an_enclave_gets_the_image_itself(tmp_path):
    wiring = Wiring(tmp_path)
    command = qemu_command(tools(tmp_path, NITRO), wiring, parts(tmp_path), memory_mib=4096)
    assert after(command, "-kernel") == str(tmp_path / "x.eif")
    assert after(command, "-M").startswith("nitro-enclave,vsock=c,id=i-")
    assert "-initrd" not in command
    assert "-append" not in command


def test_both_programs_meet_at_one_socket(tmp_path):
    wiring = Wiring(tmp_path)
    words = dict(
        word.split("=") for word in device_command(tools(tmp_path, MICROVM), wiring)[2].split(",")
    )
    assert words["socket"] == str(wiring.control)
    assert words["uds-path"] == str(wiring.host)
    assert str(wiring.guest_calls(9000)) == words["uds-path"] + "_9000"
