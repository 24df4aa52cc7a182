"""Cases of constants, counters, sorting and the largest elements."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.lower.support import BOOL, FLOATS, INTS, Case, Draw

_DTYPES = (*FLOATS, torch.int64, *BOOL)
_LIMITS = (2**63 - 1, -(2**31), 2**31 - 1)


def _typed(d: Draw, *args: Any) -> Any:
    return args, d.pick({}, *({"dtype": dtype} for dtype in _DTYPES))


def _like(d: Draw) -> Any:
    return _typed(d, d.tensor(d.shape(), *_DTYPES))


def _new(d: Draw) -> Any:
    return _typed(d, d.tensor((2,), *_DTYPES), list(d.shape()))


def _sort(d: Draw) -> Any:
    shape = d.shape()
    return (d.distinct(shape, *FLOATS, *INTS[:2]), d.dim(shape), d.pick(True, False)), {}


def _sort_stable(d: Draw) -> Any:
    shape = d.shape()
    x = d.tensor(shape, *FLOATS, torch.int64)
    return (x,), {"stable": True, "dim": d.dim(shape), "descending": d.pick(True, False)}


def _topk(d: Draw) -> Any:
    shape, k, dim = d.pick(
        ((5,), 3, 0), ((2, 3), 2, -1), ((4, 3), 4, 0), ((2, 3), 0, 1), ((), 1, 0)
    )
    return (d.distinct(shape, *FLOATS, torch.int64), k, dim, d.pick(True, False), True), {}


def _only_shape(d: Draw) -> Any:
    return _typed(d, list(d.shape()))


CASES = [
    Case("aten.full.default", lambda d: _typed(d, list(d.shape()), d.pick(0, 1, True, -2))),
    Case("aten.full_like.default", lambda d: _typed(d, d.tensor((2, 3), *_DTYPES), d.pick(0, 1))),
    Case("aten.new_full.default", lambda d: _typed(d, d.tensor((2,), *_DTYPES), [2, 0], 1)),
    Case("aten.fill.Scalar", lambda d: ((d.tensor(d.shape(), *_DTYPES), d.pick(0, 1, 2.5)), {})),
    Case("aten.fill.Tensor", lambda d: ((d.tensor(d.shape(), *_DTYPES), torch.tensor(3)), {})),
    Case("aten.zeros.default", _only_shape),
    Case("aten.ones.default", _only_shape),
    Case("aten.zeros_like.default", _like),
    Case("aten.ones_like.default", _like),
    Case("aten.new_zeros.default", _new),
    Case("aten.new_ones.default", _new),
    Case("aten.scalar_tensor.default", lambda d: _typed(d, d.pick(0, 1, -2.5, 7))),
    Case("aten.arange.default", lambda d: ((d.pick(0, 5, 2.5),), {})),
    Case("aten.arange.start", lambda d: ((d.pick(0, 2, -3), d.pick(2, 5)), {})),
    Case("aten.arange.start_step", lambda d: ((d.pick(0, 2), d.pick(5, 6), d.pick(1, 2, 0.5)), {})),
    Case("aten.sort.default", _sort),
    Case("aten.sort.stable", _sort_stable),
    Case("aten.argsort.default", _sort),
    Case("aten.topk.default", _topk),
]
# Their values are open in torch, or they give none; getitem is in every case of several results.
# test_every_op_has_a_case.py looks at them.
UNCOMPARED = frozenset(
    {
        "aten.empty.memory_format",
        "aten.empty_like.default",
        "aten.empty_permuted.default",
        "aten.empty_strided.default",
        "aten.new_empty.default",
        "aten.new_empty_strided.default",
        "aten._assert_tensor_metadata.default",
        "aten._assert_scalar.default",
        "getitem",
    }
)
