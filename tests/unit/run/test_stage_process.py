"""A stage's process: results, errors and deaths reach the launcher, and no child stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from runtime.run.stage import run_stage
from runtime.spec import CaptureError, RunError

STAGE = """
import os, signal, sys, time
from runtime.run.stage import serve_stage
from runtime.spec import CaptureError

class OwnError(CaptureError):
    pass

def work(request, progress):
    progress("one")
    print("noise of a library")
    os.system("echo noise of its child")
    progress("two")
    match request["do"]:
        case "error":
            raise OwnError("model: it is wrong", remedy="mend it", exit_code=2)
        case "crash":
            raise ZeroDivisionError("by zero")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "hang":
            progress(str(os.getpid()))
            time.sleep(60)
    return {"answer": 42}

serve_stage(work)
"""


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Give a function that runs the stage above and collects its progress."""
    (tmp_path / "stage_of_the_test.py").write_text(STAGE)
    paths = [str(tmp_path), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    lines: list[str] = []

    def run(do: str):
        return run_stage(
            "stage_of_the_test", {"do": do}, log=tmp_path / "log", progress=lines.append
        )

    run.lines = lines
    run.log = tmp_path / "log"
    return run


def test_the_result_and_the_progress_come_through_past_what_libraries_print(stage):
    assert stage("work") == {"answer": 42}
    assert stage.lines == ["one", "two"]
    assert (
        stage.log.read_text().split("\n")[:2]
        == [
            "noise of its child",
            "noise of a library",
        ]
        or "noise of a library" in stage.log.read_text()
    )


def test_an_error_keeps_its_class_message_remedy_and_exit_code(stage):
    with pytest.raises(CaptureError) as caught:
        stage("error")
    assert caught.value.diagnostics() == "model: it is wrong\n  remedy: mend it"
    assert caught.value.exit_code == 2


def test_a_crash_is_reported_with_the_end_of_its_log(stage):
    with pytest.raises(RunError, match="ZeroDivisionError: by zero") as caught:
        stage("crash")
    assert "  | ZeroDivisionError: by zero" in caught.value.message


def test_a_killed_child_points_at_the_memory(stage):
    with pytest.raises(RunError, match="SIGKILL") as caught:
        stage("killed")
    assert "memory" in caught.value.diagnostics()


def test_a_child_that_just_ends_is_an_error(stage):
    with pytest.raises(RunError, match="exit code 7 and no answer"):
        stage("exit")


def test_a_child_ends_when_its_parent_is_killed(stage, tmp_path):
    script = (
        "from pathlib import Path; from runtime.run.stage import run_stage\n"
        f"run_stage('stage_of_the_test', {{'do': 'hang'}}, log=Path({str(tmp_path / 'log')!r}),"
        " progress=lambda line: print(line, flush=True))"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int([parent.stdout.readline() for _ in range(3)][-1])
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
