"""Arrays on the chips of one process's island: cut as a program's partitions say, and back.

Private names of jaxlib: `batched_device_put`, which alone says whether it copies.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

import jax
import numpy as np
from jaxlib import xla_client

from runtime.artifact.partitions import Cut, Partitions
from runtime.artifact.program import TensorSpec

__all__ = ["Devices", "joined", "put", "shardings"]

Devices = tuple[jax.Device, ...]


def shardings(
    tensors: Sequence[TensorSpec], cuts: Sequence[Cut], partitions: Partitions, devices: Devices
) -> tuple[jax.sharding.Sharding, ...]:
    """Give jax's words for where the arrays of one side of a program lie.

    Args:
        tensors: the program's inputs, or its outputs.
        cuts: their cuts, out of `partitions`.
        partitions: of the program.
        devices: the chips, in the order of the mesh.
    """
    return tuple(
        _sharding(devices, partitions.mesh, partitions.axes_of(len(spec.shape), cut))
        for spec, cut in zip(tensors, cuts, strict=True)
    )


@functools.cache
def _sharding(
    devices: Devices, mesh: tuple[tuple[str, int], ...], axes: tuple[tuple[str, ...], ...]
) -> jax.sharding.NamedSharding:
    """Give one object for equal cuts, so that comparing two of them costs nothing."""
    grid = np.array(devices).reshape([size for _, size in mesh])
    named = jax.sharding.Mesh(grid, tuple(name for name, _ in mesh))
    return jax.sharding.NamedSharding(
        named, jax.sharding.PartitionSpec(*(names or None for names in axes))
    )


def put(array: np.ndarray, sharding: jax.sharding.Sharding, *, copy: bool) -> jax.Array:
    """Bring a host array to the chips, each its part.

    Args:
        array: any shape; its dtype must be one that programs take (no 64-bit types).
        sharding: which part goes to which chip.
        copy: whether the chips own the memory afterwards. Without, a chip on the host reads a
            contiguous, 64-byte aligned part where it lies.
    """
    places = sharding.addressable_devices_indices_map(array.shape)
    shape = sharding.shard_shape(array.shape)
    # Part by part: of a partly replicated array at once, a forced copy fails (jaxlib 0.10.2).
    parts = [
        _put_part(array[index or ()], shape, device, copy=copy) for device, index in places.items()
    ]
    return parts[0] if len(parts) == 1 else joined(parts, array.shape, sharding)


def _put_part(
    part: np.ndarray, shape: tuple[int, ...], device: jax.Device, *, copy: bool
) -> jax.Array:
    """Bring one chip's part to it."""
    source = np.ascontiguousarray(part).reshape(shape)  # ascontiguousarray makes one axis of none
    aval = jax.core.ShapedArray(source.shape, source.dtype)
    # jax.device_put would alias 64-byte aligned numpy memory, even with may_alias=False
    # (jax 0.10.2): a later write by the host would change the array, and donation would copy.
    held = xla_client.batched_device_put(
        aval, _whole(device), [source], [device], committed=True, force_copy=copy
    )
    return cast("jax.Array", held)


@functools.cache
def _whole(device: jax.Device) -> jax.sharding.Sharding:
    """Give jax's word for "all of it on this device"."""
    return jax.sharding.SingleDeviceSharding(device)


def joined(
    parts: Sequence[jax.Array], shape: tuple[int, ...], sharding: jax.sharding.Sharding
) -> jax.Array:
    """Give the array that parts on the chips make up, without moving them.

    Args:
        parts: one a chip, in the order of the mesh.
        shape: of the whole array.
        sharding: where the parts lie.
    """
    return jax.make_array_from_single_device_arrays(shape, sharding, list(parts))
