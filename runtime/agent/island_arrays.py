"""Arrays over the chips of one process's island: cut as a program's partitions say, and back.

An array is held as equal parts along one axis, chip i holding part i, or whole by every chip.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

__all__ = ["joined", "spread"]

_AXIS = "chips"


def spread(array: np.ndarray, axis: int | None, devices: Sequence[jax.Device]) -> jax.Array:
    """Copy a host array to the chips.

    Args:
        array: any shape; its size along `axis` is a multiple of the number of chips.
        axis: the axis that it is cut along; None gives every chip all of it.
        devices: the chips, in order.
    """
    count = len(devices)
    parts = [array] * count if axis is None else np.split(array, count, axis)
    # Each part is a copy of its own: jax may go on reading host memory where it lies.
    held = [
        jax.device_put(part.copy(), device) for part, device in zip(parts, devices, strict=True)
    ]
    return joined(held, array.shape, axis, devices)


def joined(
    parts: Sequence[jax.Array],
    shape: tuple[int, ...],
    axis: int | None,
    devices: Sequence[jax.Device],
) -> jax.Array:
    """Give the array that parts on the chips make up, without moving them.

    Args:
        parts: one a chip, in order.
        shape: of the whole array.
        axis: the axis that it is cut along; None where every chip holds all of it.
        devices: the chips, in order.
    """
    mesh = jax.sharding.Mesh(np.array(devices), (_AXIS,))
    split = () if axis is None else (*(None,) * axis, _AXIS)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*split))
    return jax.make_array_from_single_device_arrays(shape, sharding, list(parts))
