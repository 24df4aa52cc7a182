"""Progress on a standard error that goes away, and what each signal asks of a launch."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest

from runtime.run.interrupt import StopSwitch
from runtime.run.progress import ConsoleReporter
from runtime.run.quiet import QuietStream

REPORT = """
import sys, time
from runtime.run.progress import ConsoleReporter
reporter = ConsoleReporter()
reporter.stage("one")
print("ready", flush=True)
sys.stdin.readline()
reporter.start_training(30)
for step in range(20):
    reporter.stage("x" * 5000)
    reporter.event({"kind": "commit", "time": float(step), "step": step, "loss": 1.0, "tokens": 9})
    time.sleep(0.01)
reporter.end_training()
reporter.rows("plan", [("a", "b")])
print("done", flush=True)
"""


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_a_reporter_whose_standard_error_goes_away_goes_on_silently(kind):
    ours, theirs = os.pipe() if kind == "pipe" else pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", REPORT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        start_new_session=True,
    )
    os.close(theirs)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    os.close(ours)  # the reader, or the terminal, has gone
    said, _ = child.communicate("go\n", timeout=60)
    assert said == "done\n"
    assert child.returncode == 0


def test_what_can_be_written_is_written(capfd):
    ConsoleReporter().stage("loading [x]")
    stream = QuietStream(sys.stderr)
    assert stream.write("more\n") == 5
    stream.flush()
    assert "loading [x]" in (text := capfd.readouterr().err)
    assert text.endswith("more\n")
    assert QuietStream(None).write("nowhere") == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_training_asks_for_a_resumable_stop(number):
    told = []
    with StopSwitch(on_first=lambda: told.append(1)) as stop, stop.armed():
        os.kill(os.getpid(), number)
        assert stop.asked()
        assert stop.by_signal()
        if number != signal.SIGINT:
            os.kill(os.getpid(), number)  # only a second Ctrl-C ends it at once
    assert told == [1]


def test_before_training_a_hang_up_ends_the_launch():
    with StopSwitch(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGHUP)


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSwitch() as stop, stop.armed():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.asked()
    finally:
        signal.signal(signal.SIGHUP, before)
