"""The whole image for all targets whose packages are here: its measurement, what it holds, and
compiles in it alone."""

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from enclave_image.build import ImageRequest, build_image
from enclave_image.cpio import Directory, File, Symlink, read_cpio
from enclave_image.interpreter import find_interpreter
from enclave_image.measurements import load_measurements, reference_entry
from enclave_image.probe import loaded_files, probe_package
from enclave_image.rootfs import image_ramdisks
from runtime.artifact import TargetPayload
from runtime.compiler.child import Children, run_worker
from runtime.compiler.targets import back_end, find_target
from tests.unit.enclave_image.test_measurements import AGAIN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]

# Stands where the service does, and takes the service's way to the compiler.
SERVICE = """
import os
from pathlib import Path
from runtime.compiler.child import Children, run_worker
from runtime.compiler.targets import find_target
for target in Path("/targets").read_text().split():
    payload = run_worker(
        Path("/probe.graph").read_bytes(), target=find_target(target), micro_shards=2,
        emit=lambda event: None, children=Children(),
    )
    Path("/tmp", target).write_bytes(payload)
Path("/tmp/seen").write_text(f"{os.getpid() != 1} {os.getppid()} {sorted(os.listdir('/'))}")
if os.fork() == 0:
    os._exit(0)
"""


FAMILIES = {"cpu": "cpu", "cuda": "cuda-sm90", "tpu": "tpu-v5e", "amd": "rocm-gfx942"}
"""A target of each family."""


def lacking(target):
    """Give what a target's compiler needs and is not here, None where all is."""
    found = find_target(target)
    needed = back_end(found).missing(found)
    return None if needed is None else f"needs {needed.package}"


TARGETS = [
    pytest.param(name, marks=pytest.mark.skipif(bool(lacking(name)), reason=str(lacking(name))))
    for name in FAMILIES.values()
]


@pytest.fixture(scope="module")
def image():
    """Give a built image; its folder goes when the tests have run."""
    families = tuple(family for family, target in FAMILIES.items() if lacking(target) is None)
    with tempfile.TemporaryDirectory(prefix="luma-image-") as name:
        yield build_image(ImageRequest(families=families), Path(name))


def test_the_reference_image_is_built_again(image):
    references = {entry["name"]: entry for entry in load_measurements()["references"]}
    if image.name not in references:
        pytest.skip(f"the file lists no reference for {image.name}")
    listed = references[image.name]
    built = reference_entry(image)
    same_wheels = (
        listed["architecture"] == platform.machine()
        and listed["python"].split(".")[:2] == find_interpreter().version.split(".")[:2]
    )
    if not same_wheels:
        pytest.skip(f"the reference is of Python {listed['python']} on {listed['architecture']}")
    assert built["ramdisks"]["packages"] == listed["ramdisks"]["packages"]
    if built["ramdisks"]["system"] != listed["ramdisks"]["system"]:
        pytest.skip("this machine's interpreter is another build than the reference's")
    assert built == listed, AGAIN


@pytest.mark.parametrize("target", TARGETS)
def test_everything_that_a_compile_loads_is_in_the_image(image, target):
    # Present here and imported where present, but not needed: jax uses filelock for a cache that is
    # off, and pygments in a notebook's debugger; setuptools and the C library's locales and tables
    # of encodings are the machine's. A plug-in that is installed is found whatever the target is,
    # but then it is in the image too.
    optional = ("filelock", "pygments", "_distutils_hack", "locale", "gconv")
    _, ramdisks, _ = image_ramdisks(image.families)
    held = {
        entry.content.resolve()
        for ramdisk in ramdisks
        for entry in ramdisk.entries
        if isinstance(entry, File) and isinstance(entry.content, Path)
    }
    probe = ROOT / "enclave_image"
    missing = [
        path
        for path in loaded_files(target)
        if path.resolve() not in held
        and not set(optional).intersection(path.parts)
        and path not in {probe / "__init__.py", probe / "probe.py"}
    ]
    assert missing == []


def test_no_package_that_a_compile_does_not_need_is_in_the_image(image):
    paths = {file.path for ramdisk in image.ramdisks for file in ramdisk.files}
    for name in ("torch", "transformers", "scipy", "pip", "setuptools", "pytest"):
        assert not any(f"site-packages/{name}/" in path for path in paths), name
    assert not any(path.endswith((".pyc", ".a", ".h")) for path in paths)
    if image.families == ("cpu",):
        assert image.unpacked_bytes < 0.6 * 2**30


def unpack(archives, folder):
    """Do what the kernel does with the ramdisks."""
    for archive in archives:
        with archive.open("rb") as file:
            for entry in read_cpio(file):
                path = folder / entry.path
                if isinstance(entry, Directory):
                    path.mkdir(exist_ok=True)
                    path.chmod(entry.mode)
                elif isinstance(entry, Symlink):
                    path.symlink_to(entry.target)
                else:
                    path.write_bytes(entry.content)
                    path.chmod(entry.mode)


def _name_space():
    """Give the words that start a command in name spaces of its own, None where that cannot be."""
    unshare = shutil.which("unshare")
    if os.getuid() != 0 or unshare is None or shutil.which("chroot") is None:
        return None
    words = [unshare, "--mount", "--pid", "--fork", "--net"]
    with tempfile.TemporaryDirectory() as name:
        tried = subprocess.run([*words, "mount", "-t", "devtmpfs", "none", name], check=False)
    return words if tried.returncode == 0 else None


def test_the_image_boots_in_a_name_space_and_compiles_with_nothing_else(image):
    words = _name_space()
    if words is None:
        pytest.skip("needs root, unshare, chroot, and a kernel that lets it mount")
    package = probe_package().to_bytes()
    with tempfile.TemporaryDirectory(prefix="luma-root-") as name:
        root = Path(name)
        unpack([ramdisk.path for ramdisk in image.ramdisks], root)
        service = root / "opt/luma/code/enclave_image/service"
        shutil.rmtree(service, ignore_errors=True)
        service.mkdir(parents=True)
        (service / "__main__.py").write_text(SERVICE)
        (root / "probe.graph").write_bytes(package)
        targets = [FAMILIES[family] for family in image.families]
        (root / "targets").write_text(" ".join(targets))
        done = subprocess.run(
            [*words, shutil.which("chroot"), root, "/init"], check=False, timeout=1000
        )
        payloads = {target: (root / "tmp" / target).read_bytes() for target in targets}
        seen = (root / "tmp" / "seen").read_text()
    # A reboot in a process name space ends its first process by SIGHUP, and unshare does likewise.
    assert done.returncode in {-1, 129}
    assert seen.startswith("True 1 ['dev', 'init', 'lib64', 'opt', ")
    for target, payload in payloads.items():
        outside = run_worker(
            package,
            target=find_target(target),
            micro_shards=2,
            emit=lambda _event: None,
            children=Children(),
        )
        _assert_same(TargetPayload.from_bytes(payload), TargetPayload.from_bytes(outside))


def _assert_same(inside, outside):
    """Compare what payloads hold: XLA's bytes for a CPU differ in places from compile to compile."""
    assert set(inside.programs) == set(outside.programs) == {"grad", "apply"}
    assert inside.cpu_features == outside.cpu_features
    for name, program in inside.programs.items():
        same = outside.programs[name]
        assert program.executable
        assert program.inputs == same.inputs
        assert program.outputs == same.outputs
        assert program.peak_memory_bytes == same.peak_memory_bytes
