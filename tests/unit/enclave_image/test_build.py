"""A whole build of a small image: what it writes, that it is the same every time, what it refuses."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from enclave_image import build
from enclave_image.build import ImageRequest, build_image
from enclave_image.cpio import File, Symlink, read_cpio
from enclave_image.eif import read_eif
from enclave_image.rootfs import Ramdisk, boot_ramdisk
from runtime.cli import main
from runtime.spec.errors import ArtifactError
from tests.support.eif import signer

ROOT = Path(__file__).parents[3]
KERNEL = b"not really a kernel"
OTHER = {"x86_64": "aarch64"}.get(platform.machine(), "x86_64")


def pin(kind, content, version="6.1", architecture=None, **more):
    return {
        "kind": kind,
        "name": f"test {kind}",
        "version": version,
        "architecture": architecture or platform.machine(),
        "source": "a test",
        "sha256": hashlib.sha256(content).hexdigest(),
        **more,
    }


@pytest.fixture
def given(tmp_path):
    """Give the fields of a request with a kernel whose pin lies beside it."""
    (tmp_path / "kernel").write_bytes(KERNEL)
    (tmp_path / "nsm").write_bytes(b"driver")
    pins = tmp_path / "pins.json"
    pins.write_text(json.dumps({"inputs": [pin("kernel", KERNEL), pin("nsm", b"driver", "6.0")]}))
    return {"kernel": tmp_path / "kernel", "pins": pins}


@pytest.fixture
def small(monkeypatch):
    """Make images hold four small ramdisks; give what can be changed."""
    settings = {"limit": 1 << 30, "check": lambda _written: None}

    def ramdisks(families, *, boot):
        listed = (
            boot_ramdisk(boot),
            Ramdisk(name="system", entries=(Symlink("bin/sh", "x"), File("lib/l.so", b"l" * 5))),
            Ramdisk(name="packages", entries=(File("p/x.py", b"xx"),), check=settings["check"]),
            Ramdisk(name="code", entries=(File("c/y.py", b"yyy"),)),
        )
        return ("cpu", *families), listed, settings["limit"]

    monkeypatch.setattr(build, "image_ramdisks", ramdisks)
    return settings


@pytest.mark.usefixtures("small")
def test_an_image_is_written_with_its_list_and_measurements(tmp_path, given):
    said = []
    image = build_image(ImageRequest(families=("cuda",), **given), tmp_path / "o", say=said.append)
    back = read_eif(image.eif)
    document = image.to_json()
    assert document["eif"] == str(tmp_path / "o" / "luma-enclave.eif")
    assert document["bytes"] == image.eif.stat().st_size == back.size_bytes
    assert document["pcrs"] == back.pcrs.to_json()
    assert document["seconds"] >= 0
    assert back.metadata["ImageName"] == "compiler-cpu-cuda"
    assert back.metadata["BuildMetadata"]["KernelVersion"] == "6.1"
    assert len(back.sections) == 7
    listed = json.loads((tmp_path / "o" / "files.json").read_text())
    assert listed["targets"] == ["cpu", "cuda"]
    assert listed["unpacked_bytes"] == sum(file["size"] for file in listed["files"])
    assert {
        "path": "p/x.py",
        "size": 2,
        "sha256": hashlib.sha256(b"xx").hexdigest(),
        "ramdisk": "packages",
    } in listed["files"]
    policy = json.loads((tmp_path / "o" / "measurements.json").read_text())
    pcrs = {name: value for name, value in image.pcrs.items() if name != "PCR8"}
    assert policy == {"schema": "luma/measurements/1", "images": {"compiler-cpu-cuda": pcrs}}
    assert [line.split(":")[0] for line in said] == ["boot", "system", "packages", "code", "image"]
    for ramdisk in image.ramdisks:
        assert hashlib.sha384(ramdisk.path.read_bytes()).hexdigest() == ramdisk.sha384
        with ramdisk.path.open("rb") as file:
            paths = [entry.path for entry in read_cpio(file)]
        assert {written.path for written in ramdisk.files} <= set(paths)


@pytest.mark.usefixtures("small")
def test_without_a_kernel_there_is_pcr2_and_it_is_the_images(tmp_path, given):
    whole = build_image(ImageRequest(**given), tmp_path / "o")
    alone = build_image(ImageRequest(), tmp_path / "o")
    assert alone.eif is None
    assert alone.pcrs == {"PCR0": None, "PCR1": None, "PCR2": whole.pcrs["PCR2"], "PCR8": None}
    # The image of the earlier build does not stay beside the ramdisks of this one.
    assert not whole.eif.exists()
    assert not (tmp_path / "o" / "measurements.json").exists()


@pytest.mark.usefixtures("small")
def test_a_signature_adds_pcr8_and_changes_no_other(tmp_path, given):
    plain = build_image(ImageRequest(**given), tmp_path / "p")
    signed = build_image(ImageRequest(signer=signer(), **given), tmp_path / "s")
    assert {n: v for n, v in plain.pcrs.items() if n != "PCR8"} == {
        n: v for n, v in signed.pcrs.items() if n != "PCR8"
    }
    assert plain.pcrs["PCR8"] == "0" * 96
    policy = json.loads((tmp_path / "s" / "measurements.json").read_text())
    assert policy["images"]["compiler-cpu"]["PCR8"] == signed.pcrs["PCR8"]


@pytest.mark.usefixtures("small")
def test_no_umask_gets_into_the_files(tmp_path, given):
    before = os.umask(0o077)
    try:
        image = build_image(ImageRequest(**given), tmp_path / "o")
    finally:
        os.umask(before)
    for path in image.eif.parent.iterdir():
        assert path.stat().st_mode & 0o777 == 0o644


def test_an_image_that_is_too_large_leaves_nothing(tmp_path, given, small):
    small["limit"] = 10
    with pytest.raises(
        ArtifactError, match=r"image: .* GiB unpacked; .* the largest files are init"
    ):
        build_image(ImageRequest(**given), tmp_path / "o")
    assert list((tmp_path / "o").iterdir()) == []


def test_a_changed_package_leaves_what_was_there(tmp_path, given, small):
    first = build_image(ImageRequest(**given), tmp_path / "o")
    before = {path.name: path.read_bytes() for path in (tmp_path / "o").iterdir()}

    def refuse(written):
        raise ArtifactError(f"changed: {written.path}")

    small["check"] = refuse
    with pytest.raises(ArtifactError, match=r"changed: p/x\.py"):
        build_image(ImageRequest(**given), tmp_path / "o")
    assert {path.name: path.read_bytes() for path in (tmp_path / "o").iterdir()} == before
    assert read_eif(first.eif)


@pytest.mark.usefixtures("small")
def test_inputs_that_are_not_pinned_or_do_not_belong_together_are_refused(tmp_path, given):
    (tmp_path / "x").write_bytes(b"x")
    with pytest.raises(ArtifactError, match=r"--kernel: .* which no pin states"):
        build_image(ImageRequest(kernel=tmp_path / "x", pins=given["pins"]), tmp_path / "o")
    with pytest.raises(ArtifactError, match=r"--nsm: for kernel 6\.0, but the kernel is 6\.1"):
        build_image(ImageRequest(nsm=tmp_path / "nsm", **given), tmp_path / "o")
    given["pins"].write_text(json.dumps({"inputs": [pin("kernel", KERNEL, architecture=OTHER)]}))
    with pytest.raises(ArtifactError, match=f"is for {OTHER}, but the interpreter"):
        build_image(ImageRequest(**given), tmp_path / "o")
    with pytest.raises(ArtifactError, match="--sign: without a kernel"):
        build_image(ImageRequest(signer=signer()), tmp_path / "o")
    assert not (tmp_path / "o").exists()


@pytest.mark.usefixtures("small")
def test_a_kernel_without_the_driver_that_it_needs_is_refused(tmp_path, given):
    listed = [pin("kernel", KERNEL, needs_nsm=True), pin("nsm", b"driver")]
    given["pins"].write_text(json.dumps({"inputs": listed}))
    with pytest.raises(ArtifactError, match=r"--nsm: missing; test kernel 6\.1 has no") as caught:
        build_image(ImageRequest(**given), tmp_path / "o")
    assert "--nsm" in caught.value.remedy
    assert not (tmp_path / "o").exists()
    image = build_image(ImageRequest(nsm=tmp_path / "nsm", **given), tmp_path / "o")
    with image.ramdisks[0].path.open("rb") as file:
        assert File("nsm.ko", b"driver", 0o644) in list(read_cpio(file))


@pytest.mark.usefixtures("small")
def test_what_was_checked_is_what_is_built_though_the_files_change_meanwhile(
    tmp_path, given, monkeypatch
):
    (tmp_path / "init").write_bytes(b"first process")
    listed = [pin("kernel", KERNEL), pin("nsm", b"driver"), pin("init", b"first process")]
    given["pins"].write_text(json.dumps({"inputs": listed}))
    request = ImageRequest(nsm=tmp_path / "nsm", init=tmp_path / "init", **given)
    expected = build_image(request, tmp_path / "a").eif.read_bytes()
    choose = build.image_ramdisks

    def swap_then_choose(*words, **named):
        for name in ("kernel", "nsm", "init"):
            (tmp_path / name).write_bytes(b"another")
        return choose(*words, **named)

    monkeypatch.setattr(build, "image_ramdisks", swap_then_choose)
    assert build_image(request, tmp_path / "b").eif.read_bytes() == expected
    assert given["kernel"].read_bytes() == b"another"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["luma-enclave.eif", "files.json", "measurements.json"])
def test_a_folder_in_the_place_of_a_file_is_named_and_nothing_is_moved(tmp_path, given, name):
    build_image(ImageRequest(**given), tmp_path / "o")
    (tmp_path / "o" / name).unlink()
    (tmp_path / "o" / name).mkdir()
    others = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "o").iterdir() if p.name != name}
    with pytest.raises(ArtifactError, match=rf"--out .*: {name} is a folder there"):
        build_image(ImageRequest(**given), tmp_path / "o")
    assert list((tmp_path / "o" / name).iterdir()) == []
    for other, changed in others.items():
        assert (tmp_path / "o" / other).stat().st_mtime_ns == changed


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("reached", range(7))
def test_an_interrupted_build_leaves_no_measurements_of_another_image(
    tmp_path, given, monkeypatch, reached
):
    build_image(ImageRequest(**given), tmp_path / "o")
    replace, done = Path.replace, []

    def interrupted(path, target):
        if len(done) == reached:
            raise KeyboardInterrupt
        done.append(path.name)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_image(ImageRequest(families=("cuda",), **given), tmp_path / "o")
    assert len(done) == reached
    assert not (tmp_path / "o" / "measurements.json").exists()


@pytest.mark.usefixtures("small")
def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"--out .*cannot be written"):
        build_image(ImageRequest(), tmp_path / "file" / "o")


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_the_commands_print_what_scripts_read(tmp_path, given, capsys):
    own = signer()
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    key.write_bytes(
        own.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    certificate.write_bytes(own.certificate.public_bytes(serialization.Encoding.PEM))
    words = ["enclave", "build", "--out", str(tmp_path / "o"), "--targets", "cuda", "--json"]
    words += ["--kernel", str(given["kernel"]), "--pins", str(given["pins"])]
    assert main([*words, "--sign", str(key), str(certificate)]) == 0
    captured = capsys.readouterr()
    built = json.loads(captured.out)
    assert {"eif", "bytes", "pcrs", "seconds"} <= set(built)
    assert built["targets"] == ["cpu", "cuda"]
    assert "code: 1 files" in captured.err
    assert main(["enclave", "describe", built["eif"], "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["pcrs"] == built["pcrs"]
    assert described["header"]["num_sections"] == len(described["sections"]) == 8
    assert described["signed_by"] == "CN=luma test"


@pytest.mark.usefixtures("small")
def test_the_commands_print_tables_for_people(tmp_path, given, capsys):
    words = ["enclave", "build", "--out", str(tmp_path / "o")]
    assert main(words) == 0
    assert "none (no kernel was given)" in capsys.readouterr().out
    assert main([*words, "--kernel", str(given["kernel"]), "--pins", str(given["pins"])]) == 0
    assert "SHA-384" in capsys.readouterr().out
    image = tmp_path / "o" / "luma-enclave.eif"
    assert main(["enclave", "describe", str(image)]) == 0
    shown = capsys.readouterr().out
    assert "signed_by" in shown
    assert "ramdisk" in shown
    image.write_bytes(image.read_bytes()[:-1])
    assert main(["enclave", "describe", str(image)]) == 1
    assert "beyond the file's end" in capsys.readouterr().err


def test_a_family_that_does_not_exist_is_a_usage_mistake(tmp_path, capsys):
    assert main(["enclave", "build", "--out", str(tmp_path / "o"), "--targets", "gpu"]) == 2
    assert "'gpu' is unknown; allowed: cpu, cuda, tpu, amd" in capsys.readouterr().err


# --- the same bytes -------------------------------------------------------------------------------

BUILD_SCRIPT = """
import os, sys, time
from pathlib import Path
import cryptography.hazmat.primitives.asymmetric.ec
from enclave_image import build, sources
from enclave_image.build import ImageRequest, build_image
from enclave_image.rootfs import boot_ramdisk, code_ramdisk
folder, umask, user, when = Path(sys.argv[1]), int(sys.argv[2], 8), int(sys.argv[3]), sys.argv[4]
assert sources.ROOT == folder / "checkout", sources.ROOT
build.image_ramdisks = lambda families, *, boot: (
    ("cpu",), (boot_ramdisk(boot), code_ramdisk()), 1 << 30
)
os.umask(umask)
if user:
    os.setuid(user)
for path in (folder / "checkout").rglob("*"):
    if os.access(path, os.W_OK):
        os.utime(path, (int(when), int(when)))
build_image(
    ImageRequest(kernel=folder / "kernel", pins=folder / "pins.json"), folder / "o" / "deep"
)
"""


def _built_elsewhere(folder, source, *, umask, user, when, environment):
    """Build from a copy of the checkout in a process of its own; give the written files."""
    folder.mkdir()
    for name in ("runtime", "enclave_image"):
        shutil.copytree(
            source / name,
            folder / "checkout" / name,
            ignore=shutil.ignore_patterns("__pycache__"),
            copy_function=shutil.copyfile,
        )
    (folder / "kernel").write_bytes(KERNEL)
    (folder / "pins.json").write_text(json.dumps({"inputs": [pin("kernel", KERNEL)]}))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644 if user else 0o700)
        if user:
            os.chown(path, user, user)
    subprocess.run(
        [sys.executable, "-B", "-c", BUILD_SCRIPT, folder, umask, str(user), when],
        env={**os.environ, "PYTHONPATH": str(folder / "checkout"), **environment},
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return {path.name: path.read_bytes() for path in (folder / "o" / "deep").iterdir()}


def test_folder_time_umask_user_and_environment_change_no_byte():
    nobody = 65534 if os.getuid() == 0 else 0
    # Not pytest's folder: another user cannot enter that.
    with tempfile.TemporaryDirectory(prefix="luma-build-") as name:
        root = Path(name)
        root.chmod(0o755)
        one = _built_elsewhere(
            root / "one",
            ROOT,
            umask="022",
            user=0,
            when="1000000000",
            environment={"PYTHONHASHSEED": "1", "TZ": "UTC", "LANG": "C"},
        )
        two = _built_elsewhere(
            root / "another one",
            root / "one" / "checkout",  # and not ROOT, which somebody may be editing
            umask="077",
            user=nobody,
            when="1700000000",
            environment={"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LANG": "C.UTF-8"},
        )
    assert set(one) == set(two)
    assert "luma-enclave.eif" in one
    for name, content in one.items():
        assert content == two[name], name
