"""How `luma launch` judges what a launch came to: faults that missed, and a reader that has gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.cli import main
from runtime.run.certificate import certify
from runtime.run.launch import LaunchResult
from tests.unit.run.conftest import START


@pytest.fixture
def finished(recorded_run, monkeypatch):
    """A resumed launch that ended in a recorded run, whose kill named its fault."""
    folder = recorded_run()
    lines = [json.loads(line) for line in folder.events_file.read_text().splitlines()]
    marked = [
        event | {"fault": "kill:1@step=12"} if event["kind"] == "interruption" else event
        for event in lines
    ]
    folder.events_file.write_text("".join(json.dumps(event) + "\n" for event in marked))
    result = LaunchResult(folder=folder, outcome="done", certificate=certify(folder))
    monkeypatch.setattr("runtime.run.launch.resume", lambda *_, **__: result)
    monkeypatch.setattr(time, "time", lambda: START)
    return folder


def test_a_fault_that_struck_nobody_is_told_and_fails_the_command(finished, capsys):
    words = ["launch", "--resume", str(finished.path), "--chaos", "kill:1@step=12"]
    assert main([*words, "--json"]) == 0
    assert "error" not in json.loads(capsys.readouterr().out)
    assert main([*words, "--chaos", "kill:2@step=19", "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["certificate"]["level"] == "exact"
    assert document["error"].startswith("--chaos: 'kill:2@step=19' never struck")
    assert "'kill:2@step=19' never struck" in captured.err
    assert main([*words, "--chaos", "kill:2@step=19"]) == 1


def test_a_fault_of_an_earlier_launch_does_not_count(finished, capsys, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: START + 1000)
    words = ["launch", "--resume", str(finished.path), "--chaos", "kill:1@step=12"]
    assert main(words) == 1
    assert "never struck" in capsys.readouterr().err


def test_a_command_that_does_something_says_when_its_answer_could_not_be_written(tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "runtime.cli", "init", str(tmp_path / "job.yaml"), "--json"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    os.close(write)
    assert done.returncode == 1
    assert "standard output cannot be written" in done.stderr
    assert (tmp_path / "job.yaml").is_file()
