"""The chips that a target runs on, in the figures that a plan needs: memory, arithmetic, bandwidth.

They come from the catalogue, one entry a kind of chip. A target such as `cuda-sm89` runs on several
kinds (L4, L40S); a plan is careful and takes the slowest unless it is told one. For `cpu` the chip
is a whole host: this machine, measured, or an instance type of the catalogue.

The catalogue holds the dense bf16 peak. The programs multiply float32 in full precision, for which
the peak is another: on NVIDIA and AMD that of the fp32 units, on TPU a sixth of bf16 (XLA makes six
bf16 products of one), on Trainium that of its fp32 mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from runtime.plan.machine import Machine
from runtime.spec.catalogue import Accelerator, load_catalogue

__all__ = ["Chip", "Precision", "chip_of_row", "chips_of", "hosts_of", "machine_chip"]

Precision = Literal["fp32", "bf16"]
"""What matrix products are computed in, as `model.dtype` names it."""

_GIB = 1 << 30
_TPU_PASSES = 6
_FP32_TFLOPS = {
    "A100": 19.5,
    "L4": 30.3,
    "L40S": 91.6,
    "H100": 66.9,
    "H200": 66.9,
    "B200": 75.0,
    "GB200": 80.0,
    "MI300X": 163.4,
    "MI325X": 163.4,
    "MI355X": 157.3,
    "Trainium": 47.5,
    "Inferentia2": 47.5,
    "Trainium2": 181.0,
    "Trainium3": 183.0,
}
"""Full-precision fp32 peak of a chip, TFLOP/s, from the makers' data sheets. Recalled, so a plan is
marked accordingly (`Chip.checked`); the catalogue has no such field."""

_CPU_EFFICIENCY = 0.6
"""A train step reaches 0.55 to 0.75 of the matrix-product rate on CPU, measured."""

_CPU_FLOPS_PER_CYCLE = 32
"""fp32 operations of one core a cycle with AVX2, which the target `cpu` is kept to: two units, eight
lanes, a multiplication and an addition. Recalled for these processors, not read."""

_HOST_MEMORY = 0.93
"""Part of a host's memory that its system leaves to programs."""

_EFFICIENCY = 0.4
"""Share of the peak that a train step reaches on an accelerator: 0.46 in the best published runs
of large models (Chowdhery et al. 2022, PaLM, table 3), 0.2 to 0.35 in the others listed there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One kind of chip that a target runs on.

    Attributes:
        name: such as "H100", or the processor's name.
        memory_bytes: device memory that programs may take.
        flops_per_s: peak of matrix products by precision, floating-point operations a second;
            None where it is not known.
        bytes_per_s: memory bandwidth; None where it is not known.
        efficiency: share of the peak that a train step is taken to reach.
        cached: whether most of what a program moves stays in caches, as on a CPU, so that only its
            arguments and results go to memory.
        checked: "doc" when all figures were read in a source or measured, "memory" when one was
            recalled.
    """

    name: str
    memory_bytes: int
    flops_per_s: dict[Precision, float | None]
    bytes_per_s: float | None
    efficiency: float
    checked: Literal["doc", "memory"]
    cached: bool = False


@cache
def chips_of(target: str) -> tuple[Chip, ...]:
    """Give the kinds of chip that a target of one chip runs on, the slowest and smallest first.

    Args:
        target: such as "cuda-sm90", without a mesh; "cpu" has none, since hosts differ in size.
    """
    rows = (row for row in load_catalogue().by_target(target) if row.count != 0 and not row.is_cpu)
    return tuple(sorted(_distinct(rows), key=lambda chip: (_speed(chip), chip.memory_bytes)))


def chip_of_row(row: Accelerator, *, threads: int | None = None) -> Chip:
    """Give the chip of an instance type.

    Args:
        row: its row of the catalogue.
        threads: of a host without accelerators, cores that an island may use; None for all.
    """
    if not row.is_cpu:
        return _chip(row)
    rate = None
    if row.cores is not None and row.clock_mhz is not None:
        used = row.cores if threads is None else min(threads, row.cores)
        rate = used * row.clock_mhz * 1e6 * _CPU_FLOPS_PER_CYCLE
    bandwidth = row.memory_bandwidth_tb_s
    return Chip(
        name=f"CPU of {row.name}",
        memory_bytes=int(row.memory_gib_per_chip * _GIB * _HOST_MEMORY),
        flops_per_s={"fp32": rate, "bf16": rate},
        bytes_per_s=None if bandwidth is None else bandwidth * 1e12,
        efficiency=_CPU_EFFICIENCY,
        checked="memory",
        cached=True,
    )


@cache
def hosts_of(threads: int | None = None) -> tuple[Chip, ...]:
    """Give the catalogue's instance types without accelerators, the slowest and smallest first.

    Args:
        threads: cores that an island may use; None for all.
    """
    hosts = (
        chip_of_row(row, threads=threads) for row in load_catalogue().accelerators if row.is_cpu
    )
    return tuple(sorted(hosts, key=lambda chip: (_speed(chip), chip.memory_bytes)))


def machine_chip(machine: Machine, chips: int = 1) -> Chip:
    """Give this machine as the chip of the target "cpu"; its arithmetic is fp32 in any case.

    Args:
        machine: this machine.
        chips: host devices that share it.
    """
    rate = machine.flops_per_core * machine.cores / chips
    return Chip(
        name=machine.cpu,
        memory_bytes=machine.memory_available_bytes // chips,
        flops_per_s={"fp32": rate, "bf16": rate},
        bytes_per_s=machine.bytes_per_second / chips,
        efficiency=_CPU_EFFICIENCY,
        checked="doc",
        cached=True,
    )


def _distinct(rows: Iterable[Accelerator]) -> list[Chip]:
    """Give one chip for each name and size of memory among rows of instance types."""
    found = {(row.chip, row.memory_gib_per_chip): _chip(row) for row in rows}
    return list(found.values())


def _chip(row: Accelerator) -> Chip:
    """Read a catalogue row."""
    bf16, bandwidth = row.bf16_tflops_per_chip, row.memory_bandwidth_tb_s
    fp32 = _fp32_tflops(row)
    recalled = row.checked == "memory" or row.chip in _FP32_TFLOPS
    return Chip(
        name=row.chip,
        memory_bytes=int(row.memory_gib_per_chip * _GIB),
        flops_per_s={
            "bf16": None if bf16 is None else bf16 * 1e12,
            "fp32": None if fp32 is None else fp32 * 1e12,
        },
        bytes_per_s=None if bandwidth is None else bandwidth * 1e12,
        efficiency=_EFFICIENCY,
        checked="memory" if recalled else "doc",
    )


def _fp32_tflops(row: Accelerator) -> float | None:
    """Give the full-precision fp32 peak of a row's chip."""
    if row.vendor == "google" and row.bf16_tflops_per_chip is not None:
        return row.bf16_tflops_per_chip / _TPU_PASSES
    return _FP32_TFLOPS.get(row.chip)


def _speed(chip: Chip) -> float:
    """Order chips by what limits a train step first: arithmetic, else bandwidth."""
    return chip.flops_per_s["bf16"] or chip.bytes_per_s or 0.0
