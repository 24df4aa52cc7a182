"""The whole story, as `make emulate` tells it, and its report as scripts read it."""

import json
import subprocess
import sys

import pytest

from tests.e2e.emulate.report import Report
from tests.emulator.node import ROOT


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_everything_holds_in_the_emulated_account():
    ended = subprocess.run(
        [sys.executable, "-m", "tests.e2e.emulate", "--json"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report == json.loads((ROOT / "build" / "emulate" / "report.json").read_text())
    assert report["state_hash"] == report["reference_state_hash"]
    assert [failover["path"] for failover in report["failovers"]] == ["replaced", "moved"]
    assert report["destroyed"]


def test_a_report_holds_only_where_everything_does(tmp_path):
    report = Report()
    assert not report.held  # nothing was checked
    report.check("one", 1)
    assert report.held
    report.check("two", "")
    assert not report.held
    report.checks["two"] = True
    report.problem = "it broke"
    assert not report.held
    report.write(tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    promised = {"deploy_s", "job_state", "state_hash", "reference_state_hash", "failovers"}
    assert promised | {"branches_executed", "branches_total", "destroyed"} <= set(written)
