"""What a compile tells of each target: how it went, what a step costs there, whether it fits.

Costs are those of one optimizer step on one chip when one island computes all micro-shards; the
chip is the slowest kind that the target runs on. For `cpu` that is this machine, or, for a job in an
account, the slowest instance type of the catalogue.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from runtime.artifact import TargetPayload
from runtime.compiler import CompileResult, TargetOutcome
from runtime.plan import (
    Chip,
    Fit,
    Machine,
    Shape,
    check_chip,
    chips_of,
    estimate,
    hosts_of,
    judge,
    machine_chip,
    measure_machine,
)
from runtime.spec import JobSpec
from runtime.spec.target_name import TargetName

__all__ = [
    "State",
    "TargetReport",
    "check_fits",
    "fits_of",
    "fits_text",
    "job_statistics",
    "report_payload",
    "report_targets",
    "statistics",
]

State = Literal["compiled", "cached", "failed"]
_LISTED = 4
"""Kinds of chip that are named one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetReport:
    """One target of a job, compiled or not; figures are None where it failed.

    Attributes:
        target: its name.
        state: whether it was compiled, taken from the cache, or failed.
        seconds: how long that took.
        cached: whether the cache held it.
        payload_bytes: size of the plain payload.
        peak_memory_bytes: the most that one chip holds at any time.
        flops: floating-point operations of one chip in a step.
        bytes_moved: bytes that one chip reads and writes in a step.
        predicted_step_s: seconds of a step; None too where a figure for it is not known.
        chip: the kind of chip that the prediction is for; None where none is known.
        scrubbed: whether names, paths and kernel IR were taken out.
        plain_forms: `luma::` ops without a kernel of the target's own.
        fit: whether it fits each kind of chip that the target runs on.
        error: why it failed; None where it did not.
    """

    target: str
    state: State
    seconds: float
    cached: bool
    payload_bytes: int | None = None
    peak_memory_bytes: int | None = None
    flops: float | None = None
    bytes_moved: float | None = None
    predicted_step_s: float | None = None
    chip: str | None = None
    scrubbed: bool | None = None
    plain_forms: tuple[str, ...] | None = None
    fit: tuple[Fit, ...] = ()
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Give it as plain values."""
        return asdict(self)


def report_targets(outcomes: Sequence[TargetOutcome], spec: JobSpec) -> tuple[TargetReport, ...]:
    """Report each target of a compile, in the given order."""
    machine = functools.cache(measure_machine)  # once, and only if a target needs it
    return tuple(_report(outcome, spec, machine) for outcome in outcomes)


def report_payload(payload: TargetPayload, spec: JobSpec) -> TargetReport:
    """Report a compiled payload; `state`, `seconds` and `cached` are those of no compile."""
    outcome = TargetOutcome(
        target=payload.target,
        result=CompileResult(payload=payload, cached=False, seconds=0.0),
        error=None,
        seconds=0.0,
    )
    return report_targets([outcome], spec)[0]


def job_statistics(spec: JobSpec, parameters: int) -> dict[str, int | float | str | bool]:
    """Give a job's own figures as an artifact's statistics.

    Args:
        spec: the job.
        parameters: how many the captured model has.
    """
    return {
        "parameters": parameters,
        "micro_shards": spec.train.micro_shards,
        "micro_batch": spec.train.micro_batch,
        "seq_len": spec.train.seq_len,
        "packing": spec.data.packing,
    }


def statistics(reports: Sequence[TargetReport]) -> dict[str, int | float]:
    """Give the figures of compiled targets as an artifact's statistics, "TARGET.FIGURE"."""
    figures = ("peak_memory_bytes", "flops", "bytes_moved", "predicted_step_s")
    values = {
        f"{report.target}.{name}": getattr(report, name) for report in reports for name in figures
    }
    return {name: value for name, value in values.items() if value is not None}


def fits_of(payload: TargetPayload, spec: JobSpec) -> tuple[Fit, ...]:
    """Judge a payload against each kind of chip that its target runs on, the slowest first."""
    return _fits(payload, _chips(payload, spec, measure_machine), spec)


def fits_text(fits: Sequence[Fit]) -> str:
    """Say how a target's chips are; of many kinds only how many fit, and the smallest that does."""
    fitting = [fit for fit in fits if fit.fits]
    if len(fits) <= _LISTED or not fitting:
        return "; ".join(fit.text() for fit in fits)
    smallest = min(fitting, key=lambda fit: fit.memory_bytes)
    return f"{smallest.text()}; in all on {len(fitting)} of {len(fits)} kinds of host"


def check_fits(fits: Sequence[Fit]) -> None:
    """Refuse a target whose job fits none of the chips that it runs on.

    Args:
        fits: of one target; empty where nothing is known of its chips.

    Raises:
        CapacityError: none fits; it names the chip with the most memory, and what would help.
    """
    if fits and not any(fit.fits for fit in fits):
        check_chip(max(fits, key=lambda fit: fit.memory_bytes))


def _report(outcome: TargetOutcome, spec: JobSpec, machine: Callable[[], Machine]) -> TargetReport:
    seconds = round(outcome.seconds, 3)
    if outcome.result is None:
        text = None if outcome.error is None else outcome.error.diagnostics()
        return TargetReport(
            target=outcome.target, state="failed", seconds=seconds, cached=False, error=text
        )
    payload, cached = outcome.result.payload, outcome.result.cached
    chips = _chips(payload, spec, machine)
    costs = estimate(
        payload,
        chips[0] if chips else None,
        micro_shards=spec.train.micro_shards,
        precision=spec.model.dtype,
    )
    return TargetReport(
        target=outcome.target,
        state="cached" if cached else "compiled",
        seconds=seconds,
        cached=cached,
        payload_bytes=len(payload.to_bytes()),
        peak_memory_bytes=costs.memory.peak,
        flops=costs.flops,
        bytes_moved=costs.bytes_moved,
        predicted_step_s=costs.predicted_step_s,
        chip=costs.chip,
        scrubbed=payload.scrubbed,
        plain_forms=payload.plain_forms,
        fit=_fits(payload, chips, spec),
    )


def _fits(payload: TargetPayload, chips: Sequence[Chip], spec: JobSpec) -> tuple[Fit, ...]:
    shape = Shape.of(spec)
    return tuple(judge(payload, chip, shape) for chip in chips)


def _chips(
    payload: TargetPayload, spec: JobSpec, machine: Callable[[], Machine]
) -> tuple[Chip, ...]:
    """Give the kinds of chip that a payload runs on, the slowest first."""
    name = TargetName.parse(payload.target)
    if name.family != "cpu":
        return chips_of(name.chip)
    if spec.resources.is_local:
        return (machine_chip(machine(), name.chips),)
    return hosts_of(spec.resources.asked_threads)
