"""Real processes: waits that end, consoles that are read, and nothing left running."""

import os
import signal
import sys
import time

import pytest

from tests.e2e.boot.processes import read_event, started, wait_for
from tests.e2e.boot.tools import BootError

PATIENCE_S = 60.0
# A program whose child ignores SIGTERM, as does it; both tell their process ids.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    time.sleep(1000)
print(os.getpid(), child, flush=True)
time.sleep(1000)
"""


def python(text):
    return [sys.executable, "-u", "-c", text]


def first_line(running):
    return running.lines()[0] if running.lines() else None


def is_gone(pid):
    """Say whether a process is no more; one that nobody has collected yet runs no longer."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(pids):
    end = time.monotonic() + PATIENCE_S
    while not all(map(is_gone, pids)):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("error", [None, ValueError("a failed boot"), KeyboardInterrupt()])
def test_no_process_of_a_group_outlives_the_block(tmp_path, monkeypatch, error):
    monkeypatch.setattr("tests.e2e.boot.processes._GRACE_S", 0.05)
    pids = []

    def block():
        with started("stubborn", python(STUBBORN), tmp_path / "out") as running:
            told = wait_for(
                "pids", lambda: first_line(running), [running], timeout_s=PATIENCE_S
            ).split()
            pids.extend(map(int, told))
            if error is not None:
                raise error

    if error is None:
        block()
    else:
        with pytest.raises(type(error)):
            block()
    assert len(pids) == 2
    wait_until_gone(pids)


def test_a_process_that_ends_well_when_asked_is_not_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.e2e.boot.processes._GRACE_S", PATIENCE_S)
    text = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("up", flush=True)
time.sleep(1000)
"""
    with started("polite", python(text), tmp_path / "out") as running:
        wait_for("up", lambda: first_line(running), [running], timeout_s=PATIENCE_S)
    assert running.process.returncode == 7


def test_a_program_that_is_not_there_is_named(tmp_path):
    with (
        pytest.raises(BootError, match=r"QEMU: cannot be started: .*no-such"),
        started("QEMU", [str(tmp_path / "no-such")], tmp_path / "out"),
    ):
        pass


def test_a_wait_ends_with_the_process_and_tells_its_last_words(tmp_path):
    text = "print('Kernel panic - not syncing'); raise SystemExit(3)"
    with (
        started("QEMU", python(text), tmp_path / "out") as running,
        pytest.raises(BootError, match="boot: QEMU ended with exit code 3") as caught,
    ):
        wait_for("boot", lambda: None, [running], timeout_s=PATIENCE_S)
    assert "Kernel panic - not syncing" in str(caught.value)


def test_what_a_process_wrote_before_its_end_still_counts(tmp_path):
    with started("QEMU", python("print('ready')"), tmp_path / "out") as running:
        running.process.wait(PATIENCE_S)
        assert wait_for("boot", lambda: first_line(running), [running], timeout_s=0) == "ready"


def test_a_wait_ends_with_its_time(tmp_path):
    with started("QEMU", python("import time; time.sleep(1000)"), tmp_path / "out") as running:
        with pytest.raises(BootError, match="boot: not within 0 s; QEMU says"):
            wait_for("boot", lambda: None, [running], timeout_s=0)
        os.kill(running.process.pid, signal.SIGKILL)


def test_the_service_is_heard_among_a_kernels_lines(tmp_path):
    text = r"""
import sys
sys.stdout.write('[    0.000000] Linux version 6.12\r\n')
sys.stdout.write('{"time": "t", "severity": "info", "event": "listening", "address": "a"}\r\n')
sys.stdout.write('[    9.1] {"event": "listening"}\r\n')
sys.stdout.buffer.write(b'\xff\xfe {\r\n')
sys.stdout.write('{"event": "cut')
"""
    with started("QEMU", python(text), tmp_path / "out") as running:
        running.process.wait(PATIENCE_S)
        events = running.events()
        assert [event["event"] for event in events] == ["listening"]
        assert events[0]["address"] == "a"
        assert len(running.lines()) == 4


@pytest.mark.parametrize(
    "line", ["", "x", "[1]", '"event"', "{}", '{"event": 1}', "[" * 100_000, "NaN"]
)
def test_other_lines_are_no_events(line):
    assert read_event(line) is None
