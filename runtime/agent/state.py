"""The training state of a job, and its hash.

The state after step t is a function of the job alone, so its hash is what islands compare, what the
certificate prints and what a checkpoint is checked against.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Everything that a step changes.

    Attributes:
        step: number of applied steps; 0 is the initial state.
        params: trained parameters by name, float32 in the parameter's shape.
        moment1: AdamW's first moments, same names and shapes, float32.
        moment2: AdamW's second moments, same names and shapes, float32.
        block_exponents: int32 [n_blocks], E = floor(log2 max|g|) of each block in the last
            committed step, parameters in name order.
    """

    step: int
    params: Arrays
    moment1: Arrays
    moment2: Arrays
    block_exponents: NDArray[np.int32]

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Give every array of the state in a fixed order: params, moment1, moment2, exponents."""
        for group in ("params", "moment1", "moment2"):
            arrays: Arrays = getattr(self, group)
            for name in sorted(arrays):
                yield f"{group}/{name}", arrays[name]
        yield "block_exponents", self.block_exponents

    def size_bytes(self) -> int:
        """Count the bytes of all arrays."""
        return sum(array.nbytes for _, array in self.arrays())

    def hash(self, *, threads: int = 1) -> str:
        """Give `state_hash` of this state."""
        return state_hash(self.params, self.moment1, self.moment2, threads=threads)


def initial_state(params: Arrays, *, n_blocks: int, exponent: int = -1024) -> TrainState:
    """Make the state before the first step: zero moments, and no block seen yet.

    Args:
        params: float32 arrays by name; used as they are, not copied.
        n_blocks: blocks of all parameters together.
        exponent: the mark of a block without a maximum.

    Returns:
        The state at step 0. Its zeros take no memory until they are written.
    """
    return TrainState(
        step=0,
        params=params,
        moment1={name: np.zeros(array.shape, np.float32) for name, array in params.items()},
        moment2={name: np.zeros(array.shape, np.float32) for name, array in params.items()},
        block_exponents=np.full(n_blocks, exponent, np.int32),
    )


def state_hash(
    params: Mapping[str, np.ndarray],
    moment1: Mapping[str, np.ndarray],
    moment2: Mapping[str, np.ndarray],
    *,
    threads: int = 1,
) -> str:
    """Hash a state: BLAKE3 over parameters, then moments, in name order, little-endian bytes.

    Contiguous arrays are hashed where they lie. The result does not depend on `threads`.

    Args:
        params: parameters by name.
        moment1: first moments by name.
        moment2: second moments by name.
        threads: threads of the hash; 0 takes one a core.

    Returns:
        64 hex digits.
    """
    hasher = blake3(max_threads=threads or blake3.AUTO)
    for group in (params, moment1, moment2):
        for name in sorted(group):
            hasher.update(little_endian_bytes(group[name]))
    return hasher.hexdigest()


def little_endian_bytes(array: np.ndarray) -> memoryview:
    """Give an array's bytes in C order, little-endian, without a copy where the array allows it."""
    if sys.byteorder == "big" or array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data
