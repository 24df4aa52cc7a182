"""The distribution `luma-constructs`: built, installed alone, used in another CDK app."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from luma_constructs._bundle import bundle
from tests.support.cdk import ROOT, wheel_node

PACKAGE = ROOT / "luma_constructs"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

APP = '''
"""Someone's CDK app, with a package `runtime` that has nothing to do with Luma's."""
import sys
import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
import runtime
import luma_constructs
from luma_constructs import AcceleratorFleet, CoordinatorHost, PropError, Purchase, RunStore

assert runtime.MINE, "another runtime was imported"
assert luma_constructs.__file__.startswith(sys.prefix), luma_constructs.__file__
app = cdk.App(outdir=sys.argv[1])
stack = cdk.Stack(app, "Mine")
vpc = ec2.Vpc(stack, "Vpc")
store = RunStore(stack, "Store")
fleet = AcceleratorFleet(
    stack, "Fleet", fleet_name="l4", target="cuda-sm89", vpc=vpc, store=store,
    purchase=Purchase.mixed(on_demand_base=1),
)
fleet.connect_islands(CoordinatorHost(stack, "Coordinator", vpc=vpc, store=store))
try:
    AcceleratorFleet(stack, "Bad", fleet_name="BAD", target="tpu-v5e", vpc=vpc, store=store)
except PropError as error:
    assert "ExternalFleet" in str(error), error
app.synth()
for name in luma_constructs.__all__:
    getattr(luma_constructs, name)
foreign = {m.partition(".")[0] for m in sys.modules} & {"enclave_image", "torch", "boto3"}
assert not foreign, foreign
'''


def build(folder: Path) -> Path:
    """Build the wheel as users do."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(folder), str(PACKAGE)],
        check=True, timeout=300, env={**os.environ, "SOURCE_DATE_EPOCH": "1580601600"},
    )  # fmt: skip
    (wheel,) = folder.glob("luma_constructs-*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(tmp_path_factory.mktemp("wheel"))


def test_it_holds_the_package_its_data_and_the_runtime(wheel):
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {
        "luma_constructs",
        next(name for name in names if name.endswith("/METADATA")).partition("/")[0],
    }
    inside = {name.removeprefix("luma_constructs/") for name in names if ".dist-info" not in name}
    expected = {
        path.relative_to(PACKAGE).as_posix()
        for pattern in ("*.py", "py.typed", "data/*")
        for path in PACKAGE.rglob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == (expected - {"hatch_build.py"}) | {"_assets/runtime.zip"}
    metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    needed = re.findall(r"^Requires-Dist: ([a-z-]+)", metadata, re.MULTILINE)
    assert sorted(needed) == ["aws-cdk-lib", "constructs"]


def test_the_bundled_runtime_is_the_tree_s(wheel):
    bundled = zipfile.ZipFile(wheel).read("luma_constructs/_assets/runtime.zip")
    assert bundled == bundle(ROOT, PACKAGE)
    assert "runtime/agent/node/__main__.py" in zipfile.ZipFile(io.BytesIO(bundled)).namelist()


def test_the_same_sources_give_the_same_wheel_and_leave_the_tree_alone(wheel, tmp_path):
    assert build(tmp_path).read_bytes() == wheel.read_bytes()
    assert not (PACKAGE / "_assets").exists()


def test_it_works_alone_beside_another_runtime(wheel, tmp_path):
    """An environment with nothing but this wheel and what it asks for, which this one lends it."""
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    site = next(environment.glob("lib/python3*/site-packages"))
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel)],
        check=True, timeout=300,
    )  # fmt: skip
    lend(site, ["aws-cdk-lib", "constructs"])
    app = tmp_path / "app"
    (app / "runtime").mkdir(parents=True)
    (app / "runtime/__init__.py").write_text("MINE = True\n")
    (app / "app.py").write_text(APP)
    out = tmp_path / "out"
    done = subprocess.run(
        [str(environment / "bin/python"), "app.py", str(out)], cwd=app, capture_output=True,
        text=True, timeout=300, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "JSII_NODE": str(wheel_node())},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    template = json.loads((out / "Mine.template.json").read_text())
    kinds = [resource["Type"] for resource in template["Resources"].values()]
    assert kinds.count("AWS::AutoScaling::AutoScalingGroup") == 2
    (asset,) = out.glob("asset.*.zip")
    assert asset.read_bytes() == zipfile.ZipFile(wheel).read("luma_constructs/_assets/runtime.zip")


def lend(site: Path, names: list[str]) -> None:
    """Link distributions of this environment, with all that they ask for, into another one."""
    seen, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or []:
            top = file.parts[0]
            source = Path(distribution.locate_file(top))
            if top not in ("..", "__pycache__") and not (site / top).exists() and source.exists():
                (site / top).symlink_to(source)
        for line in distribution.requires or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(needed.name)
