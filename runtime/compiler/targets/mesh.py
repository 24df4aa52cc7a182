"""How a program's arrays lie on the chips of an island: FSDP, tensor parallel, or both.

**Fully sharded data parallel** (ZeRO stage 3: Rajbhandari et al. 2020): parameters, moments and
gradient sums are divided along the axis `fsdp`, and so are the sequences of the batch where their
number allows, else every chip computes all of them.

**Tensor parallel** (Shoeybi et al. 2019, Megatron-LM): along the axis `tensor` chips share the
sequences, and each takes a part of every matrix product, as the program's `tensor_cuts` say.

XLA's partitioner (GSPMD: Xu et al. 2021) puts the gathers and reductions between the parts, so a
cut decides speed and memory, never the result. All other arrays are everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from runtime.artifact.partitions import Cut, Partitions
from runtime.artifact.program import TensorSpec
from runtime.compiler.programs import FlatProgram

__all__ = ["Placement", "cut_of", "mesh_axes", "place"]

_WEIGHTS = frozenset({"param", "frozen", "moment1", "moment2"})
_SUMS = "grad_sum"


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


def place(
    flat: FlatProgram, devices: Sequence[jax.Device], *, tensor_parallel: int = 1
) -> Placement:
    """Lay a program's arrays on the chips of an island.

    Args:
        flat: the program.
        devices: the chips, neighbours next to each other; with one of them, everything lies there.
        tensor_parallel: chips of a tensor-parallel group; it divides their number.
    """
    if len(devices) == 1:
        single = jax.sharding.SingleDeviceSharding(devices[0])
        inputs = (single,) * len(flat.inputs)
        return Placement(inputs=inputs, outputs=None, partitions=None)
    axes = mesh_axes(len(devices), tensor_parallel)
    partitions = Partitions(
        mesh=axes,
        inputs=tuple(cut_of(spec, axes, flat.tensor_cuts) for spec in flat.inputs),
        outputs=tuple(cut_of(spec, axes, flat.tensor_cuts) for spec in flat.outputs),
    )
    grid = np.array(devices).reshape([size for _, size in axes])
    mesh = jax.sharding.Mesh(grid, tuple(name for name, _ in axes))

    def shardings(
        tensors: Sequence[TensorSpec], cuts: Sequence[Cut]
    ) -> tuple[jax.sharding.Sharding, ...]:
        parts = (
            partitions.axes_of(len(spec.shape), cut)
            for spec, cut in zip(tensors, cuts, strict=True)
        )
        return tuple(
            jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(p or None for p in part)))
            for part in parts
        )

    return Placement(
        inputs=shardings(flat.inputs, partitions.inputs),
        outputs=shardings(flat.outputs, partitions.outputs),
        partitions=partitions,
    )


def mesh_axes(chips: int, tensor_parallel: int) -> tuple[tuple[str, int], ...]:
    """Give the axes of an island's mesh that have more than one chip."""
    sizes = (("fsdp", chips // tensor_parallel), ("tensor", tensor_parallel))
    return tuple((name, size) for name, size in sizes if size > 1)


def cut_of(
    spec: TensorSpec, mesh: Sequence[tuple[str, int]], tensor_cuts: Mapping[str, int]
) -> Cut:
    """Give the cut of an array: for each axis of the mesh the dimension that it divides.

    A weight is divided along `tensor` where the program says so, the gradient sums, which have
    lost their parameter's shape, along the first dimension that can be. `fsdp` divides the first
    dimension that it can, of a weight rather another one than `tensor`: with both on one, XLA's
    partitioner gathers whole weights (a Qwen3 of 4 layers on 2 x 2 host devices: 90 MB exchanged a
    micro-shard against 71, and 126 on 4 x 1).

    Args:
        spec: the array.
        mesh: (name, size) of each axis.
        tensor_cuts: by a weight's name, the dimension that `tensor` divides.
    """
    sizes, rest = dict(mesh), list(spec.shape)
    found: dict[str, int | None] = {}
    for name in ("tensor", "fsdp"):
        if name not in sizes:
            continue
        wanted = _candidates(spec, name, tensor_cuts)
        fitting = [i for i in wanted if rest[i] > 0 and rest[i] % sizes[name] == 0]
        if spec.role in _WEIGHTS:
            fitting.sort(key=lambda i: i == found.get("tensor"))
        found[name] = chosen = fitting[0] if fitting else None
        if chosen is not None:
            rest[chosen] //= sizes[name]
    return tuple(found[name] for name, _ in mesh)


def _candidates(spec: TensorSpec, axis: str, tensor_cuts: Mapping[str, int]) -> Sequence[int]:
    """Give the dimensions of an array that an axis may divide, the preferred one first."""
    if spec.role == "batch":
        return range(len(spec.shape))[:1] if axis == "fsdp" else ()
    if spec.role == _SUMS or (spec.role in _WEIGHTS and axis == "fsdp"):
        return range(len(spec.shape))
    if spec.role in _WEIGHTS and spec.name in tensor_cuts:
        return (tensor_cuts[spec.name],)
    return ()
