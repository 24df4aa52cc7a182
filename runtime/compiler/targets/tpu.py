"""Google TPU: libtpu compiles from the name of a topology, without a TPU."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from runtime.compiler.targets.target import (
    COMMON_ENVIRONMENT,
    Report,
    Requirement,
    Target,
    missing_module,
    no_island,
    versions_of,
)

if TYPE_CHECKING:
    from runtime.artifact.program import Program
    from runtime.compiler.programs import FlatProgram

_PLUGIN = "libtpu"

# XLA's effort level: "faster compilation with reasonable runtime" (openxla.org/xla/effort_levels).
# A float32 product in full precision is six passes over bfloat16 parts: long code, which libtpu at
# its default, O2, builds several times while it decides what lies in VMEM. One product of
# [1024, 512] and [512, 8192] took 4.5 s of processor time at O2 and 0.6 at O1 (libtpu 0.0.52, v5e);
# the forward program of a Qwen3 of 512x6 took 88 s and 14; `grad` 50 s at O1, at O2 over 300. The
# products are two thirds of what is left: with bfloat16 ones, `grad` at two layers took 12.5 s of
# processor time in place of 34. Equal layers cost little, since libtpu builds equal code once: the
# 30 layers of SmolLM2-135M took 57 s, unrolled; as a loop they were not done after as long.
# The price, by libtpu's own estimate of the forward program of two such layers: 1.9 million cycles
# at O1, 1.3 at O2. Neither has run on a chip.
_EFFORT = {"JAX_OPTIMIZATION_LEVEL": "O1"}

# Chips are joined to a torus of two or three dimensions; the smallest one has four chips, of which
# a target of one chip uses the first.
_FLAT = {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8"}
_SOLID = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4"}
_TORUS = {"tpu-v4": _SOLID, "tpu-v5e": _FLAT, "tpu-v5p": _SOLID, "tpu-v6e": _FLAT}


class TpuBackEnd:
    """Compiles for TPU chips, or for a slice of them."""

    family = "tpu"

    def targets(self) -> tuple[Target, ...]:
        """Give a target for each generation."""
        # A lock file left by a killed process would stop this one.
        environment = {**COMMON_ENVIRONMENT, **_EFFORT, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
        return tuple(
            Target(
                name=name,
                family=self.family,
                chip=name,
                environment=environment,
                topology=_topology(name, 4),
            )
            for name in _TORUS
        )

    def island(self, target: Target, chips: int) -> Target:
        """Give the target of a slice.

        Raises:
            CompileError: there is no slice of so many chips.
        """
        torus = _TORUS[target.chip]
        if chips not in torus:
            raise no_island(target, chips, ", ".join(map(str, torus)))
        return dataclasses.replace(
            target,
            name=f"{target.name}x{chips}",
            chips=chips,
            topology=_topology(target.chip, chips),
        )

    def missing(self, target: Target) -> Requirement | None:  # noqa: ARG002 (the protocol's)
        """Give libtpu where it is not installed."""
        return missing_module(_PLUGIN, _PLUGIN, "tpu")

    def versions(self) -> dict[str, str]:
        """Give the versions that decide the bytes."""
        return versions_of("jax", "jaxlib", "libtpu")

    def compile(self, flat: FlatProgram, target: Target, report: Report) -> Program:
        """Compile without a TPU; see `BackEnd.compile`."""
        from runtime.compiler.targets.pjrt import compile_pjrt
        from runtime.compiler.targets.topology import described_devices

        devices = described_devices("tpu", target.topology)
        return compile_pjrt(
            flat,
            devices[: target.chips],
            report,
            tensor_parallel=target.tensor_parallel,
        )

    def scrub(self, program: Program) -> tuple[Program, bool]:
        """Give the program as it is: no TPU executable is rewritten yet."""
        return program, False


def _topology(chip: str, chips: int) -> str:
    """Give libtpu's name of a slice, such as "v5e:2x2"."""
    return f"{chip.removeprefix('tpu-')}:{_TORUS[chip][chips]}"
