"""Cases of reading and writing elements by place."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.lower.support import BOOL, FLOATS, HALVES, Case, Draw

_ANY = (*FLOATS, *HALVES, torch.int64, *BOOL)
_SUMS = (*FLOATS, torch.int64)
_CLOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6}


def _bounds(d: Draw) -> tuple[int | None, int | None, int]:
    return d.pick(None, 0, 1, -2, 9), d.pick(None, 2, -1, 9, 2**63 - 1), d.pick(1, 2)


def _slice(d: Draw) -> Any:
    shape = d.shape(rank_from=1)
    return (d.tensor(shape, *_ANY), d.dim(shape), *_bounds(d)), {}


def _slice_scatter(d: Draw) -> Any:
    shape, dtype = d.shape(rank_from=1), d.pick(*_ANY)
    x, dim, bounds = d.tensor(shape, dtype), d.dim(shape), _bounds(d)
    part = torch.ops.aten.slice.Tensor(x, dim, *bounds)
    return (x, d.tensor(part.shape, dtype), dim, *bounds), {}


def _select(d: Draw) -> Any:
    shape = d.pick((3,), (2, 3), (2, 3, 4))
    dim = d.dim(shape)
    return (d.tensor(shape, *_ANY), dim, d.pick(0, -1, shape[dim] - 1)), {}


def _select_scatter(d: Draw) -> Any:
    (x, dim, index), _ = _select(d)
    part = torch.ops.aten.select.int(x, dim, index)
    return (x, d.tensor(part.shape, x.dtype), dim, index), {}


def _index_select(d: Draw) -> Any:
    shape = d.pick((3,), (2, 3), (2, 3, 4))
    dim = d.dim(shape)
    return (d.tensor(shape, *_ANY), dim, d.index(d.pick((4,), (0,), ()), shape[dim])), {}


def _embedding(d: Draw) -> Any:
    indices = d.index(d.pick((4,), (2, 3), (0,), ()), 5)
    return (d.tensor((5, 3), *FLOATS, *HALVES), indices, d.pick(-1, 2)), {}


def _embedding_backward(d: Draw) -> Any:
    indices = d.index(d.pick((4,), (2, 3), (0,)), 5)
    grad = d.tensor((*indices.shape, 3), *FLOATS, edges=False)
    return (grad, indices, 5, d.pick(-1, 2), d.pick(False, True)), {}


def _gather(d: Draw) -> Any:
    shape, dim, index = d.pick(
        ((3, 4), 1, (3, 2)),
        ((3, 4), -2, (5, 4)),
        ((3, 4), 0, (0, 4)),
        ((2, 3, 4), 2, (1, 2, 9)),
        ((), 0, ()),
    )
    size = shape[dim] if shape else 1
    return (d.tensor(shape, *_ANY), dim, d.index(index, size)), {}


def _distinct_places(d: Draw, shape: tuple[int, ...], dim: int, size: int) -> torch.Tensor:
    """Give an index whose places along the dimension do not repeat."""
    keys = d.distinct(tuple(size if i == dim else s for i, s in enumerate(shape)))
    return keys.argsort(dim).narrow(dim, 0, shape[dim])


def _scatter_places(d: Draw) -> Any:
    shape, dim, index = d.pick(
        ((3, 4), 1, (3, 2)),
        ((3, 4), 1, (3, 1)),
        ((3, 4), 0, (2, 4)),
        ((3, 4), 0, (0, 4)),
        ((2, 3, 4), 2, (1, 2, 4)),
    )
    return shape, dim, _distinct_places(d, index, dim, shape[dim])


def _scatter_src(d: Draw) -> Any:
    shape, dim, index = _scatter_places(d)
    dtype = d.pick(*_ANY)
    return (d.tensor(shape, dtype), dim, index, d.tensor(shape, dtype)), {}


def _scatter_value(d: Draw) -> Any:
    shape, dim, index = _scatter_places(d)
    return (d.tensor(shape, *FLOATS, torch.int64), dim - len(shape), index, d.pick(0, -7)), {}


def _scatter_add(d: Draw) -> Any:
    shape, dim, index = d.pick(
        ((3, 4), 1, (3, 6)), ((3, 4), 0, (2, 4)), ((3,), 0, (0,)), ((), 0, ())
    )
    dtype = d.pick(*_SUMS)
    x, source = d.tensor(shape, dtype, edges=False), d.tensor(index, dtype, edges=False)
    return (x, dim, d.index(index, shape[dim] if shape else 1), source), {}


def _indices(d: Draw) -> tuple[list[torch.Tensor | None], tuple[int, ...]]:
    """Give indices of a [3, 4, 5] tensor, and the shape that they read."""
    one, two = d.index((2,), 3, negative=True), d.index((2, 1), 4, negative=True)
    three = d.index((2,), 5, negative=True)
    options = [
        [one],
        [None, two],
        [one, None, three],
        [one, two],
        [one, two, three],
        [None, None, three],
    ]
    chosen = d.pick(*options)
    return chosen, tuple(
        torch.zeros(3, 4, 5)[[slice(None) if c is None else c for c in chosen]].shape
    )


def _index(d: Draw) -> Any:
    return (d.tensor((3, 4, 5), *_ANY), _indices(d)[0]), {}


def _index_put_add(d: Draw) -> Any:
    dtype = d.pick(*_SUMS)
    indices, shape = _indices(d)
    values = d.tensor(d.pick(shape, ()), dtype, edges=False)
    return (d.tensor((3, 4, 5), dtype, edges=False), indices, values, True), {}


def _index_put(d: Draw) -> Any:
    dtype = d.pick(*_ANY)
    x = d.tensor((3, 4, 5), dtype)
    if d.pick(True, False):
        mask = d.tensor(d.pick((3, 4, 5), (3, 4), (3,)), *BOOL)
        return (x, [mask], d.tensor(d.pick((), (1,)), dtype)), {}
    rows = _distinct_places(d, (2,), 0, 3)
    return (x, [rows], d.tensor((2, 4, 5), dtype)), {}


def _index_add(d: Draw) -> Any:
    dtype = d.pick(*_SUMS)
    x, dim = d.tensor((3, 4), dtype, edges=False), d.pick(0, -1)
    index = d.index((6,), 3)
    source = d.tensor((6, 4) if dim == 0 else (3, 6), dtype, edges=False)
    return (x, dim, index, source), d.pick({}, {"alpha": 2})


CASES = [
    Case("aten.slice.Tensor", _slice),
    Case("aten.slice_scatter.default", _slice_scatter),
    Case("aten.select.int", _select),
    Case("aten.select_scatter.default", _select_scatter),
    Case("aten.index_select.default", _index_select),
    Case("aten.embedding.default", _embedding),
    Case("aten.embedding_dense_backward.default", _embedding_backward, **_CLOSE),
    Case("aten.gather.default", _gather),
    Case("aten.scatter.src", _scatter_src),
    Case("aten.scatter.value", _scatter_value),
    Case("aten.scatter_add.default", _scatter_add, **_CLOSE),
    Case("aten.index.Tensor", _index),
    Case("aten.index_put.default", lambda d: d.pick(_index_put, _index_put_add)(d), **_CLOSE),
    Case("aten._unsafe_index_put.default", _index_put_add, **_CLOSE),
    Case("aten.index_add.default", _index_add, **_CLOSE),
]
