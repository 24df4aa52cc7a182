"""Progress: what a user sees of a run, on a terminal and without one."""

from __future__ import annotations

import io
import json

from rich.console import Console

from runtime.run.progress import ConsoleReporter, TrainingState, describe_event


def events_of(folder) -> list[dict]:
    return [json.loads(line) for line in folder.events_file.read_text().splitlines()]


def test_the_status_line_follows_the_events(recorded_run):
    state = TrainingState(total_steps=20)
    for event in events_of(recorded_run()):
        state.take(event)
    text = state.text()
    assert text.startswith("step 20/20  loss 1.4")
    # 8 steps of 2,048 tokens in 0.4 s each, and the 1.1 s that the kill cost.
    assert f"{8 * 2048 / 4.3:,.0f} tokens/s" in text
    assert "3 up, 1 lost" in text
    assert "checkpoint 20" in text


def test_without_a_terminal_there_are_plain_lines_and_no_control_codes(recorded_run):
    stream = io.StringIO()
    reporter = ConsoleReporter(Console(file=stream, width=200, force_terminal=False))
    reporter.stage("compiling [a/b]")
    reporter.start_training(20)
    for event in events_of(recorded_run()):
        reporter.event(event)
    reporter.end_training()
    text = stream.getvalue()
    assert "\x1b" not in text
    assert "compiling [a/b]" in text
    assert "chaos: SIGKILL to island-1 in step 12" in text
    assert "step 1/20" in text
    assert "step 20/20" in text


def test_a_terminal_without_colour_gets_no_colour(monkeypatch, recorded_run):
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    reporter = ConsoleReporter(Console(file=stream, width=120, force_terminal=True))
    reporter.rows("plan", [("islands", "3 x cpu")])
    assert "\x1b[3" not in stream.getvalue()


def test_unknown_events_are_no_line():
    assert describe_event({"kind": "of another version", "time": 0.0}) is None
