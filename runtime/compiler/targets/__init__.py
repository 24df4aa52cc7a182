"""The targets: what a program is compiled for, and by which back end, without the device.

| target | by | module |
|---|---|---|
| cpu | this host's XLA, pinned to AVX2 | `cpu` |
| cuda-sm80, -sm89, -sm90, -sm100 | jax's CUDA plug-in, from a written device description | `cuda` |
| tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e | libtpu, from a topology's name | `tpu` |
| rocm-gfx942, rocm-gfx950 | IREE | `rocm` |
| trn1, trn2, trn3, inf2 | neuronx-cc | `neuron` |

`xN` behind a name is an island of N such chips that one program covers, with fully sharded data
parallel: `cuda-sm90x8`; `-tpM` behind that makes groups of M chips share each matrix product, tensor
parallel: `cuda-sm90x8-tp4`. Importing this package loads no compiler.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

from runtime.compiler.targets.cpu import CpuBackEnd
from runtime.compiler.targets.cuda import CudaBackEnd
from runtime.compiler.targets.neuron import NeuronBackEnd
from runtime.compiler.targets.rocm import RocmBackEnd
from runtime.compiler.targets.target import BackEnd, Report, Requirement, Target
from runtime.compiler.targets.tpu import TpuBackEnd
from runtime.spec import CompileError
from runtime.spec.target_name import TargetName

__all__ = [
    "BackEnd",
    "Report",
    "Requirement",
    "Target",
    "back_end",
    "expand",
    "find_target",
    "target_names",
]

ALL = "all"

_BACK_ENDS: dict[str, BackEnd] = {
    back.family: back
    for back in (CpuBackEnd(), CudaBackEnd(), TpuBackEnd(), RocmBackEnd(), NeuronBackEnd())
}


def find_target(name: str) -> Target:
    """Give a target by name.

    Args:
        name: one of `target_names`, or one of them with "xN" or "xN-tpM" behind it.

    Raises:
        CompileError: no such target, its chips cannot be joined to such an island, or the groups
            of M do not divide it.
    """
    targets = _targets()
    try:
        wanted = TargetName.parse(name)
    except ValueError as error:
        if "-tp" in name:  # the island may be known, and its groups wrong
            raise CompileError(f"compile.targets: {error}") from None
        raise _unknown(name, targets) from None
    if wanted.chip not in targets:
        raise _unknown(name, targets)
    target = targets[wanted.chip]
    if wanted.chips == 1:
        return target
    island = back_end(target).island(target, wanted.chips)
    return dataclasses.replace(island, name=str(wanted), tensor_parallel=wanted.tensor_parallel)


def _unknown(name: str, targets: Iterable[str]) -> CompileError:
    """Give the error for a name that no back end has."""
    message = f"compile.targets: '{name}' is unknown; expected one of {', '.join(targets)}"
    remedy = "write 'xN' behind a name for an island of N chips, 'xN-tpM' for tensor parallel"
    return CompileError(message, remedy=remedy)


def target_names() -> tuple[str, ...]:
    """Give the names of all targets of one chip."""
    return tuple(_targets())


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Give target names, each once, in order, with "all" replaced by `target_names`.

    Raises:
        CompileError: a name is unknown.
    """
    wanted: dict[str, None] = {}
    for name in names:
        for one in target_names() if name == ALL else (name,):
            wanted[find_target(one).name] = None
    return tuple(wanted)


def back_end(target: Target) -> BackEnd:
    """Give the back end that compiles for a target."""
    return _BACK_ENDS[target.family]


@functools.cache
def _targets() -> dict[str, Target]:
    """Give all targets of one chip, by name."""
    return {target.name: target for back in _BACK_ENDS.values() for target in back.targets()}
