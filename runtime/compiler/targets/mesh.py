"""How a program's arrays lie on the chips of an island: fully sharded data parallel, in one axis.

Parameters, moments and gradient sums are cut along their first axis that the number of chips
divides, and each chip holds its part; XLA's partitioner puts the gathers and reductions between
them (ZeRO stage 3: Rajbhandari et al. 2020; GSPMD: Xu et al. 2021). The batch is cut along its
sequences where their number allows, else every chip computes all of them. All else is everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from runtime.artifact.program import Partitions, TensorSpec
from runtime.compiler.programs import FlatProgram

__all__ = ["Placement", "place"]

_SHARDED = frozenset({"param", "frozen", "moment1", "moment2", "grad_sum"})
_AXIS = "chips"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a program's arrays lie.

    Attributes:
        inputs: one jax sharding per input.
        outputs: one per output; None on one chip, where there is nothing to choose.
        partitions: the same in our own words, for the payload; None on one chip.
    """

    inputs: tuple[jax.sharding.Sharding, ...]
    outputs: tuple[jax.sharding.Sharding, ...] | None
    partitions: Partitions | None


def place(flat: FlatProgram, devices: Sequence[jax.Device]) -> Placement:
    """Lay a program's arrays on the chips of an island.

    Args:
        flat: the program.
        devices: the chips; with one of them, everything lies there.
    """
    if len(devices) == 1:
        single = jax.sharding.SingleDeviceSharding(devices[0])
        inputs = (single,) * len(flat.inputs)
        return Placement(inputs=inputs, outputs=None, partitions=None)
    mesh = jax.sharding.Mesh(np.array(devices), (_AXIS,))
    partitions = Partitions(
        chips=len(devices),
        inputs=tuple(split_axis(spec, len(devices)) for spec in flat.inputs),
        outputs=tuple(split_axis(spec, len(devices)) for spec in flat.outputs),
    )
    return Placement(
        inputs=tuple(_sharding(mesh, axis) for axis in partitions.inputs),
        outputs=tuple(_sharding(mesh, axis) for axis in partitions.outputs),
        partitions=partitions,
    )


def split_axis(spec: TensorSpec, chips: int) -> int | None:
    """Give the axis that an array is cut along, None where every chip holds all of it."""
    if spec.role == "batch":
        return 0 if spec.shape and spec.shape[0] % chips == 0 else None
    if spec.role not in _SHARDED:
        return None
    fitting = (i for i, size in enumerate(spec.shape) if size > 0 and size % chips == 0)
    return next(fitting, None)


def _sharding(mesh: jax.sharding.Mesh, axis: int | None) -> jax.sharding.NamedSharding:
    """Give jax's sharding for the axis that is cut."""
    parts = () if axis is None else (*(None,) * axis, _AXIS)
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*parts))
