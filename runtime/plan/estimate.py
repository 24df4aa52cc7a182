"""What a compiled job takes on one chip of its target, and how long a step will be.

All figures come from the compiled programs alone, so they are known before anything is rented.

Memory: the larger of `grad` beside the resident moments and `apply` beside the frozen arrays and
buffers. Time: a roofline (Williams et al. 2009) for each program, the larger of its arithmetic at
the chip's peak lowered by an efficiency, and its traffic at the memory bandwidth lowered by one;
`grad` runs once a micro-shard, `apply` once a step. Exchange between chips and islands is not in
it: the catalogue holds no figure of a chip's own links.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from runtime.artifact.program import Program, TargetPayload, TensorSpec
from runtime.plan.chips import Chip, Precision

__all__ = ["Estimate", "Memory", "Work", "estimate", "memory_of", "tensor_bytes", "work_of"]

_BANDWIDTH_EFFICIENCY = 0.8
"""Share of the memory bandwidth that streaming programs reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What takes the memory of one chip while it trains, bytes.

    Attributes:
        state: parameters and both moments.
        sums: the integer gradient sums, before and after a micro-shard.
        frozen: frozen parameters and buffers.
        activations: all else that `grad` needs: activations, gradients, the batch, the code.
        apply: what the optimizer step takes in all.
        stated: whether the compiler stated what `grad` needs; else the arrays alone are counted,
            which is the least that it can be.
    """

    state: int
    sums: int
    frozen: int
    activations: int
    apply: int
    stated: bool

    @property
    def fixed(self) -> int:
        """What is there while `grad` runs, whatever the batch."""
        return self.state + self.sums + self.frozen

    @property
    def peak(self) -> int:
        """The most at any time."""
        return max(self.fixed + self.activations, self.apply)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one call of a program is, on one chip.

    Attributes:
        flops: floating-point operations.
        bytes_moved: bytes read and written, as the compiler states them.
        array_bytes: bytes of arguments and results alone: what goes to memory where the rest stays
            in caches; 0 where they are not known.
    """

    flops: float
    bytes_moved: float
    array_bytes: float

    def seconds(self, chip: Chip, precision: Precision) -> float | None:
        """Give the time on a chip (roofline); None where a figure is not known."""
        peak = chip.flops_per_s[precision]
        if peak is None or chip.bytes_per_s is None or not (self.flops or self.bytes_moved):
            return None
        moved = self.array_bytes if chip.cached else self.bytes_moved
        arithmetic = self.flops / (peak * chip.efficiency)
        return max(arithmetic, moved / (chip.bytes_per_s * _BANDWIDTH_EFFICIENCY))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a step costs on one chip of a target when one island computes all of it.

    Attributes:
        target: the target.
        chips: chips of the island.
        memory: what takes the memory of one chip.
        flops: floating-point operations of one chip in a step.
        bytes_moved: bytes that one chip reads and writes in a step.
        chip: the kind of chip that the time is for; None where none is known.
        predicted_step_s: seconds of a step; None where the chip's or the programs' figures are
            not known.
    """

    target: str
    chips: int
    memory: Memory
    flops: float
    bytes_moved: float
    chip: str | None
    predicted_step_s: float | None


def estimate(
    payload: TargetPayload,
    chip: Chip | None,
    *,
    micro_shards: int,
    precision: Precision = "fp32",
) -> Estimate:
    """Estimate a compiled job on one kind of chip.

    Args:
        payload: the compiled programs.
        chip: what it would run on; None where nothing is known of it.
        micro_shards: M of the job.
        precision: what matrix products are computed in.
    """
    grad, update = payload.programs["grad"], payload.programs["apply"]
    seconds = None
    if chip is not None:
        parts = [work_of(program).seconds(chip, precision) for program in (grad, update)]
        if parts[0] is not None and parts[1] is not None:
            seconds = micro_shards * parts[0] + parts[1]
    return Estimate(
        target=payload.target,
        chips=grad.chips,
        memory=memory_of(payload),
        flops=micro_shards * grad.flops + update.flops,
        bytes_moved=micro_shards * grad.bytes_moved + update.bytes_moved,
        chip=None if chip is None else chip.name,
        predicted_step_s=seconds,
    )


def memory_of(payload: TargetPayload) -> Memory:
    """Give what takes the memory of one chip while it trains."""
    grad, update = payload.programs["grad"], payload.programs["apply"]
    params, sums = _held(grad, "param"), 2 * _held(grad, "grad_sum")
    frozen = _held(grad, "frozen", "buffer")
    return Memory(
        state=params + _held(update, "moment1", "moment2"),
        sums=sums,
        frozen=frozen,
        activations=max(0, _peak(grad) - params - frozen - sums),
        apply=_peak(update) + frozen,
        stated=grad.peak_memory_bytes > 0,
    )


def work_of(program: Program) -> Work:
    """Give what one call of a program is, on one chip."""
    given, results = _arrays(program)
    return Work(
        flops=program.flops,
        bytes_moved=program.bytes_moved,
        array_bytes=sum(given) + sum(results),
    )


def tensor_bytes(spec: TensorSpec, shape: tuple[int, ...] | None = None) -> int:
    """Give the size of a whole array, or of a part of it with another shape."""
    sizes = {"bool": 1, "bfloat16": 2}
    digits = "".join(c for c in spec.dtype if c.isdigit())
    held = spec.shape if shape is None else shape
    return math.prod(held) * sizes.get(spec.dtype, int(digits or 8) // 8)


def _held(program: Program, *roles: str) -> int:
    """Give the bytes that one chip holds of the inputs with these roles."""
    sizes = zip(program.inputs, _arrays(program)[0], strict=True)
    return sum(size for spec, size in sizes if spec.role in roles)


def _peak(program: Program) -> int:
    """Give the memory of a call on one chip: what the compiler states, else the arrays alone."""
    # Arguments and results are there at once, whatever a compiler states; a taken-over one once.
    given, results = _arrays(program)
    taken_over = sum(given[i] for i in program.donated)
    return max(program.peak_memory_bytes, sum(given) + sum(results) - taken_over)


def _arrays(program: Program) -> tuple[list[int], list[int]]:
    """Give the bytes that one chip holds of each argument and of each result."""
    split = program.partitions
    if split is None:
        given = [tensor_bytes(spec) for spec in program.inputs]
        return given, [tensor_bytes(spec) for spec in program.outputs]
    sides = ((program.inputs, split.inputs), (program.outputs, split.outputs))
    given, results = (
        [
            tensor_bytes(spec, split.part(spec.shape, cut))
            for spec, cut in zip(tensors, cuts, strict=True)
        ]
        for tensors, cuts in sides
    )
    return given, results
