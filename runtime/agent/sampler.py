"""Which samples a micro-shard holds, and which random draws it makes: pure functions of the job.

The order of an epoch is a keyed permutation of the sample numbers, so nothing is stored and a
resume needs one integer, the step. The permutation is a balanced Feistel network over the smallest
even number of bits that holds the count, walked along its cycles until it lands inside (Black and
Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, method 2).

Position g = step * micro_shards * micro_batch + shard * micro_batch + j counts samples since the
job began; epoch and place inside it are `divmod(g, count)`. So a batch may cross an epoch's border,
no sample is dropped at an epoch's end, and neither the number of islands nor the assignment of
shards has a part in it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

_ROUNDS = 8
# Below 2^6 a Feistel network reaches few of the permutations; walking inside a larger domain costs
# at most a few dozen rounds of a small vector and makes short epochs look shuffled, too.
_MIN_HALF_BITS = 3
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def sample_indices(
    *, seed: int, count: int, step: int, shard: int, micro_shards: int, micro_batch: int
) -> NDArray[np.int64]:
    """Give the samples of one micro-shard of one step.

    Args:
        seed: the job's seed.
        count: samples in the sample file, at least 1.
        step: the step, from 0.
        shard: the micro-shard, 0 <= shard < micro_shards.
        micro_shards: micro-shards in a step (M).
        micro_batch: samples in a micro-shard.

    Returns:
        Sample numbers, int64 [micro_batch], each in [0, count).

    Raises:
        ValueError: a count, step or shard outside its range.
    """
    if count < 1 or step < 0 or micro_batch < 1 or not 0 <= shard < micro_shards:
        msg = (
            f"no such shard: count={count} step={step} shard={shard} "
            f"micro_shards={micro_shards} micro_batch={micro_batch}"
        )
        raise ValueError(msg)
    first = (step * micro_shards + shard) * micro_batch
    positions = np.arange(first, first + micro_batch, dtype=np.int64)
    epochs, places = np.divmod(positions, count)
    indices = np.empty(micro_batch, np.int64)
    for epoch in np.unique(epochs):
        inside = epochs == epoch
        indices[inside] = permute(places[inside], seed=seed, epoch=int(epoch), count=count)
    return indices


def permute(places: NDArray[np.int64], *, seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Map places in an epoch to sample numbers, by that epoch's permutation.

    Args:
        places: int64 [n], each in [0, count).
        seed: the job's seed.
        epoch: the pass over the data, from 0.
        count: size of the permuted set.

    Returns:
        int64 [n]: over all places, every number in [0, count) exactly once.
    """
    half_bits = max(_MIN_HALF_BITS, (max(count - 1, 1).bit_length() + 1) // 2)
    keys = _round_keys(seed, epoch)
    values = _feistel(places.astype(np.uint64), keys, half_bits)
    outside = values >= count
    while outside.any():
        values[outside] = _feistel(values[outside], keys, half_bits)
        outside = values >= count
    return values.astype(np.int64)


def shard_key(seed: int, step: int, shard: int) -> NDArray[np.int32]:
    """Give the key of a micro-shard's random draws (dropout).

    Args:
        seed: the job's seed.
        step: the step, from 0.
        shard: the micro-shard.

    Returns:
        int32 [2], the bit pattern of two uint32 words, for the compiled program's `key` input.
    """
    digest = _derive(b"luma shard key v1", seed, step, shard, length=8)
    return np.frombuffer(digest, "<i4").astype(np.int32)


def _feistel(
    values: NDArray[np.uint64], keys: NDArray[np.uint64], half_bits: int
) -> NDArray[np.uint64]:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finalise as splitmix64 does; uint64 arrays wrap silently, which is meant."""
    words = (words ^ (words >> np.uint64(30))) * _MIX_1
    words = (words ^ (words >> np.uint64(27))) * _MIX_2
    return words ^ (words >> np.uint64(31))


@lru_cache(maxsize=8)
def _round_keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    digest = _derive(b"luma epoch order v1", seed, epoch, length=8 * _ROUNDS)
    return np.frombuffer(digest, "<u8").astype(np.uint64)


def _derive(domain: bytes, *numbers: int, length: int) -> bytes:
    """Hash integers of up to 127 bits under a domain name, so that no two uses share a stream."""
    message = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    return blake3(domain + b"\0" + message).digest(length=length)
