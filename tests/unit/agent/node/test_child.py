"""The processes of a node's works: their ends, their logs, and that they die with the daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from runtime.agent.node.child import Child, Command, log_tail
from runtime.spec.errors import RunError

PATIENCE_S = 60.0
DAEMON = """
import sys, time
from pathlib import Path
from runtime.agent.node.child import Child, Command
child = Child(Command(module=sys.argv[1], arguments=(), log=Path(sys.argv[2])))
print(child._popen.pid, flush=True)
time.sleep(600)
"""


def wait_until(holds) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Make a module of the given text that `python -m` finds."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")

    def make(text: str) -> str:
        (tmp_path / "work_of_a_test.py").write_text(textwrap.dedent(text))
        return "work_of_a_test"

    return make


def test_end_and_log_are_seen(tmp_path, module):
    name = module("import sys; print('hello', sys.argv[1:]); sys.exit(7)")
    child = Child(Command(module=name, arguments=("a", "b"), log=tmp_path / "logs" / "x.log"))
    wait_until(lambda: child.ended() is not None)
    assert child.ended() == 7
    assert child.tail() == "hello ['a', 'b']"


def test_it_can_be_asked_to_leave_and_killed_with_what_it_started(tmp_path, module):
    name = module("""
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(grandchild.pid, flush=True)
        while True:
            time.sleep(0.05)
    """)
    child = Child(Command(module=name, arguments=(), log=tmp_path / "x.log"))
    wait_until(child.tail)
    grandchild = int(child.tail().splitlines()[0])
    child.leave()
    wait_until(lambda: "asked" in child.tail())
    child.kill()
    wait_until(lambda: child.ended() is not None)
    assert child.ended() == -signal.SIGKILL
    wait_until(lambda: not alive(grandchild))
    child.kill()  # gone already: nothing happens


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_dies_with_a_daemon_that_is_killed(tmp_path, module):
    name = module("import time; print('up', flush=True); time.sleep(600)")
    log = tmp_path / "x.log"
    daemon = subprocess.Popen(
        [
            sys.executable,
            *("-c", DAEMON, name, str(log)),
        ],
        stdout=subprocess.PIPE,
    )
    assert daemon.stdout is not None
    pid = int(daemon.stdout.readline())
    wait_until(lambda: log_tail(log) == "up")
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()
    wait_until(lambda: not alive(pid))


def test_what_cannot_be_started_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be started"):
        Child(Command(module="x", arguments=(), log=tmp_path / "file" / "x.log"))


def test_a_log_that_is_not_there_has_no_lines(tmp_path):
    assert log_tail(tmp_path / "none.log") == ""
    (tmp_path / "long.log").write_text("".join(f"line {n}\n" for n in range(100)))
    assert log_tail(tmp_path / "long.log").splitlines()[-1] == "line 99"
