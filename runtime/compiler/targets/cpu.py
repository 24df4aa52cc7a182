"""CPU: this host's XLA, pinned to AVX2, so that one program fits every host of its class."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from runtime.artifact.cpu_class import xla_cpu_flags
from runtime.compiler.targets.target import (
    COMMON_ENVIRONMENT,
    Report,
    Requirement,
    Target,
    no_island,
    versions_of,
)

if TYPE_CHECKING:
    from runtime.artifact.program import Program
    from runtime.compiler.programs import FlatProgram

_MAX_HOST_DEVICES = 16


class CpuBackEnd:
    """Compiles for this host's class of CPU; `cpuxN` is a mesh of N host devices, for tests."""

    family = "cpu"

    def targets(self) -> tuple[Target, ...]:
        """Give the one target."""
        environment = {**COMMON_ENVIRONMENT, "XLA_FLAGS": xla_cpu_flags(1)}
        return (Target(name="cpu", family="cpu", chip="cpu", environment=environment),)

    def island(self, target: Target, chips: int) -> Target:
        """Give the target of several host devices in one process.

        Raises:
            CompileError: more than 16.
        """
        if chips > _MAX_HOST_DEVICES:
            raise no_island(target, chips, f"2 to {_MAX_HOST_DEVICES}")
        return dataclasses.replace(
            target,
            name=f"{target.name}x{chips}",
            chips=chips,
            environment={**target.environment, "XLA_FLAGS": xla_cpu_flags(chips)},
        )

    def missing(self, target: Target) -> Requirement | None:  # noqa: ARG002 (the protocol's)
        """Give None: jaxlib holds this compiler."""
        return None

    def versions(self) -> dict[str, str]:
        """Give the versions that decide the bytes."""
        return versions_of("jax", "jaxlib")

    def compile(self, flat: FlatProgram, target: Target, report: Report) -> Program:
        """Compile for this host; see `BackEnd.compile`."""
        import jax

        from runtime.compiler.targets.pjrt import compile_pjrt

        devices = jax.devices("cpu")[: target.chips]
        return compile_pjrt(flat, devices, report, tensor_parallel=target.tensor_parallel)

    def scrub(self, program: Program) -> tuple[Program, bool]:
        """Rewrite the executable without names and paths; see `runtime.compiler.scrub`."""
        from runtime.compiler.scrub import scrub_program

        return scrub_program(program, self.family)
