"""AWS Trainium and Inferentia2: an HLO module for `neuronx-cc`, where that is installed.

The module is written and checked here, without the vendor's compiler: calls are inlined, ids fit 32
bits, and no operator, form or element type is outside what `runtime.compiler.neuron.rules` knows.
From there on nothing has ever run: the call of the compiler follows the vendor's reference.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.compiler.neuron import hlo
from runtime.compiler.neuron.hlo_rewrite import prepared
from runtime.compiler.neuron.neuronx_cc import (
    COMPILER,
    TIMEOUT_S,
    compile_module,
    compiler_path,
    compiler_version,
)
from runtime.compiler.neuron.rules import broken_rules
from runtime.compiler.targets.target import Report, Requirement, Target, no_island, versions_of
from runtime.spec import CompileError

if TYPE_CHECKING:
    import jax

    from runtime.artifact.program import Program
    from runtime.compiler.programs import FlatProgram

__all__ = ["NeuronBackEnd", "hlo_bytes", "hlo_module"]

_PINS = {
    "trn1": "requirements/neuron-gen2.txt",
    "trn2": "requirements/neuron-gen3.txt",
    "trn3": "requirements/neuron-gen3.txt",
    "inf2": "requirements/neuron-gen2.txt",
}
_MOST_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronBackEnd:
    """Compiles for Trainium and Inferentia2 chips.

    Attributes:
        timeout_s: after which a program's compile is given up.
    """

    timeout_s: float = TIMEOUT_S

    @property
    def family(self) -> str:
        """The family's name."""
        return "neuron"

    def targets(self) -> tuple[Target, ...]:
        """Give a target for each chip."""
        return tuple(Target(name=chip, family=self.family, chip=chip) for chip in _PINS)

    def island(self, target: Target, chips: int) -> Target:
        """Refuse: the partitioner of these chips is the vendor's frameworks', not the compiler's.

        Raises:
            CompileError: always.
        """
        raise no_island(target, chips, "1")

    def missing(self, target: Target) -> Requirement | None:
        """Give the vendor's compiler where it is not on the path."""
        if compiler_path() is not None:
            return None
        return Requirement(
            package=COMPILER,
            remedy=f"install {_PINS[target.chip]} by the vendor's installation guide",
        )

    def versions(self) -> dict[str, str]:
        """Give the versions that decide the bytes: the compiler's is its own word, not a wheel's."""
        return {**versions_of("jax", "jaxlib"), COMPILER: compiler_version()}

    def compile(self, flat: FlatProgram, target: Target, report: Report) -> Program:
        """Compile to a NEFF; see `BackEnd.compile`."""
        from runtime.artifact.program import Program

        started = time.perf_counter()
        lowered = _traced(flat)
        module = _checked(hlo_bytes(lowered), flat.name, target)
        report("lower", time.perf_counter() - started)
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="luma-neuron-") as folder:
            neff = compile_module(
                module,
                program=flat.name,
                target=target.chip,
                folder=Path(folder),
                timeout_s=self.timeout_s,
            )
        report("compile", time.perf_counter() - started)
        cost = lowered.cost_analysis() or {}
        return Program(
            name=flat.name,
            inputs=flat.inputs,
            outputs=flat.outputs,
            # The runtime's API binds inputs and outputs apart: nothing is taken over.
            donated=(),
            executable=neff,
            form="neff",
            # The compiler does not state it; zero says so.
            peak_memory_bytes=0,
            flops=max(flat.flops, float(cost.get("flops", 0.0))),
            bytes_moved=max(0.0, float(cost.get("bytes accessed", 0.0))),
        )

    def scrub(self, program: Program) -> tuple[Program, bool]:
        """Give the program as it is: no NEFF is rewritten yet."""
        return program, False


def hlo_module(flat: FlatProgram) -> bytes:
    """Give a program's HLO module; see `hlo_bytes`.

    Raises:
        CompileError: it cannot be traced.
        LoweringError: an op could not be lowered.
    """
    return hlo_bytes(_traced(flat))


def hlo_bytes(lowered: jax.stages.Lowered) -> bytes:
    """Give a traced function's HLO module as the compiler gets it: no calls, ids of 32 bits.

    Raises:
        CompileError: there is no HLO module, or it cannot be rewritten.
    """
    module = lowered.compiler_ir("hlo")
    if module is None:
        raise CompileError("tracing gave no HLO module")
    return prepared(module.as_serialized_hlo_module_proto())


def _traced(flat: FlatProgram) -> jax.stages.Lowered:
    import jax

    from runtime.compiler.targets.trace import traced

    place = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    return traced(flat, (place,) * len(flat.inputs), None)


def _checked(module: bytes, program: str, target: Target) -> bytes:
    """Give the module back if it breaks no rule.

    Raises:
        CompileError: it breaks some; the message lists them.
    """
    broken = broken_rules(hlo.read(module))
    if not broken:
        return module
    more = f"\n  and {len(broken) - _MOST_LISTED} more" if len(broken) > _MOST_LISTED else ""
    listed = "\n  ".join(item.text() for item in broken[:_MOST_LISTED])
    message = f"program '{program}', target '{target.name}': its HLO module holds what "
    raise CompileError(
        f"{message}neuronx-cc does not take:\n  {listed}{more}",
        remedy=f"`luma check JOB --target {target.name}` names the ops and the model's modules",
    )
