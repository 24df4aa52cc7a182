"""Faults that a launch inflicts on its own processes: `--chaos kill:1@step=12`.

A fault is ACTION:TARGET@step=N, with options after further colons:

- `kill:1@step=12` kills the island in slot 1 with SIGKILL in mid-step 12 (steps count from 0);
  `kill:0+2@step=5` two at once; `kill:coordinator@step=8`; `kill:all@step=9` every process, the
  coordinator included: the launch then resumes from the last durable checkpoint.
- `stop:1@step=4:for=6s` stops the island with SIGSTOP and lets it go on after the time.
- `slow:2@step=3:x4` makes the island about four times slower (SIGSTOP and SIGCONT in turn), to the
  end of the run or `:for=10s`.

A slot is a place in the fleet: slot 1 is `island-1` and, after it died, its replacement. The
schedule is a state machine without I/O: it is told of commits and asked for due signals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from runtime.spec import SpecError

Action = Literal["kill", "stop", "slow"]
SignalName = Literal["SIGKILL", "SIGSTOP", "SIGCONT"]

_FAULT = re.compile(r"(?P<action>[a-z]+):(?P<target>[a-z0-9+]+)@step=(?P<step>\d+)(?P<rest>(:.*)?)")
_DURATION = re.compile(r"for=(\d+(?:\.\d+)?)(ms|s|m)")
_FACTOR = re.compile(r"x(\d+(?:\.\d+)?)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0}
_EXPECTED = (
    "expected kill:SLOTS@step=N, stop:SLOTS@step=N:for=6s or slow:SLOTS@step=N:x4, where SLOTS is"
    " 1, 0+2, or for kill also 'coordinator' or 'all'"
)
_MID_STEP = 0.4
"""Where in a step a fault lands, as a part of the median step's time: well inside it."""

_DUTY_PERIOD_S = 0.25
"""Period of a slowed island's stop and go; short against a heartbeat, long against a poll."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault of the list.

    Attributes:
        action: what is done.
        slots: the islands' slots; empty for "the coordinator alone".
        coordinator: whether the coordinator is hit.
        everyone: whether all processes are hit.
        step: the step, from 0, in whose middle it happens.
        duration_s: how long a stop or slowness lasts; None: to the end.
        factor: how many times slower; 1 for other actions.
        text: the fault as the user wrote it.
    """

    action: Action
    slots: tuple[int, ...] = ()
    coordinator: bool = False
    everyone: bool = False
    step: int
    duration_s: float | None = None
    factor: float = 1.0
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shot:
    """A signal to send now.

    Attributes:
        signal: which one.
        slots: to the islands in these slots.
        coordinator: also to the coordinator.
        everyone: to every process of the run.
        interruption: the kind under which the event is recorded; None: not recorded.
        fault: the fault that it belongs to.
    """

    signal: SignalName
    slots: tuple[int, ...]
    coordinator: bool
    everyone: bool
    interruption: str | None
    fault: Fault


def parse_faults(texts: Iterable[str]) -> tuple[Fault, ...]:
    """Read faults from options; each text may hold several, with commas between.

    Raises:
        SpecError: one or more faults are wrong; the message holds all of them.
    """
    faults, problems = [], []
    for text in (part.strip() for whole in texts for part in whole.split(",") if part.strip()):
        try:
            faults.append(_parse_fault(text))
        except ValueError as error:
            problems.append(f"--chaos: '{text}' {error}")
    if problems:
        raise SpecError("\n".join(problems), remedy=_EXPECTED)
    return tuple(faults)


def check_faults(
    faults: Sequence[Fault], *, islands: int, total_steps: int, first_step: int = 0
) -> None:
    """Refuse faults that can never happen in this run.

    Args:
        faults: the faults.
        islands: slots of the fleet.
        total_steps: steps of the job.
        first_step: the step that a resumed run goes on with.

    Raises:
        SpecError: a slot or step is outside the run; the message holds all of them.
    """
    problems = []
    for fault in faults:
        if fault.step >= total_steps:
            problems.append(
                f"--chaos: '{fault.text}' names step {fault.step}; the job has steps 0 to"
                f" {total_steps - 1}"
            )
        if fault.step < first_step:
            problems.append(
                f"--chaos: '{fault.text}' names step {fault.step}, which is past; the run goes on"
                f" with step {first_step}"
            )
        problems += [
            f"--chaos: '{fault.text}' names slot {slot}; the run has slots 0 to {islands - 1}"
            for slot in fault.slots
            if slot >= islands
        ]
    if problems:
        raise SpecError("\n".join(problems))


def missed_faults(faults: Iterable[Fault], struck: Iterable[Mapping[str, Any]]) -> list[str]:
    """Give a line for each fault that never struck.

    Args:
        faults: what was asked for.
        struck: the launch's `interruption` events; each names its fault.
    """
    done = {event.get("fault") for event in struck}
    return [
        f"--chaos: '{fault.text}' never struck: its target was not there in step {fault.step}, or"
        " the run was over too soon"
        for fault in faults
        if fault.text not in done
    ]


def _parse_fault(text: str) -> Fault:
    match = _FAULT.fullmatch(text)
    if match is None:
        raise ValueError("is not a fault")
    action, target = match["action"], match["target"]
    if action not in {"kill", "stop", "slow"}:
        raise ValueError(f"has the action '{action}'; it must be kill, stop or slow")
    options = [option for option in match["rest"].split(":") if option]
    duration_s, factor = _parse_options(options)
    everyone, coordinator = target == "all", target == "coordinator"
    if (everyone or coordinator) and action != "kill":
        raise ValueError(f"can only kill '{target}'")
    slots = () if everyone or coordinator else _parse_slots(target)
    if action == "kill" and options:
        raise ValueError(f"has options that a kill does not take: {', '.join(options)}")
    if action == "stop" and (duration_s is None or factor is not None):
        raise ValueError("needs a time such as ':for=6s', and nothing else")
    if action == "slow" and (factor is None or not 1 < factor <= 100):
        raise ValueError("needs a factor above 1 and at most 100, such as ':x4'")
    return Fault(
        action=action,
        slots=slots,
        coordinator=coordinator,
        everyone=everyone,
        step=int(match["step"]),
        duration_s=duration_s,
        factor=factor or 1.0,
        text=text,
    )


def _parse_slots(target: str) -> tuple[int, ...]:
    parts = target.split("+")
    if not all(part.isdigit() for part in parts):
        raise ValueError(f"has the target '{target}'; it must be slots such as 1 or 0+2")
    return tuple(sorted({int(part) for part in parts}))


def _parse_options(options: list[str]) -> tuple[float | None, float | None]:
    duration_s = factor = None
    for option in options:
        if match := _DURATION.fullmatch(option):
            duration_s = float(match[1]) * _SECONDS[match[2]]
        elif match := _FACTOR.fullmatch(option):
            factor = float(match[1])
        else:
            raise ValueError(f"has an unknown option '{option}'")
    return duration_s, factor


@dataclass(slots=True)
class _Duty:
    """A slowed island: stopped and going in turn until `end`."""

    fault: Fault
    stopped: bool
    next_change: float
    end: float


@dataclass(slots=True)
class ChaosSchedule:
    """Says which signals are due, from the commits that it is told of.

    Args:
        faults: the faults, in any order.
    """

    faults: Sequence[Fault]
    _waiting: list[Fault] = field(default_factory=list)
    _timed: list[tuple[float, Shot]] = field(default_factory=list)
    _duties: list[_Duty] = field(default_factory=list)
    _commit_times: list[float] = field(default_factory=list)
    _reached: int = -1

    def __post_init__(self) -> None:
        """Take every fault as waiting."""
        self._waiting = list(self.faults)

    def step_started(self, step: int, now: float) -> None:
        """Take note that `step` is in flight since `now` (seconds, any fixed clock).

        A step that is computed again does not fire its faults again.
        """
        if step <= self._reached:
            return
        self._reached = step
        self._commit_times.append(now)
        due = [fault for fault in self._waiting if fault.step <= step]
        self._waiting = [fault for fault in self._waiting if fault.step > step]
        for fault in due:
            self._timed += self._shots(fault, now + _MID_STEP * self._step_seconds())

    def due(self, now: float) -> list[Shot]:
        """Give the signals to send now, in order, and forget them."""
        ready = sorted((entry for entry in self._timed if entry[0] <= now), key=lambda e: e[0])
        self._timed = [entry for entry in self._timed if entry[0] > now]
        shots = [shot for _, shot in ready]
        for shot in shots:
            if shot.fault.action == "slow":
                end = float("inf") if shot.fault.duration_s is None else now + shot.fault.duration_s
                self._duties.append(
                    _Duty(
                        shot.fault, stopped=True, next_change=now + _stopped_s(shot.fault), end=end
                    )
                )
        return shots + [shot for duty in list(self._duties) for shot in self._turn(duty, now)]

    def pending(self) -> list[Fault]:
        """Give the faults that have not happened yet."""
        return list(self._waiting)

    def _step_seconds(self) -> float:
        times = self._commit_times[-9:]
        gaps = [after - before for before, after in pairwise(times)]
        return median(gaps) if gaps else 0.0

    def _shots(self, fault: Fault, at: float) -> list[tuple[float, Shot]]:
        if fault.action == "kill":
            return [(at, _shot(fault, "SIGKILL", "SIGKILL"))]
        if fault.action == "slow":
            return [(at, _shot(fault, "SIGSTOP", f"slow x{fault.factor:g}"))]
        return [
            (at, _shot(fault, "SIGSTOP", f"SIGSTOP {fault.duration_s:g} s")),
            (at + (fault.duration_s or 0.0), _shot(fault, "SIGCONT", None)),
        ]

    def _turn(self, duty: _Duty, now: float) -> list[Shot]:
        if now >= duty.end:
            self._duties.remove(duty)
            return [_shot(duty.fault, "SIGCONT", None)]
        if now < duty.next_change:
            return []
        duty.stopped = not duty.stopped
        part = _stopped_s(duty.fault) if duty.stopped else _DUTY_PERIOD_S - _stopped_s(duty.fault)
        duty.next_change = now + part
        return [_shot(duty.fault, "SIGSTOP" if duty.stopped else "SIGCONT", None)]


def _stopped_s(fault: Fault) -> float:
    return _DUTY_PERIOD_S * (1 - 1 / fault.factor)


def _shot(fault: Fault, signal: SignalName, interruption: str | None) -> Shot:
    return Shot(
        signal=signal,
        slots=fault.slots,
        coordinator=fault.coordinator or fault.everyone,
        everyone=fault.everyone,
        interruption=interruption,
        fault=fault,
    )
