"""Packages of an image: whole, unchanged, of the pinned version, and reviewed."""

import base64
import hashlib
import importlib.metadata
import json
import re
import tomllib
from pathlib import Path

import pytest

from enclave_image.cpio import Written
from enclave_image.elf import read_elf
from enclave_image.packages import Package, load_contents, package_files
from runtime.spec.errors import ArtifactError, SpecError

ROOT = Path(__file__).parents[3]


def digest(content):
    raw = hashlib.sha256(content).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Give the folder of an installed distribution `luma-probe` of version 1.0."""
    files = {
        "luma_probe/__init__.py": b"x = 1\n",
        "luma_probe/native.so": b"\x7fELF",
        "luma_probe/bin/tool": b"\x7fELF",
        "luma_probe/tests/test_x.py": b"",
        "luma_probe/include/x.h": b"",
        "luma_probe/typed.pyi": b"",
        "luma_probe/__pycache__/__init__.cpython-311.pyc": b"",
        "luma_probe-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: luma-probe\nVersion: 1.0\n",
        "luma_probe-1.0.dist-info/entry_points.txt": b"[x]\n",
        "luma_probe-1.0.dist-info/WHEEL": b"",
        "luma_probe-1.0.dist-info/licenses/LICENSE": b"",
    }
    lines = []
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        lines.append(f"{name},{digest(content)},{len(content)}")
    # Execute bits as an installer may leave them: they are to say nothing.
    (tmp_path / "luma_probe" / "native.so").chmod(0o700)
    (tmp_path / "luma_probe" / "bin" / "tool").chmod(0o600)
    lines += ["../../../bin/probe,,", "luma_probe-1.0.dist-info/RECORD,,"]
    (tmp_path / "luma_probe-1.0.dist-info" / "RECORD").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def taken(package):
    found = package_files([package], prefix="p")
    return {file.path.removeprefix("p/"): file for file in found.files}


def test_what_a_service_needs_is_taken(wheel):
    files = taken(Package(name="luma-probe", version="1.0"))
    assert set(files) == {
        "luma_probe/__init__.py",
        "luma_probe/native.so",
        "luma_probe/bin/tool",
        "luma_probe-1.0.dist-info/METADATA",
        "luma_probe-1.0.dist-info/entry_points.txt",
    }


def test_modes_are_stated_whatever_the_file_system_says(wheel):
    before = taken(Package(name="luma-probe", version="1.0", programs=("luma_probe/bin/tool",)))
    assert {path for path, file in before.items() if file.mode == 0o755} == {"luma_probe/bin/tool"}
    assert {file.mode for file in before.values()} == {0o755, 0o644}
    for path in (wheel / "luma_probe").rglob("*"):
        path.chmod(0o755)
    assert before == taken(
        Package(name="luma-probe", version="1.0", programs=("luma_probe/bin/tool",))
    )


@pytest.mark.parametrize("program", ["luma_probe/bin/none", "luma_probe/typed.pyi"])
def test_a_program_that_is_not_taken_is_named(wheel, program):
    with pytest.raises(ArtifactError, match=f"luma-probe: program {program} is not among"):
        taken(Package(name="luma-probe", version="1.0", programs=(program,)))


def test_no_program_is_among_the_packages_of_every_image_but_stated_ones():
    for package in load_contents().families["cpu"]:
        for file in package_files([package], prefix="p").files:
            needs = read_elf(file.content)
            is_program = needs is not None and needs.interpreter is not None
            # A library may name a loader too, as the C library does.
            if is_program and ".so" not in file.content.name:
                assert file.mode == 0o755, f"state {file.path} in contents.json"


def test_parts_can_be_chosen(wheel):
    package = Package(name="luma-probe", version="1.0", only=("luma_probe/nat*",))
    assert {path for path in taken(package) if "dist-info" not in path} == {"luma_probe/native.so"}
    package = Package(name="luma-probe", version="1.0", leave_out=("luma_probe/nat*",))
    assert {path for path in taken(package) if "dist-info" not in path} == {
        "luma_probe/__init__.py",
        "luma_probe/bin/tool",
    }


def test_another_version_is_refused(wheel):
    with pytest.raises(ArtifactError, match=r"luma-probe: 1\.0 is installed; .* needs 1\.1"):
        taken(Package(name="luma-probe", version="1.1"))


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(ArtifactError, match="luma-nowhere: not installed") as caught:
        taken(Package(name="luma-nowhere", version="2.0"))
    assert "luma-nowhere==2.0" in caught.value.remedy


def test_a_package_without_a_record_is_refused(wheel):
    (wheel / "luma_probe-1.0.dist-info" / "RECORD").unlink()
    with pytest.raises(ArtifactError, match="it has no RECORD"):
        taken(Package(name="luma-probe", version="1.0"))


def test_a_file_that_was_edited_after_it_was_installed_is_refused(wheel):
    found = package_files([Package(name="luma-probe", version="1.0")], prefix="p")
    name = "p/luma_probe/__init__.py"
    found.check(Written(path=name, size=6, sha256=hashlib.sha256(b"x = 1\n").hexdigest()))
    edited = Written(path=name, size=6, sha256=hashlib.sha256(b"x = 2\n").hexdigest())
    with pytest.raises(ArtifactError, match="but its wheel's RECORD states"):
        found.check(edited)


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_chosen_versions_are_the_pinned_ones():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    pins = {_normal(name): version for name, version in pins.items()}
    contents = load_contents()
    for package in contents.families["cpu"]:
        assert pins[_normal(package.name)] == package.version, package.name
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    jax = next(p for p in contents.families["cpu"] if p.name == "jax")
    assert extras["cuda"] == [f"jax[cuda13]=={jax.version}"]
    versions = {p.name: p.version for p in contents.families["cuda"]}
    assert versions["jax-cuda13-plugin"] == versions["jax-cuda13-pjrt"] == jax.version
    for family in ("tpu", "amd"):
        for package in contents.families[family]:
            assert f"{package.name}=={package.version}" in extras[family]


def test_neither_torch_nor_a_models_source_is_chosen():
    contents = load_contents()
    for package in contents.packages(contents.families):
        assert package.name not in {"torch", "transformers", "peft", "datasets", "accelerate"}


def test_the_chosen_packages_need_no_others_but_those_left_out_on_purpose():
    # jax declares scipy, and imports it for a reference implementation and for sparse matrices only.
    known = {"scipy", "pycparser"}
    contents = load_contents()
    names = {_normal(package.name) for package in contents.families["cpu"]}
    for package in contents.families["cpu"]:
        for line in importlib.metadata.requires(package.name) or ():
            requirement, _, marker = line.partition(";")
            if "extra" in marker or 'sys_platform == "win32"' in marker:
                continue
            if "python_version <" in marker or "python_full_version <" in marker:
                continue
            needed = _normal(re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0])
            assert needed in names | known, f"{package.name} needs {needed}"


def test_families_come_in_their_order_with_the_base():
    contents = load_contents()
    assert contents.chosen(["tpu", "cuda"]) == ("cpu", "cuda", "tpu")
    assert contents.chosen([]) == ("cpu",)
    assert contents.limit_bytes(["cpu", "cuda"]) == int(1.1 * 2**30)
    assert contents.limit_bytes(["cpu", "amd"]) == int(1.9 * 2**30)
    with pytest.raises(
        SpecError, match="--targets: 'gpu' is unknown; allowed: cpu, cuda, tpu, amd"
    ):
        contents.chosen(["gpu"])


def test_the_review_file_has_the_form_that_is_read():
    document = json.loads((ROOT / "enclave_image" / "contents.json").read_text())
    for entries in document["families"].values():
        for entry in entries:
            assert set(entry) <= {"name", "version", "only", "leave_out", "programs"}
