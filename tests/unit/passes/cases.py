"""Arguments for the decomposed ops beyond those that the lowerings' own cases draw."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.lower.support import FLOATS, HALVES, Case, Draw


def _index_put(d: Draw) -> Any:
    """Indices of one or two dimensions, whole ones before them, negative places, repeated sums."""
    shape, chosen, values = d.pick(
        ((5, 3), ((4,),), (4, 3)),
        ((5, 3), (None, (3,)), (5, 3)),
        ((2, 5, 3), (None, (2, 1), (2,)), (2, 2, 2)),
        ((4, 5, 3), ((3, 1), None, (2,)), (3, 2, 5)),
    )
    accumulate = d.pick(False, True)
    dtype = d.pick(torch.float32, torch.int64)
    indices = []
    for size, index in zip(shape, chosen, strict=False):
        if index is None:
            indices.append(None)
        elif accumulate:
            indices.append(d.index(index, size, negative=True))
        else:
            count = int(torch.tensor(index).prod())
            indices.append(d.distinct((size,)).argsort()[:count].reshape(index))
    x = d.tensor(shape, dtype, edges=False)
    return (x, indices, d.tensor(values, dtype, edges=not accumulate), accumulate), {}


def _embedding(d: Draw) -> Any:
    indices = d.index(d.pick((4,), (2, 3), (0,), ()), 5)
    return (d.tensor((5, 3), *FLOATS, *HALVES, edges=False), indices, d.pick(-1, 2)), {}


def _grouped(d: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    sizes = d.pick((3, 0, 2, 1), (0, 0, 0, 6), (1, 1, 1, 1), (0, 0, 0, 0))
    return d.tensor((7, 3), *FLOATS, *HALVES, edges=False), torch.tensor(sizes, dtype=torch.int32)


def _grouped_mm(d: Draw) -> Any:
    rows, sizes = _grouped(d)
    transposed = d.pick(False, True)
    shape = (4, 5, 3) if transposed else (4, 3, 5)
    return (rows, d.tensor(shape, rows.dtype, edges=False), sizes, transposed), {}


def _grouped_outer(d: Draw) -> Any:
    left, sizes = _grouped(d)
    return (left, d.tensor((7, 5), left.dtype, edges=False), sizes), {}


def _integers(d: Draw) -> Any:
    return d.tensor((3, 4), torch.int64, low=-9e4, high=9e4), d.tensor(
        (4, 2), torch.int64, low=-9e3, high=9e3
    )


def _divided(d: Draw) -> Any:
    x = d.tensor((3, 4), torch.int64, torch.int32, low=-99, high=99)
    y = d.tensor(d.pick((3, 4), (4,)), x.dtype, low=-9, high=9)
    return x, torch.where(y == 0, 7, y).to(x.dtype)


def _convolution_backward(d: Draw) -> Any:
    """Depthwise, grouped and plain ones, in one and two dimensions of space."""
    x, weight, padding, dilation, groups = d.pick(
        ((2, 4, 9), (4, 1, 4), (3,), (1,), 4),
        ((2, 4, 9), (6, 2, 3), (1,), (2,), 2),
        ((1, 3, 6, 5), (2, 3, 3, 2), (1, 0), (1, 1), 1),
        ((2, 4, 6), (4, 4, 1), (0,), (1,), 1),
        ((1, 2, 5), (2, 2, 2), (2,), (1,), 1),
    )
    given, kernel = d.tensor(x, edges=False), d.tensor(weight, edges=False)
    stride, nothing = (1,) * len(padding), (0,) * len(padding)
    options = (stride, padding, dilation, False, nothing, groups)
    result = torch.ops.aten.convolution.default(given, kernel, None, *options)
    grad = d.tensor(result.shape, edges=False)
    return (grad, given, kernel, [weight[0]], *options, [True, True, d.pick(True, False)]), {}


CASES = (
    Case("aten.index_put.default", _index_put, rtol=1e-5, atol=1e-5),
    Case("aten._unsafe_index_put.default", _index_put, rtol=1e-5, atol=1e-5),
    Case("luma.grouped_mm.default", _grouped_mm, rtol=1e-5, atol=1e-5),
    Case("luma.grouped_outer.default", _grouped_outer, rtol=1e-5, atol=1e-5),
    Case("aten.mm.default", lambda d: (_integers(d), {})),
    Case(
        "aten.bmm.default",
        lambda d: (tuple(x.expand(2, *x.shape).contiguous() for x in _integers(d)), {}),
    ),
    Case("aten.embedding.default", _embedding),
    *(
        Case(f"aten.{name}", lambda d: (_divided(d), {}))
        for name in ("remainder.Tensor", "fmod.Tensor", "floor_divide.default")
    ),
    Case("aten.div.Tensor_mode", lambda d: (_divided(d), {"rounding_mode": "floor"})),
    Case("aten.convolution_backward.default", _convolution_backward, rtol=2e-5, atol=2e-5),
)
"""Own cases; the lowerings' are taken beside them."""
