"""The plan of a run on this machine: islands, target, memory fit and predicted step time.

Everything comes from what the compiler states of its programs and from a quick look at the host,
so it is known before a process is started. The price is 0: the machine is the user's own.

Step time: `grad` runs once a micro-shard, the shards are dealt over the cores that the islands can
really use, and each island runs `apply` once. A program takes the larger of its arithmetic at the
rate of a matrix product, lowered by an efficiency, and its traffic at the rate of a copy.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from runtime.artifact.program import Program, TargetPayload
from runtime.plan.machine import Machine
from runtime.spec import CapacityError

_EFFICIENCY = 0.6
"""A train step reaches 0.55 to 0.75 of the matrix-product rate on CPU (facts/compile.md)."""

_PROCESS_BYTES = 400 << 20
"""An island's interpreter, XLA and code, measured with the tiny example."""

_HELD_SUMS = 3
"""Sets of integer sums that an island holds beside those of the running program: the ones before
the newest shard, the ring's totals, and freed pages that stay mapped. Measured with SmolLM2-135M on
three islands: 14.6 GiB for all processes at the peak, where this gives 15.5."""

_COORDINATOR_BYTES = 60 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalPlan:
    """What the user accepts before the first process starts.

    Attributes:
        target: the target that the islands run.
        islands: islands at the start.
        threads_per_island: threads of each.
        steps: optimizer steps of the job.
        tokens_per_step: positions of a global batch.
        parameters: trained parameters.
        island_bytes: peak memory of one island.
        writer_bytes: further memory of the one island that writes checkpoints.
        total_bytes: peak memory of all processes together.
        available_bytes: memory that the machine has left.
        fits: whether it fits, one part in twenty kept free.
        step_seconds: predicted time of a step.
        total_seconds: predicted time of all steps.
        price_usd_per_hour: 0 on this machine.
        machine: the processor and its cores, in words.
    """

    target: str
    islands: int
    threads_per_island: int
    steps: int
    tokens_per_step: int
    parameters: int
    island_bytes: int
    writer_bytes: int
    total_bytes: int
    available_bytes: int
    fits: bool
    step_seconds: float
    total_seconds: float
    price_usd_per_hour: float
    machine: str

    def to_json(self) -> dict[str, Any]:
        """Give the plan as plain values."""
        return asdict(self)

    def lines(self) -> list[tuple[str, str]]:
        """Give the plan as (label, text) rows for the terminal."""
        islands = f"{self.islands} x {self.target}, {self.threads_per_island} thread(s) each"
        memory = (
            f"{_gib(self.total_bytes)} of {_gib(self.available_bytes)} free "
            f"({_gib(self.island_bytes)} an island, +{_gib(self.writer_bytes)} for checkpoints)"
        )
        work = f"{self.steps} steps of {self.tokens_per_step:,} tokens"
        return [
            ("machine", self.machine),
            ("islands", islands),
            ("model", f"{self.parameters / 1e6:,.1f} M trained parameters"),
            ("work", work),
            ("memory", f"{memory}: {'fits' if self.fits else 'does not fit'}"),
            ("predicted", f"{self.step_seconds:.2g} s a step, {_clock(self.total_seconds)} in all"),
            ("price", "0 $/h (this machine)"),
        ]


def make_local_plan(
    payload: TargetPayload,
    machine: Machine,
    *,
    islands: int,
    threads_per_island: int,
    micro_shards: int,
    tokens_per_step: int,
    steps: int,
) -> LocalPlan:
    """Plan a run on this machine.

    Args:
        payload: the compiled programs with what they cost.
        machine: the host.
        islands: islands at the start.
        threads_per_island: threads of each.
        micro_shards: micro-shards of a step.
        tokens_per_step: positions of a global batch.
        steps: optimizer steps.
    """
    grad, update = payload.programs["grad"], payload.programs["apply"]
    state = _role_bytes(update, "param", "moment1", "moment2")
    sums = _HELD_SUMS * _role_bytes(update, "param")
    # The chips of an island are host devices of one process here, and share its memory.
    island = (
        _PROCESS_BYTES
        + sums
        + max(
            grad.chips * grad.peak_memory_bytes + _role_bytes(update, "moment1", "moment2"),
            update.chips * update.peak_memory_bytes + _role_bytes(grad, "frozen", "buffer"),
        )
    )
    total = islands * island + state + _COORDINATOR_BYTES
    seconds = _step_seconds(
        grad, update, machine, islands=islands, threads=threads_per_island, shards=micro_shards
    )
    return LocalPlan(
        target=payload.target,
        islands=islands,
        threads_per_island=threads_per_island,
        steps=steps,
        tokens_per_step=tokens_per_step,
        parameters=_role_bytes(update, "param") // 4,
        island_bytes=island,
        writer_bytes=state,
        total_bytes=total,
        available_bytes=machine.memory_available_bytes,
        fits=total <= 0.95 * machine.memory_available_bytes,
        step_seconds=seconds,
        total_seconds=seconds * steps,
        price_usd_per_hour=0.0,
        machine=f"{machine.cpu}, {machine.cores} cores",
    )


def check_fit(plan: LocalPlan) -> None:
    """Refuse a plan that does not fit into the memory.

    Raises:
        CapacityError: it does not; the message says how many islands would.
    """
    if plan.fits:
        return
    rest = 0.95 * plan.available_bytes - plan.writer_bytes - _COORDINATOR_BYTES
    fitting = max(0, int(rest // plan.island_bytes))
    remedy = (
        f"launch with --islands {fitting}"
        if fitting
        else "lower train.micro_batch or train.seq_len, or use a machine with more memory"
    )
    raise CapacityError(
        f"resources.islands: {plan.islands} islands need {_gib(plan.total_bytes)}, "
        f"this machine has {_gib(plan.available_bytes)} free",
        remedy=remedy,
    )


def _step_seconds(
    grad: Program, update: Program, machine: Machine, *, islands: int, threads: int, shards: int
) -> float:
    """Predict a step: rounds of shards over the usable cores, then `apply` on every island."""
    cores = min(islands * threads, machine.cores)
    lanes = max(1, min(islands, machine.cores // threads or 1))
    threads_used = max(1.0, cores / lanes)
    rounds = math.ceil(shards / lanes)
    apply_rounds = math.ceil(islands * threads / max(1, machine.cores))
    return rounds * _program_seconds(grad, machine, threads_used) + (
        apply_rounds * _program_seconds(update, machine, threads_used)
    )


def _program_seconds(program: Program, machine: Machine, threads: float) -> float:
    arithmetic = program.chips * program.flops / (machine.flops_per_core * threads * _EFFICIENCY)
    arrays = sum(_bytes(spec.shape, spec.dtype) for spec in (*program.inputs, *program.outputs))
    return max(arithmetic, arrays / machine.bytes_per_second)


def _role_bytes(program: Program, *roles: str) -> int:
    return sum(_bytes(s.shape, s.dtype) for s in program.inputs if s.role in roles)


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    sizes = {"bool": 1, "bfloat16": 2}
    digits = "".join(c for c in dtype if c.isdigit())
    return math.prod(shape) * sizes.get(dtype, int(digits or 8) // 8)


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 0.1 * 2**30 else f"{size / 2**20:.0f} MiB"


def _clock(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
