"""The numbers of block fixed point that need no jax: block size, bounds, block counts.

`runtime.compiler.fixed_point` says what they guard. The exponents that the programs and the nodes
must agree on stand in `runtime.artifact.program`.
"""

from __future__ import annotations

from runtime.spec import CompileError

BLOCK_SIZE = 4096
"""Elements of a block."""

MAX_SHARDS = 1 << 20
"""Most micro-shards of a step: eleven bits stay for an element."""


def n_blocks(size: int) -> int:
    """Give the number of blocks of a parameter with `size` elements."""
    return -(-size // BLOCK_SIZE)


def shard_bits(micro_shards: int) -> int:
    """Give m = ceil(log2 M), the bits that a sum over M micro-shards may add.

    Raises:
        CompileError: `micro_shards` is not between 1 and `MAX_SHARDS`.
    """
    if not 1 <= micro_shards <= MAX_SHARDS:
        message = (
            f"train.micro_shards: {micro_shards} is not allowed; expected 1 to {MAX_SHARDS}, "
            "since a sum over them must fit int32"
        )
        raise CompileError(message)
    return (micro_shards - 1).bit_length()
