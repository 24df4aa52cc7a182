"""Whether a compiled job fits into a chip's memory, and if not, what would make it fit.

Judged from the compiled programs and the catalogue, so that nothing is rented for a job that cannot
run. The ways out carry numbers, which follow from what takes the memory: activations grow with the
micro-batch and shrink with checkpointing; parameters, moments and gradient sums are divided among
the chips of an island; LoRA trains few parameters, so the rest needs neither moments nor sums.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

from runtime.artifact.program import TargetPayload
from runtime.plan.chips import Chip
from runtime.plan.estimate import Memory, memory_of
from runtime.spec import CapacityError, JobSpec
from runtime.spec.target_name import TargetName

__all__ = ["Fit", "Shape", "check_chip", "judge", "judge_bytes"]

_USABLE = 0.95
"""Part of a chip's memory that programs may take: drivers and fragmentation need the rest."""

_CHECKPOINTED = 0.3
"""Part of the activations that stays when each layer's are computed again in the backward pass: the
layers' inputs and one layer whole. A rough figure, since it depends on the number of layers; the
compiler states the true one."""

_LORA_SHARE = 0.01
"""Trained parameters of a LoRA adapter over the model's: 0.2 to 1 % at ranks 8 to 32."""

_UNSTATED = frozenset({"trn1", "trn2", "trn3", "inf2"})
"""Families whose compiler states no memory, so that an artifact's figure counts the arrays alone."""

_ISLANDS = {"cuda": (2, 4, 8), "tpu": (4, 8, 16, 32)}
"""Sizes of islands that one program can cover, by family; more chips of a host CPU add no memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of a job decides its memory and can be changed.

    Attributes:
        micro_batch: sequences of a micro-shard.
        checkpointing: whether activations are computed again already.
        adapter: whether only a LoRA adapter is trained already.
    """

    micro_batch: int
    checkpointing: bool = False
    adapter: bool = False

    @classmethod
    def of(cls, spec: JobSpec) -> Self:
        """Give a job's."""
        return cls(
            micro_batch=spec.train.micro_batch,
            checkpointing=spec.train.checkpointing != "none",
            adapter=spec.adapter is not None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a job fits one kind of chip.

    Attributes:
        target: the target.
        chip: the chip's name.
        needed_bytes: peak memory of one chip.
        memory_bytes: memory of the chip.
        fits: whether it fits, with a twentieth kept free.
        stated: whether the compiler stated its memory; else `needed_bytes` is the least that it
            can be, and only a job that does not fit is judged for certain.
        ways: what would make it fit, each with its number; empty where it fits, or nothing would.
    """

    target: str
    chip: str
    needed_bytes: int
    memory_bytes: int
    fits: bool
    stated: bool
    ways: tuple[str, ...]

    def text(self) -> str:
        """Say it in one line."""
        verdict = "does not fit" if not self.fits else "fits" if self.stated else "may fit"
        least = "" if self.stated else "at least "
        sizes = f"needs {least}{_gib(self.needed_bytes)} of {_gib(self.memory_bytes)}"
        return f"{self.target} on {self.chip}: {verdict}, {sizes} a chip"


def judge(payload: TargetPayload, chip: Chip, shape: Shape) -> Fit:
    """Judge a compiled job against a chip's memory.

    Args:
        payload: the compiled programs.
        chip: the chip.
        shape: the job's settings that decide its memory.
    """
    memory, limit = memory_of(payload), _USABLE * chip.memory_bytes
    fits = memory.peak <= limit
    return Fit(
        target=payload.target,
        chip=chip.name,
        needed_bytes=memory.peak,
        memory_bytes=chip.memory_bytes,
        fits=fits,
        stated=memory.stated,
        ways=() if fits else _ways(payload, memory, shape, limit),
    )


def judge_bytes(target: str, needed_bytes: int, chip: Chip) -> Fit:
    """Judge a job of which only the peak memory is known; it names no ways out.

    Args:
        target: the target.
        needed_bytes: peak memory of one chip.
        chip: the chip.
    """
    return Fit(
        target=target,
        chip=chip.name,
        needed_bytes=needed_bytes,
        memory_bytes=chip.memory_bytes,
        fits=needed_bytes <= _USABLE * chip.memory_bytes,
        stated=TargetName.parse(target).family not in _UNSTATED,
        ways=(),
    )


def check_chip(fit: Fit) -> None:
    """Refuse a job that does not fit.

    Raises:
        CapacityError: it does not; the remedy lists what would make it fit.
    """
    if not fit.fits:
        remedy = "; or ".join(fit.ways) or "use a chip with more memory, or a smaller model"
        raise CapacityError(fit.text(), remedy=remedy)


def _ways(payload: TargetPayload, memory: Memory, shape: Shape, limit: float) -> tuple[str, ...]:
    """Give the single changes that would make a job fit; where none does, all of them together."""
    groups = TargetName.parse(payload.target).groups
    found = [
        _smaller_batch(memory, shape, groups, limit),
        _checkpointing(memory, shape, limit),
        _more_chips(payload, memory, shape, limit),
        _lora(memory, shape, limit),
    ]
    single = tuple(way for way in found if way is not None)
    together = () if single else (_together(payload, memory, shape, limit),)
    return single or tuple(way for way in together if way is not None)


def _smaller_batch(memory: Memory, shape: Shape, groups: int, limit: float) -> str | None:
    """Find the largest micro-batch that fits: activations grow with it."""
    each = memory.activations / shape.micro_batch
    if each <= 0 or max(memory.fixed, memory.apply) >= limit:
        return None
    size = min(shape.micro_batch - 1, int((limit - memory.fixed) / each))
    size -= size % _divided(shape.micro_batch, groups)  # else no chip could drop its part of it
    if size < 1:
        return None
    return f"train.micro_batch: {size} (needs about {_gib(memory.fixed + size * each)})"


def _checkpointing(memory: Memory, shape: Shape, limit: float) -> str | None:
    """See whether computing activations again is enough."""
    needed = max(memory.fixed + _CHECKPOINTED * memory.activations, memory.apply)
    if shape.checkpointing or needed > limit:
        return None
    return f"train.checkpointing: layer (needs about {_gib(needed)})"


def _more_chips(payload: TargetPayload, memory: Memory, shape: Shape, limit: float) -> str | None:
    """Find the smallest island that fits; the batch is cut where its sequences can be dealt out."""
    now = TargetName.parse(payload.target)
    for name in _larger_islands(now):
        share = _divided(shape.micro_batch, name.groups) / _divided(shape.micro_batch, now.groups)
        needed = _held(memory, memory.activations / share, now.chips / name.chips)
        if needed <= limit:
            return f"target {name} (needs about {_gib(needed)} a chip)"
    return None


def _together(payload: TargetPayload, memory: Memory, shape: Shape, limit: float) -> str | None:
    """See whether checkpointing, one sequence a chip and a larger island are enough together."""
    now = TargetName.parse(payload.target)
    sequences = shape.micro_batch / _divided(shape.micro_batch, now.groups)
    kept = 1.0 if shape.checkpointing else _CHECKPOINTED
    for name in _larger_islands(now):
        needed = _held(memory, kept * memory.activations / sequences, now.chips / name.chips)
        if needed <= limit:
            return (
                f"target {name} with train.micro_batch: {name.groups} and train.checkpointing: layer "
                f"(needs about {_gib(needed)} a chip)"
            )
    return None


def _larger_islands(now: TargetName) -> list[TargetName]:
    """Give the larger islands of a target's chips with the same groups, smallest first."""
    sizes = _ISLANDS.get(now.family, ())
    larger = (n for n in sizes if n > now.chips and n % now.chips == 0)
    return [dataclasses.replace(now, chips=n) for n in larger]


def _held(memory: Memory, activations: float, part: float) -> float:
    """Give the bytes that a chip needs which holds a part of what the chips now hold."""
    return max(part * memory.fixed + activations, part * memory.apply)


def _divided(micro_batch: int, groups: int) -> int:
    """Give the parts that a micro-batch is cut into on an island of so many groups of chips."""
    return 1 if micro_batch % groups else groups


def _lora(memory: Memory, shape: Shape, limit: float) -> str | None:
    """See whether an adapter is enough: the model's parameters are then frozen."""
    if shape.adapter:
        return None
    params = memory.state // 3
    trained = _LORA_SHARE * params
    needed = memory.frozen + params + memory.activations + 5 * trained
    if needed > limit:
        return None
    return f"an adapter (LoRA; needs about {_gib(needed)})"


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 0.1 * 2**30 else f"{size / 2**20:.1f} MiB"
