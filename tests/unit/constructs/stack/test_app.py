"""app.py as the CDK's command line runs it: a cloud assembly, or a line for each mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cdk import ROOT, flags

pytestmark = pytest.mark.timeout(600)  # a busy machine synthesizes slowly


def run_app(folder: Path, **context) -> subprocess.CompletedProcess[str]:
    """Run app.py with an environment that has no credentials."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CDK_"))
    }
    environment["CDK_OUTDIR"] = str(folder)
    environment["CDK_CONTEXT_JSON"] = json.dumps({**flags(), **context})
    environment.pop("JSII_NODE", None)  # app.py finds the wheel's Node itself
    return subprocess.run(
        [sys.executable, "app.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )


def test_the_app_writes_an_assembly_without_credentials(tmp_path):
    done = run_app(tmp_path, stack="Blue", fleets="a:cpu:2,b:cuda-sm89:4:on-demand", heartbeat="5")
    assert done.returncode == 0, done.stderr
    assert "Node" not in done.stderr  # jsii's banner on an old one
    template = json.loads((tmp_path / "Blue.template.json").read_text(encoding="utf-8"))
    names = [
        resource["Properties"]["Name"]
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::SSM::Parameter"
    ]
    assert {"/luma/Blue/fleets/a", "/luma/Blue/fleets/b"} <= set(names)
    assert "missing" not in json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))


def test_mistakes_end_with_exit_code_2_and_no_traceback(tmp_path):
    done = run_app(tmp_path, flets="a:cpu", budget="many")
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert [line.split(":")[0] for line in lines] == ["context flets", "context budget"]
    assert "write fleets" in lines[0]
    assert not list(tmp_path.iterdir())


def test_a_mistake_that_a_construct_finds_is_told_the_same_way(tmp_path):
    done = run_app(tmp_path, fleets="a:cuda-sm12")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "'cuda-sm12'" in done.stderr


def test_cdk_json_runs_this_app_and_pins_every_recommended_flag():
    project = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))
    assert project["app"] == ".venv/bin/python app.py"
    assert len(project["context"]) >= 100
    assert all(key.startswith("@aws-cdk") for key in project["context"])
