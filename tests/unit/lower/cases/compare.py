"""Cases of comparisons, logic, bits and selection."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.lower.support import BOOL, FLOATS, HALVES, INTS, PAIRS, Case, Draw

_ANY = (*FLOATS, *HALVES, *INTS, *BOOL)


def _binary(*dtypes: torch.dtype, low: float = -4.0) -> Any:
    def draw(d: Draw) -> Any:
        left, right = d.pick(*PAIRS)
        return (d.tensor(left, *dtypes, low=low), d.tensor(right, *dtypes, low=low)), {}

    return draw


def _scalar(*dtypes: torch.dtype, values: tuple[Any, ...]) -> Any:
    return lambda d: ((d.tensor(d.shape(), *dtypes), d.pick(*values)), {})


def _bits(d: Draw) -> Any:
    left, right = d.pick(*PAIRS)
    dtype = d.pick(*INTS, *BOOL)
    return (d.tensor(left, dtype), d.tensor(right, dtype)), {}


def _shift(d: Draw) -> Any:
    shape = d.shape()
    return (d.tensor(shape, torch.int64), d.tensor(shape, torch.int64, low=0, high=9)), {}


def _shift_scalar(d: Draw) -> Any:
    return (d.tensor(d.shape(), torch.int64), d.pick(0, 1, 5)), {}


def _where(d: Draw) -> Any:
    left, right = d.pick(*PAIRS)
    return (d.tensor(left, *BOOL), d.tensor(left, *_ANY), d.tensor(right, *_ANY)), {}


def _where_self_scalar(d: Draw) -> Any:
    left, right = d.pick(*PAIRS)
    return (d.tensor(left, *BOOL), d.pick(1, -0.5), d.tensor(right, *FLOATS)), {}


def _where_other_scalar(d: Draw) -> Any:
    (condition, scalar, x), _ = _where_self_scalar(d)
    return (condition, x, scalar), {}


def _where_scalars(d: Draw) -> Any:
    return (d.tensor(d.shape(), *BOOL), d.pick(1, 2), d.pick(-3, 0)), {}


def _masked_fill(d: Draw) -> Any:
    left, right = d.pick(((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 3), ()), ((0, 3), (1, 3)))
    x = d.tensor(left, *FLOATS, *HALVES, torch.int64)
    value = d.pick(0, 1, -2.0) if x.dtype != torch.int64 else d.pick(0, -7)
    return (x, d.tensor(right, *BOOL), value), {}


def _masked_fill_tensor(d: Draw) -> Any:
    (x, mask, value), _ = _masked_fill(d)
    return (x, mask, torch.tensor(value, dtype=x.dtype)), {}


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

CASES = [
    *(Case(f"aten.{name}.Tensor", _binary(*_ANY)) for name in _COMPARISONS),
    *(Case(f"aten.{name}.Scalar", _scalar(*_ANY, values=(0, 1, 2.5))) for name in _COMPARISONS),
    *(Case(f"aten.logical_{name}.default", _binary(*_ANY)) for name in ("and", "or", "xor")),
    *(Case(f"aten.bitwise_{name}.Tensor", _bits) for name in ("and", "or", "xor")),
    *(
        Case(f"aten.bitwise_{name}.Scalar", _scalar(*INTS, values=(0, 1, 6)))
        for name in ("and", "or", "xor")
    ),
    Case("aten.logical_not.default", lambda d: ((d.tensor(d.shape(), *_ANY),), {})),
    Case("aten.bitwise_not.default", lambda d: ((d.tensor(d.shape(), *INTS, *BOOL),), {})),
    Case("aten.isnan.default", lambda d: ((d.tensor(d.shape(), *_ANY),), {})),
    Case("aten.isinf.default", lambda d: ((d.tensor(d.shape(), *FLOATS, *HALVES),), {})),
    *(
        Case(f"aten.{name}.{overload}", draw)
        for names, overload, draw in (
            (("bitwise_left_shift", "bitwise_right_shift"), "Tensor", _shift),
            (("bitwise_left_shift", "bitwise_right_shift"), "Tensor_Scalar", _shift_scalar),
            (("__lshift__", "__rshift__"), "Tensor", _shift),
            (("__lshift__", "__rshift__"), "Scalar", _shift_scalar),
        )
        for name in names
    ),
    Case("aten.where.self", _where),
    Case("aten.where.ScalarSelf", _where_self_scalar),
    Case("aten.where.ScalarOther", _where_other_scalar),
    Case("aten.where.Scalar", _where_scalars),
    Case("aten.masked_fill.Scalar", _masked_fill),
    Case("aten.masked_fill.Tensor", _masked_fill_tensor),
]
