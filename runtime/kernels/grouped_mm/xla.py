"""Grouped products as plain XLA operations: a loop over tiles of one group's rows each.

`jax.lax.ragged_dot` means the same, but XLA writes it as one product over the rows of all groups,
zeroed outside each: its arithmetic and memory are `groups` times those that are needed (on every
target but TPU). Here the rows are cut into tiles, none of which crosses a group, and a loop
multiplies one tile after the other with its group's matrix. The number of tiles depends on the
data, so the loop ends by a value; shapes stay fixed. A group's last tile is partly empty, which
costs half a tile a group on average.

CPU time in ms on 2 AVX2 cores, of one product of all rows with one matrix, of grouped_mm, of it
transposed, of grouped_outer; and of ragged_dot and of its derivative (wall time, the host busy):

| rows, groups, in, out | one matrix | product | transposed | outer | ragged_dot | derivative |
|---|---|---|---|---|---|---|
| 1024, 8, 512, 1024 | 11 | 17 | 18 | 22 | 306 | 1,042 |
| 2048, 32, 512, 512 | 11 | 21 | 24 | 42 | 2,160 | 4,576 |
| 4096, 128, 512, 384 | 16 | 40 | 44 | 96 | 9,184 | 27,604 |

(of the last outer's 96 ms, 36 go into clearing its 100 MB result)
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from runtime.kernels.grouped_mm.contract import sizes_of_outer, sizes_of_product

# Half a group's mean rows measured best between these, the empty places of last tiles weighed
# against reading a group's matrix again for each tile.
_SMALLEST_TILE, _LARGEST_TILE = 32, 128


class _Tile(NamedTuple):
    """A tile: its group, where its rows begin, and which of its places [size, 1] hold one."""

    group: Array
    begin: Array
    filled: Array


class _Tiles(NamedTuple):
    """How the rows are cut.

    Attributes:
        size: places of a tile.
        count: int32[], the number of tiles.
        ends: int32[groups], the number of tiles up to and with each group's.
        starts: int32[groups], the first row of each group.
        stops: int32[groups], the row behind each group's last.
    """

    size: int
    count: Array
    ends: Array
    starts: Array
    stops: Array

    def tile(self, index: Array) -> _Tile:
        """Give one of the tiles."""
        group = jnp.sum(self.ends <= index, dtype=jnp.int32)
        before = jnp.where(group == 0, 0, self.ends[group - 1])
        begin = self.starts[group] + (index - before) * self.size
        places = begin + lax.iota(jnp.int32, self.size)
        return _Tile(group, begin, (places < self.stops[group])[:, None])

    def padded(self, x: Array) -> Array:
        """Add a tile of zero rows, so that the last tile can be read whole."""
        return jnp.pad(x, ((0, self.size), (0, 0)))

    def rows(self, padded: Array, tile: _Tile) -> Array:
        """Read a tile's rows [size, width], the next ones' included where it is not full."""
        return lax.dynamic_slice_in_dim(padded, tile.begin, self.size)


def grouped_mm(rows: Array, weights: Array, group_sizes: Array, transposed: bool = False) -> Array:
    """Multiply each group's rows with its matrix, as `contract` says.

    Args:
        rows: [n, in], sorted by group, any float dtype.
        weights: [groups, in, out], or [groups, out, in] if transposed.
        group_sizes: int32[groups].
        transposed: whether a group's matrix is used transposed.

    Returns:
        [n, out], in rows' dtype; zero for rows behind the last group.
    """
    sizes = sizes_of_product(rows.shape, weights.shape, group_sizes.shape, transposed)
    tiles = _cut(group_sizes, sizes.rows)
    padded = tiles.padded(rows)

    def body(index: Array, out: Array) -> Array:
        tile = tiles.tile(index)
        matrix = lax.dynamic_index_in_dim(weights, tile.group, keepdims=False)
        product = _product(tiles.rows(padded, tile), matrix, (1, 1 if transposed else 0))
        kept = jnp.where(tile.filled, product, 0).astype(rows.dtype)
        # The empty places of a tile lie over the next one's rows, which are written after it.
        return lax.dynamic_update_slice_in_dim(out, kept, tile.begin, 0)

    out = jnp.zeros((sizes.rows + tiles.size, sizes.outer), rows.dtype)
    return lax.fori_loop(0, tiles.count, body, out)[: sizes.rows]


def grouped_outer(left: Array, right: Array, group_sizes: Array) -> Array:
    """Sum the outer products of each group's rows, as `contract` says.

    Args:
        left: [n, in], sorted by group, any float dtype.
        right: [n, out].
        group_sizes: int32[groups].

    Returns:
        [groups, in, out], in left's dtype.
    """
    sizes = sizes_of_outer(left.shape, right.shape, group_sizes.shape)
    tiles = _cut(group_sizes, sizes.rows)
    lefts, rights = tiles.padded(left), tiles.padded(right)

    def body(index: Array, out: Array) -> Array:
        tile = tiles.tile(index)
        # Both are zeroed: the next group's rows count for nothing here even if they hold a NaN.
        left_part, right_part = (
            jnp.where(tile.filled, tiles.rows(x, tile), 0) for x in (lefts, rights)
        )
        product = _product(left_part, right_part, (0, 0))
        before = lax.dynamic_index_in_dim(out, tile.group, keepdims=False)
        return lax.dynamic_update_index_in_dim(out, before + product, tile.group, 0)

    out = jnp.zeros((sizes.groups, sizes.inner, sizes.outer), jnp.float32)
    return lax.fori_loop(0, tiles.count, body, out).astype(left.dtype)


def _cut(group_sizes: Array, rows: int) -> _Tiles:
    """Cut the rows of each group into tiles."""
    size = _tile_size(rows, group_sizes.shape[0])
    stops = jnp.cumsum(group_sizes, dtype=jnp.int32)
    ends = jnp.cumsum((group_sizes + (size - 1)) // size, dtype=jnp.int32)
    return _Tiles(size=size, count=ends[-1], ends=ends, starts=stops - group_sizes, stops=stops)


def _tile_size(rows: int, groups: int) -> int:
    """Give the places of a tile: the power of two below half a group's mean rows, bounded."""
    half = max(1, rows // (2 * groups))
    return min(max(1 << (half.bit_length() - 1), _SMALLEST_TILE), _LARGEST_TILE)


def _product(x: Array, y: Array, contracted: tuple[int, int]) -> Array:
    """Multiply two matrices over one axis of each, with float32 sums."""
    axes = (((contracted[0],), (contracted[1],)), ((), ()))
    return lax.dot_general(
        x, y, axes, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )
