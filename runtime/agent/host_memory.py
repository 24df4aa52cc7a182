"""Host memory that a device on the host can read where it lies."""

from __future__ import annotations

import numpy as np

__all__ = ["aligned_zeros"]

_ALIGNMENT = 64
"""Bytes; PJRT copies host memory that is aligned to less."""


def aligned_zeros(count: int, dtype: type[np.generic]) -> np.ndarray:
    """Give `count` zeros in one axis that a loader need not copy; untouched, they take no room.

    Args:
        count: elements.
        dtype: their type.
    """
    size = count * np.dtype(dtype).itemsize
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype)
