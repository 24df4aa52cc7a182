"""Keyed dropout in numpy (the meaning) and in torch (the same, for capture's eager twin)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.kernels.dropout.contract import MAX_ELEMENTS, PARITY, ROTATIONS, threshold

_WORD = 0xFFFFFFFF


def threefry2x32(
    key: tuple[int, int], counter: tuple[NDArray[np.uint32], NDArray[np.uint32]]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Give 64 random bits for each counter: Threefry-2x32 with 20 rounds.

    Args:
        key: two 32-bit words, as unsigned integers.
        counter: two arrays of uint32 of the same shape.

    Returns:
        two arrays of uint32 of that shape.
    """
    schedule = _schedule(key)
    with np.errstate(over="ignore"):
        x0 = counter[0] + np.uint32(schedule[0])
        x1 = counter[1] + np.uint32(schedule[1])
        for group in range(5):
            for rotation in ROTATIONS[group % 2]:
                x0 = x0 + x1
                x1 = (x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))
                x1 = x1 ^ x0
            x0 = x0 + np.uint32(schedule[(group + 1) % 3])
            x1 = x1 + np.uint32((schedule[(group + 2) % 3] + group + 1) & _WORD)
    return x0, x1


def keep_mask(count: int, p: float, key: tuple[int, int], call: int) -> NDArray[np.bool_]:
    """Give which of `count` elements, in flat order, are kept."""
    index = np.arange(count, dtype=np.uint32)
    draws, _ = threefry2x32(key, (index, np.full_like(index, call)))
    return draws.astype(np.uint64) >= threshold(p)


def dropout(x: Tensor, p: float, key: Tensor, call: int) -> Tensor:
    """Compute dropout as `contract` says.

    Args:
        x: any shape, a float dtype, at most 2**32 elements.
        p: probability of dropping an element, from 0 up to, not including, 1.
        key: int32[2].
        call: number of the call in the step.

    Raises:
        ValueError: p or the number of elements is out of range.
    """
    if x.numel() > MAX_ELEMENTS:
        raise ValueError(f"dropout of {x.numel()} elements; at most {MAX_ELEMENTS} have a draw")
    first, second = (int(word) & _WORD for word in key.tolist())
    kept = torch.from_numpy(keep_mask(x.numel(), p, (first, second), call)).view(x.shape)
    scale = float(np.float32(1.0) / np.float32(1.0 - p))
    return torch.where(kept, x * scale, torch.zeros((), dtype=x.dtype))


def _schedule(key: tuple[int, int]) -> tuple[int, int, int]:
    """Give the key's schedule: its words and their parity."""
    return key[0], key[1], PARITY ^ key[0] ^ key[1]
