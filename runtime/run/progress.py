"""Live progress on standard error: a status line on a terminal, plain lines elsewhere.

`Reporter` is what the pipeline talks to; it knows stages and events, never where they are shown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from runtime.run.events import Event
from runtime.run.quiet import standard_error

_LINE_EVERY_S = 5.0
"""Without a terminal a step's line appears at most so often; other events always."""


class Reporter(Protocol):
    """What the pipeline tells while it works."""

    def stage(self, text: str) -> None:
        """Tell of a stage, such as capture or compile."""

    def rows(self, title: str, rows: Iterable[tuple[str, str]]) -> None:
        """Show a small table: the plan, the certificate."""

    def start_training(self, total_steps: int) -> None:
        """Show the live status from now on."""

    def event(self, event: Event) -> None:
        """Tell of an event of the run."""

    def end_training(self) -> None:
        """End the live status."""


class SilentReporter:
    """Tells nothing."""

    def stage(self, text: str) -> None:
        """Tell nothing."""

    def rows(self, title: str, rows: Iterable[tuple[str, str]]) -> None:
        """Tell nothing."""

    def start_training(self, total_steps: int) -> None:
        """Tell nothing."""

    def event(self, event: Event) -> None:
        """Tell nothing."""

    def end_training(self) -> None:
        """Tell nothing."""


@dataclass(slots=True)
class TrainingState:
    """What the status line shows, from events.

    Attributes:
        total_steps: steps of the job.
        step: applied or committed steps so far.
        loss: the last committed loss.
        tokens_per_s: supervised tokens a second over the last steps.
        up: islands that are in the fleet.
        down: islands lost so far.
        checkpoint: applied steps of the last durable checkpoint.
    """

    total_steps: int
    step: int = 0
    loss: float | None = None
    tokens_per_s: float | None = None
    up: list[str] = field(default_factory=list)
    down: int = 0
    checkpoint: int | None = None
    _recent: list[tuple[float, int]] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Take one event in."""
        kind, island = event["kind"], event.get("island", "")
        if kind == "commit":
            self.step, self.loss = event["step"] + 1, event["loss"]
            self._recent = [*self._recent[-8:], (event["time"], event["tokens"])]
            span = self._recent[-1][0] - self._recent[0][0]
            if span > 0:
                self.tokens_per_s = sum(tokens for _, tokens in self._recent[1:]) / span
        elif kind == "joined" and island not in self.up:
            self.up.append(island)
        elif kind in {"left", "exited"} and island in self.up:
            self.up.remove(island)
            self.down += event.get("reason") not in {"notice", "done", "stopped"}
        elif kind == "checkpoint":
            self.checkpoint = event["step"]

    def text(self) -> str:
        """Give the status line."""
        parts = [f"step {self.step}/{self.total_steps}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:,.0f} tokens/s")
        parts.append(f"{len(self.up)} up, {self.down} lost")
        if self.checkpoint is not None:
            parts.append(f"checkpoint {self.checkpoint}")
        return "  ".join(parts)


def describe_event(event: Event) -> str | None:
    """Give a line for an event that a user wants to read of, or None."""
    describe = _DESCRIPTIONS.get(event["kind"])
    return None if describe is None else describe(event)


_DESCRIPTIONS: dict[str, Callable[[Event], str | None]] = {
    "interruption": lambda e: f"chaos: {e['how']} to {e['island']} in step {e['at_step']}",
    "exited": lambda e: f"{e['island']} ended with exit code {e['code']}" if e["code"] else None,
    "left": lambda e: f"{e['island']} left: {e['reason']}",
    "joined": lambda e: f"{e['island']} joined",
    "coordinator_started": lambda e: (
        "the coordinator is back and goes on from its log" if e["restart"] else None
    ),
    "redo": lambda e: f"step {e['step']} is redone ({e['reason']})",
    "restored": lambda e: (
        f"no island was left: going on from the checkpoint of step {e['to_step']}"
    ),
    "checkpoint": lambda e: f"checkpoint {e['step']} is durable ({e['seconds']:.1f} s behind)",
    "checkpoint_failed": lambda e: f"checkpoint {e['step']} failed: {e['error']}",
    "failed": lambda e: f"failed: {e['error']}",
}


class ConsoleReporter:
    """Shows progress on standard error.

    Args:
        console: where; the default is standard error, with `NO_COLOR` respected, silent once
            it has gone.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=cast("TextIO", standard_error()), highlight=False)
        self._live: Live | None = None
        self._state: TrainingState | None = None
        self._last_line = 0.0

    def stage(self, text: str) -> None:
        """Print a stage's line."""
        self._console.print(f"[dim]•[/dim] {escape(text)}", soft_wrap=True)

    def rows(self, title: str, rows: Iterable[tuple[str, str]]) -> None:
        """Print a table without a box."""
        self._console.print(f"[bold]{escape(title)}[/bold]")
        listed = list(rows)
        width = max((len(label) for label, _ in listed), default=0)
        for label, text in listed:
            name = escape(label.ljust(width))
            self._console.print(f"  [cyan]{name}[/cyan]  {escape(text)}", soft_wrap=True)

    def start_training(self, total_steps: int) -> None:
        """Begin the status line, on a terminal."""
        self._state = TrainingState(total_steps)
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()

    def event(self, event: Event) -> None:
        """Update the status, and print the line of a notable event."""
        state = self._state
        if state is None:
            return
        state.take(event)
        line = describe_event(event)
        if line is not None:
            self._console.print(f"  {escape(line)}", soft_wrap=True)
        if self._live is not None:
            self._live.update(Text(f"  {state.text()}", style="bold"))
        elif event["kind"] == "commit" and self._time_for_line(state):
            self._console.print(f"  {state.text()}", soft_wrap=True)

    def end_training(self) -> None:
        """End the status line and leave its last state."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._state is not None:
            self._console.print(f"  {self._state.text()}", soft_wrap=True)
            self._state = None

    def _time_for_line(self, state: TrainingState) -> bool:
        now = time.monotonic()
        due = now - self._last_line >= _LINE_EVERY_S or state.step in {1, state.total_steps}
        if due:
            self._last_line = now
        return due


def default_reporter(*, quiet: bool = False) -> Reporter:
    """Give the reporter for standard error, or a silent one."""
    return SilentReporter() if quiet or sys.stderr is None else ConsoleReporter()
