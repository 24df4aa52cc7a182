"""`make synth`: what it writes, what it says, and that a finding is no success."""

from __future__ import annotations

import json

import pytest

from tests.e2e.synth import __main__ as command
from tests.e2e.synth.checks import Check
from tests.e2e.synth.findings import Finding
from tests.e2e.synth.stack import default_stack
from tests.support.cdk import synthesized

pytestmark = pytest.mark.timeout(600)  # a busy machine synthesizes slowly

FINDING = Finding("planted", "Luma/Somewhere", "is wrong", "mend it")


@pytest.fixture
def out(tmp_path, monkeypatch):
    """Has the command write into a folder of its own, and look at the stack that is there already."""
    monkeypatch.setattr(command, "OUT", tmp_path / "synth")
    monkeypatch.setattr(
        command, "assembled", lambda build, folder, nag: synthesized(default_stack, nag=True)
    )
    return tmp_path / "synth"


def run(monkeypatch, capsys, found: list[Finding], *arguments: str) -> tuple[int, str, str]:
    check = Check("planted", "what is planted", lambda assembly: found)
    monkeypatch.setattr(command, "_every", lambda: (check,))
    code = command.main(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_nothing_found_is_success(out, monkeypatch, capsys):
    code, told, said = run(monkeypatch, capsys, [])
    assert (code, told) == (0, "")
    assert "passed   planted: what is planted" in said
    template = json.loads((out / "template.json").read_text(encoding="utf-8"))
    assert len(template["Resources"]) >= 140
    assert len(list((out / "definitions").glob("*.json"))) == 3


def test_a_finding_is_a_failure_and_says_what_to_do(out, monkeypatch, capsys):
    code, told, said = run(monkeypatch, capsys, [FINDING], "--json")
    assert code == 1
    assert "FAILED   planted" in said
    assert "Luma/Somewhere: is wrong; mend it" in said
    report = json.loads(told)
    assert report == json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["findings"][0]["remedy"] == "mend it"
    assert report["idle_usd_per_month"]
    assert report["checks"] == ["planted"]
