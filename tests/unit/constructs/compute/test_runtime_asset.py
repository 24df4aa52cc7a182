"""The runtime as an asset: the same sources give the same bytes, and nothing else is in it."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import zipfile
from pathlib import Path

import aws_cdk as cdk
import pytest
from aws_cdk import aws_iam as iam

from luma_constructs import _bundle, runtime_asset
from luma_constructs._bundle import FAMILIES, RuntimeSourceError, bundle, repository_of
from luma_constructs.runtime_asset import RuntimeAsset, runtime_bytes
from tests.support.cdk import ROOT, synthesized
from tests.unit.constructs.compute import stacks

PACKAGE = ROOT / "luma_constructs"


@pytest.fixture
def checkout(tmp_path):
    """A small checkout: what the bundle is made of, and what it must leave out."""
    root = tmp_path / "luma"
    for name in ("pyproject.toml", "constraints.txt", "LICENSE"):
        root.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for folder in ("runtime/spec", "enclave_image/parent", "requirements", "luma_constructs/data"):
        (root / folder).mkdir(parents=True)
    (root / "runtime/spec/__init__.py").write_text("x = 1\n")
    (root / "enclave_image/parent/luma.service").write_text("[Unit]\n")
    (root / "requirements/neuron.txt").write_text("torch\n")
    for file in (PACKAGE / "data").iterdir():
        if file.is_file():
            shutil.copy(file, root / "luma_constructs/data")
    return root


def made(root):
    return bundle(root, root / "luma_constructs")


def names(content):
    return zipfile.ZipFile(io.BytesIO(content)).namelist()


def test_times_modes_caches_and_the_order_of_files_do_not_matter(checkout):
    first = made(checkout)
    cache = checkout / "runtime/spec/__pycache__"
    cache.mkdir()
    (cache / "__init__.cpython-311.pyc").write_bytes(b"x")
    (checkout / "runtime/notes.swp").write_text("an editor's")
    os.utime(checkout / "runtime/spec/__init__.py", (1, 1))
    (checkout / "runtime/spec/__init__.py").chmod(0o600)
    again = checkout.parent / "again"
    shutil.copytree(checkout, again)
    assert made(again) == first


def test_every_change_of_a_source_changes_it(checkout):
    first = made(checkout)
    for path in (
        "runtime/spec/__init__.py",
        "constraints.txt",
        "luma_constructs/data/bootstrap.sh",
    ):
        with (checkout / path).open("a") as file:
            file.write("# changed\n")
        assert made(checkout) != first
        first = made(checkout)


def test_it_holds_packages_versions_requirements_and_scripts(checkout):
    assert names(made(checkout)) == sorted(
        [
            "LICENSE",
            "constraints.txt",
            "enclave_image/parent/luma.service",
            "node/bootstrap.sh",
            "node/enclave_host.sh",
            "node/host_identity.py",
            "node/python_env.sh",
            "node/serve_host.sh",
            "node/serve_watch.py",
            *(f"node/requirements-{family}.txt" for family in FAMILIES),
            "pyproject.toml",
            "requirements/neuron.txt",
            "runtime/spec/__init__.py",
        ]
    )


def test_entries_carry_no_time_and_no_user(checkout):
    for entry in zipfile.ZipFile(io.BytesIO(made(checkout))).infolist():
        assert entry.date_time == (1980, 1, 1, 0, 0, 0)
        assert entry.compress_type == zipfile.ZIP_STORED
        assert entry.external_attr >> 16 == (
            0o100755 if entry.filename.endswith(".sh") else 0o100644
        )


def test_the_repository_s_own_bundle_has_everything_that_is_tracked():
    found = set(names(runtime_bytes()))
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in ("runtime", "enclave_image")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert sources <= found
    assert not {name for name in found if name.startswith(("luma_constructs", "tests", "runs"))}


@pytest.mark.parametrize("missing", ["constraints.txt", "luma_constructs/data/bootstrap.sh"])
def test_a_missing_file_is_named(checkout, missing):
    (checkout / missing).unlink()
    with pytest.raises(RuntimeSourceError, match=f"{Path(missing).name}: No such file.*complete"):
        made(checkout)


def test_a_package_that_is_no_dependency_is_named(checkout):
    with (checkout / "luma_constructs/data/node_packages.txt").open("a") as file:
        file.write("left-pad\n")
    with pytest.raises(RuntimeSourceError, match=r"node_packages\.txt: left-pad is no dependency"):
        made(checkout)


def requirements(family):
    content = zipfile.ZipFile(io.BytesIO(runtime_bytes())).read(f"node/requirements-{family}.txt")
    lines = content.decode().splitlines()
    return {line for line in lines if not line.startswith("#")}


def test_each_family_gets_its_compiler_s_libraries_and_no_torch():
    base = requirements("cpu")
    assert "jax==0.10.2" in base
    assert any(line.startswith("boto3") for line in base)
    for family in ("cpu", "cuda", "tpu", "rocm", "neuron", "compiler"):
        assert base <= requirements(family)
        assert not any(line.startswith(("torch", "transformers")) for line in requirements(family))
    assert "jax[cuda13]==0.10.2" in requirements("cuda")
    assert "libtpu==0.0.52" in requirements("tpu")
    assert any(line.startswith("iree-base-runtime") for line in requirements("rocm"))
    assert requirements("cuda") | requirements("tpu") | requirements("rocm") == requirements(
        "compiler"
    )
    assert any(line.startswith("torch==") for line in requirements("serve"))


def test_another_project_s_folders_are_not_taken_for_luma(tmp_path, checkout):
    assert repository_of(checkout / "luma_constructs") == checkout
    (checkout / "pyproject.toml").write_text('[project]\nname = "someone-else"\n')
    assert repository_of(checkout / "luma_constructs") is None
    (checkout / "pyproject.toml").write_text("not TOML [")
    assert repository_of(checkout / "luma_constructs") is None
    (checkout / "pyproject.toml").write_text("[tool.x]\n")
    assert repository_of(checkout / "luma_constructs") is None
    assert repository_of(tmp_path / "site-packages/luma_constructs") is None


def test_without_bundle_and_without_repository_there_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(runtime_asset, "_PACKAGE", tmp_path / "site-packages/luma_constructs")
    with pytest.raises(RuntimeSourceError, match="install luma-constructs from its wheel"):
        runtime_bytes.__wrapped__()


def test_the_bundle_of_the_distribution_is_taken_before_any_tree(monkeypatch, tmp_path):
    (tmp_path / "_assets").mkdir()
    (tmp_path / _bundle.BUNDLED).write_bytes(b"bundled")
    monkeypatch.setattr(runtime_asset, "_PACKAGE", tmp_path)
    assert runtime_bytes.__wrapped__() == b"bundled"
    assert not (PACKAGE / _bundle.BUNDLED).exists()  # else synth here would use an old one


def test_a_stack_has_one_runtime_and_its_file_is_the_bytes():
    assembly = synthesized(stacks.fleets)
    stored = list(assembly.folder.glob("asset.*.zip"))
    assert [path.read_bytes() for path in stored] == [runtime_bytes()]


def test_an_instance_may_fetch_that_one_file():
    stack = cdk.Stack(cdk.App(), "Luma")
    asset = RuntimeAsset.of(stack)
    assert RuntimeAsset.of(stack) is asset
    assert asset.digest == hashlib.sha256(runtime_bytes()).hexdigest()
    role = iam.Role(stack, "Role", assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"))
    grant = asset.grant_read(role)
    (statement,) = grant.principal_statements
    assert statement.actions == ["s3:GetObject"]
    (resource,) = statement.resources
    assert str(stack.resolve(resource)).rstrip("]}'").endswith(".zip")
