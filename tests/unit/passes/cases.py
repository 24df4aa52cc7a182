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
    """Depthwise, grouped, strided and transposed ones, in one and two dimensions of space."""
    x, weight, stride, padding, dilation, groups = d.pick(
        ((2, 4, 9), (4, 1, 4), (1,), (3,), (1,), 4),
        ((2, 4, 9), (6, 2, 3), (1,), (1,), (2,), 2),
        ((1, 3, 6, 5), (2, 3, 3, 2), (1, 1), (1, 0), (1, 1), 1),
        ((2, 4, 6), (4, 4, 1), (1,), (0,), (1,), 1),
        ((1, 2, 5), (2, 2, 2), (1,), (2,), (1,), 1),
        ((2, 4, 10), (6, 2, 3), (2,), (1,), (1,), 2),
        ((1, 3, 8, 7), (2, 3, 3, 2), (3, 2), (1, 0), (1, 2), 1),
        ((1, 2, 9), (2, 2, 2), (4,), (0,), (1,), 1),
        ((1, 2, 7), (2, 2, 1), (2,), (2,), (1,), 1),
    )
    given, kernel = d.tensor(x, edges=False), d.tensor(weight, edges=False)
    options = (stride, padding, dilation, False, (0,) * len(padding), groups)
    return _conv_gradients(d, given, kernel, options, weight[0])


def _transposed_convolution_backward(d: Draw) -> Any:
    x, weight, stride, padding, more, groups = d.pick(
        ((2, 4, 5), (4, 3, 3), (2,), (1,), (1,), 1),
        ((1, 4, 5), (4, 2, 2), (2,), (0,), (0,), 2),
        ((1, 2, 3, 4), (2, 3, 3, 2), (2, 3), (1, 0), (0, 2), 1),
    )
    given, kernel = d.tensor(x, edges=False), d.tensor(weight, edges=False)
    options = (stride, padding, (1,) * len(padding), True, more, groups)
    return _conv_gradients(d, given, kernel, options, weight[1] * groups)


def _conv_gradients(
    d: Draw, x: torch.Tensor, weight: torch.Tensor, options: tuple[Any, ...], channels: int
) -> Any:
    result = torch.ops.aten.convolution.default(x, weight, None, *options)
    grad = d.tensor(result.shape, edges=False)
    return (grad, x, weight, [channels], *options, [True, True, d.pick(True, False)]), {}


def _whole_powers(d: Draw) -> Any:
    """Floats to whole powers (as ALiBi's slopes are made), and integers."""
    base = d.tensor(d.pick((3, 4), (4,), ()), torch.float32, torch.int64, low=-3, high=3)
    exponent = d.tensor((4,), torch.int64, torch.int32, low=-3, high=9)
    return (base, exponent), {}


def _powers_of_two(d: Draw) -> Any:
    return (d.pick(2, 3, -2, 0.5), d.tensor((5,), torch.int64, low=0, high=12)), {}


def _far_apart(d: Draw) -> Any:
    """Floats with quotients up to 2^50, multiples of the divisor among them."""
    y = d.tensor((5,), low=0.01, high=3, edges=False) * d.pick(1.0, -1.0)
    x = d.tensor((5,), edges=False) * 2.0 ** d.pick(0, 10, 24, 50)
    return (torch.where(x.abs() > 3.5, (x / y).round() * y, x), y), {}


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
    *(
        Case("aten.convolution_backward.default", draw, rtol=2e-5, atol=2e-5)
        for draw in (_convolution_backward, _transposed_convolution_backward)
    ),
    Case("aten.pow.Tensor_Tensor", _whole_powers),
    Case("aten.pow.Scalar", _powers_of_two),
    *(
        Case(f"aten.{name}", _far_apart)
        for name in ("remainder.Tensor", "fmod.Tensor", "floor_divide.default")
    ),
)
"""Own cases; the lowerings' are taken beside them."""
