"""Cases of reductions, running sums and norms."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.lower.support import BOOL, FLOATS, HALVES, INTS, SHAPES, Case, Draw

_FULL_SHAPES = tuple(shape for shape in SHAPES if 0 not in shape)
_ALL_DTYPES = (*FLOATS, *HALVES, *INTS, *BOOL)


def _whole(*dtypes: torch.dtype, empty: bool = True, edges: bool = True) -> Any:
    shapes = SHAPES if empty else _FULL_SHAPES
    return lambda d: ((d.tensor(d.pick(*shapes), *dtypes, edges=edges),), {})


def _one_dim(*dtypes: torch.dtype, empty: bool = True, edges: bool = True) -> Any:
    def draw(d: Draw) -> Any:
        shape = d.pick(*(SHAPES if empty else _FULL_SHAPES))
        return (d.tensor(shape, *dtypes, edges=edges), d.dim(shape), d.pick(True, False)), {}

    return draw


def _many_dims(*dtypes: torch.dtype, empty: bool = True, edges: bool = True) -> Any:
    def draw(d: Draw) -> Any:
        shape = d.pick(*(SHAPES if empty else _FULL_SHAPES))
        dims = d.pick([d.dim(shape)], [], list(range(len(shape))))
        return (d.tensor(shape, *dtypes, edges=edges), dims, d.pick(True, False)), {}

    return draw


def _typed(draw: Any, *options: torch.dtype) -> Any:
    def with_dtype(d: Draw) -> Any:
        args, _ = draw(d)
        return args, d.pick({}, *({"dtype": dtype} for dtype in options))

    return with_dtype


def _moments(d: Draw) -> Any:
    (x, dims, keepdim), _ = _many_dims(*FLOATS, empty=False, edges=False)(d)
    return (x, dims), {"correction": d.pick(0, 1, None), "keepdim": keepdim}


def _norm(d: Draw) -> Any:
    (x, dims, keepdim), _ = _many_dims(*FLOATS, empty=False, edges=False)(d)
    order = d.pick(2, 1, 0, 3, float("inf"), -float("inf"))
    return (x, order, dims or None, keepdim), d.pick({}, {"dtype": torch.float32})


def _logsumexp(d: Draw) -> Any:
    (x, dim, keepdim), _ = _one_dim(*FLOATS, empty=False, edges=False)(d)
    return (x, d.pick([dim], list(range(x.ndim)) or [0]), keepdim), {}


def _arg(d: Draw) -> Any:
    shape = d.pick(*_FULL_SHAPES)
    return (
        d.tensor(shape, *FLOATS, torch.int64),
        d.pick(None, d.dim(shape)),
        d.pick(True, False),
    ), {}


def _running(*dtypes: torch.dtype, edges: bool = True) -> Any:
    def draw(d: Draw) -> Any:
        shape = d.shape()
        return (d.tensor(shape, *dtypes, edges=edges), d.dim(shape)), d.pick(
            {}, {"dtype": torch.float32}
        )

    return draw


_CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
_SUMMED = (*FLOATS, *INTS, *BOOL)

CASES = [
    Case("aten.sum.default", _typed(_whole(*_SUMMED, edges=False), torch.float32), **_CLOSE),
    Case(
        "aten.sum.dim_IntList", _typed(_many_dims(*_SUMMED, edges=False), torch.float32), **_CLOSE
    ),
    Case("aten.mean.default", _whole(*FLOATS, edges=False), **_CLOSE),
    Case("aten.mean.dim", _many_dims(*FLOATS, *HALVES, edges=False), **_CLOSE),
    Case("aten.prod.default", _whole(*FLOATS, torch.int64, edges=False), **_CLOSE),
    Case("aten.prod.dim_int", _one_dim(*FLOATS, torch.int64, edges=False), **_CLOSE),
    Case("aten.any.default", _whole(*_ALL_DTYPES)),
    Case("aten.any.dim", _one_dim(*_ALL_DTYPES)),
    Case("aten.any.dims", _many_dims(*_ALL_DTYPES)),
    Case("aten.all.default", _whole(*_ALL_DTYPES)),
    Case("aten.all.dim", _one_dim(*_ALL_DTYPES)),
    Case("aten.all.dims", _many_dims(*_ALL_DTYPES)),
    Case("aten.amax.default", _many_dims(*FLOATS, torch.int64, empty=False)),
    Case("aten.amin.default", _many_dims(*FLOATS, torch.int64, empty=False)),
    Case("aten.max.default", _whole(*FLOATS, torch.int64, empty=False)),
    Case("aten.min.default", _whole(*FLOATS, torch.int64, empty=False)),
    Case("aten.argmax.default", _arg),
    Case("aten.argmin.default", _arg),
    Case("aten.max.dim", _one_dim(*FLOATS, torch.int64, empty=False)),
    Case("aten.min.dim", _one_dim(*FLOATS, torch.int64, empty=False)),
    Case("aten.var.correction", _moments, **_CLOSE),
    Case("aten.var_mean.correction", _moments, **_CLOSE),
    Case("aten.std.correction", _moments, **_CLOSE),
    Case("aten.linalg_vector_norm.default", _norm, **_CLOSE),
    Case(
        "aten.logsumexp.default",
        _logsumexp,
        **_CLOSE,
    ),
    Case("aten.cumsum.default", _running(*_SUMMED, edges=False), **_CLOSE),
    Case("aten.cumprod.default", _running(*FLOATS, torch.int64, edges=False), **_CLOSE),
]
