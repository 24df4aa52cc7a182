"""What a compiled job costs on each of its targets, whatever chip or island runs it.

From the payloads, which need the artifact's key, everything is known: memory, the work of one
micro-shard and of the optimizer step, and the sums that islands exchange. From the statistics, which
anybody can read, memory and the work of a whole step are; the optimizer step is then counted as part
of the shards' work, and the exchange is not counted, so a prediction is a little too good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.artifact.program import TargetPayload
from runtime.plan.chips import Chip, Precision
from runtime.plan.estimate import Work, memory_of, tensor_bytes, work_of
from runtime.plan.fit import Fit, Shape, judge, judge_bytes
from runtime.spec import JobSpec
from runtime.spec.target_name import TargetName

__all__ = ["TargetCosts", "costs_of_payloads", "costs_of_statistics"]

_FIGURES = ("peak_memory_bytes", "flops", "bytes_moved")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCosts:
    """What a job costs on one target.

    Attributes:
        target: the target.
        chips: chips of its island.
        memory_bytes: the most that one chip holds at any time.
        shard: work of one micro-shard on one chip.
        update: work of the optimizer step on one chip; None where it is within `shard`.
        sums_bytes: integer sums that an island sends around in a step; None where not known.
        payload: the programs themselves, where they were opened.
    """

    target: str
    chips: int
    memory_bytes: int
    shard: Work
    update: Work | None
    sums_bytes: int | None
    payload: TargetPayload | None = field(default=None, repr=False, compare=False)

    def fit(self, chip: Chip, shape: Shape) -> Fit:
        """Judge the job against a chip's memory."""
        if self.payload is not None:
            return judge(self.payload, chip, shape)
        return judge_bytes(self.target, self.memory_bytes, chip)

    def shard_seconds(self, chip: Chip, precision: Precision) -> float | None:
        """Give the time of one micro-shard; None where a figure is not known."""
        return self.shard.seconds(chip, precision)

    def update_seconds(self, chip: Chip, precision: Precision) -> float | None:
        """Give the time of the optimizer step, 0 where it is within the shards' work."""
        return 0.0 if self.update is None else self.update.seconds(chip, precision)


def costs_of_payloads(payloads: Mapping[str, TargetPayload]) -> dict[str, TargetCosts]:
    """Read what a job costs from its compiled programs."""
    return {target: _of_payload(payload) for target, payload in payloads.items()}


def costs_of_statistics(
    statistics: Mapping[str, int | float | str | bool], spec: JobSpec
) -> dict[str, TargetCosts]:
    """Read what a job costs from the public figures of its artifact.

    Args:
        statistics: of the manifest, `TARGET.FIGURE`.
        spec: the job that was compiled; its micro-shards divide a step's work.
    """
    targets = [name.rpartition(".")[0] for name in statistics if name.endswith(".flops")]
    found = {target: _of_statistics(target, statistics, spec) for target in targets}
    return {target: costs for target, costs in found.items() if costs is not None}


def _of_payload(payload: TargetPayload) -> TargetCosts:
    grad, update = payload.programs["grad"], payload.programs["apply"]
    sums = sum(tensor_bytes(spec) for spec in grad.inputs if spec.role == "grad_sum")
    return TargetCosts(
        target=payload.target,
        chips=grad.chips,
        memory_bytes=memory_of(payload).peak,
        shard=work_of(grad),
        update=work_of(update),
        sums_bytes=sums,
        payload=payload,
    )


def _of_statistics(
    target: str, statistics: Mapping[str, int | float | str | bool], spec: JobSpec
) -> TargetCosts | None:
    """Read one target's figures; None where they are not those that a compile writes."""
    try:
        chips = TargetName.parse(target).chips
    except ValueError:
        return None
    figures = [_number(statistics.get(f"{target}.{name}")) for name in _FIGURES]
    memory, flops, moved = figures
    if memory is None or flops is None or moved is None:
        return None
    shards = spec.train.micro_shards
    return TargetCosts(
        target=target,
        chips=chips,
        memory_bytes=int(memory),
        shard=Work(flops=flops / shards, bytes_moved=moved / shards, array_bytes=0.0),
        update=None,
        sums_bytes=None,
    )


def _number(value: object) -> float | None:
    """Take a figure that is a number; statistics may hold texts too."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
