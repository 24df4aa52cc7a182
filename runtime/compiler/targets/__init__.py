"""The targets: what a program is compiled for, and by which back end, without the device.

| target | by | module |
|---|---|---|
| cpu | this host's XLA, pinned to AVX2 | `cpu` |
| cuda-sm80, -sm89, -sm90, -sm100 | jax's CUDA plug-in, from a written device description | `cuda` |
| tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e | libtpu, from a topology's name | `tpu` |
| rocm-gfx942, rocm-gfx950 | IREE | `rocm` |
| trn1, trn2, trn3, inf2 | neuronx-cc | `neuron` |

`xN` behind a name is an island of N such chips that one program covers: `cuda-sm90x8`. Importing
this package loads no compiler.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from runtime.compiler.targets.cpu import CpuBackEnd
from runtime.compiler.targets.cuda import CudaBackEnd
from runtime.compiler.targets.neuron import NeuronBackEnd
from runtime.compiler.targets.rocm import RocmBackEnd
from runtime.compiler.targets.target import BackEnd, Report, Requirement, Target
from runtime.compiler.targets.tpu import TpuBackEnd
from runtime.spec import CompileError

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
_ISLAND = re.compile(r"(?P<chip>.+?)x(?P<chips>[1-9][0-9]{0,4})", re.ASCII)


def find_target(name: str) -> Target:
    """Give a target by name.

    Args:
        name: one of `target_names`, or one of them with "xN" behind it.

    Raises:
        CompileError: no such target, or its chips cannot be joined to such an island.
    """
    targets = _targets()
    if name in targets:
        return targets[name]
    island = _ISLAND.fullmatch(name)
    if island is None or island["chip"] not in targets:
        message = f"compile.targets: '{name}' is unknown; expected one of {', '.join(targets)}"
        raise CompileError(message, remedy="write 'xN' behind a name for an island of N chips")
    target, chips = targets[island["chip"]], int(island["chips"])
    return target if chips == 1 else back_end(target).island(target, chips)


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
