"""Cases of matrix products and convolution."""

from __future__ import annotations

from typing import Any

from tests.unit.lower.support import FLOATS, Case, Draw

_CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


def _product(*options: Any) -> Any:
    def draw(d: Draw) -> Any:
        left, right = d.pick(*options)
        return (d.tensor(left, *FLOATS, edges=False), d.tensor(right, *FLOATS, edges=False)), {}

    return draw


def _with_bias(draw: Any, *shapes: Any) -> Any:
    def biased(d: Draw) -> Any:
        (x, y), _ = draw(d)
        full = (*x.shape[:-1], *y.shape[-1:]) if y.ndim > 1 else tuple(x.shape[:1])
        bias = d.tensor(d.pick(full, *shapes), *FLOATS, edges=False)
        beta = d.pick(1, 0, 0.5)
        return (bias.fill_(float("nan")) if beta == 0 else bias, x, y), {
            "beta": beta,
            "alpha": d.pick(1, 2),
        }

    return biased


def _linear(d: Draw) -> Any:
    x = d.tensor(d.pick((2, 3), (2, 4, 3), (3,), (0, 3)), edges=False)
    return (x, d.tensor((5, 3), edges=False), d.pick(None, d.tensor((5,), edges=False))), {}


def _convolution(d: Draw) -> Any:
    space, kernel = d.pick(((9,), (3,)), ((5, 6), (2, 3)))
    groups = d.pick(1, 2)
    x = d.tensor((2, 4, *space), edges=False)
    weight = d.tensor((6, 4 // groups, *kernel), edges=False)
    spread = [1] * len(space)
    stride, padding, dilation = (d.pick(spread, [2] * len(space)) for _ in range(3))
    bias = d.pick(None, d.tensor((6,), edges=False))
    return (x, weight, bias, stride, padding, dilation, False, [0] * len(space), groups), {}


def _convolution_backward(d: Draw) -> Any:
    import torch

    (x, weight, bias, *rest), _ = _convolution(d)
    y = torch.ops.aten.convolution.default(x, weight, bias, *rest)
    mask = d.pick([True, True, True], [False, True, False], [False, True, True])
    return (d.tensor(y.shape, edges=False), x, weight, [6], *rest, mask), {}


_MM = _product(((2, 3), (3, 4)), ((2, 0), (0, 4)), ((0, 3), (3, 1)))
_BMM = _product(((2, 3, 4), (2, 4, 5)), ((2, 3, 0), (2, 0, 5)), ((0, 3, 4), (0, 4, 5)))
_MV = _product(((2, 3), (3,)), ((2, 0), (0,)))

CASES = [
    Case("aten.mm.default", _MM, **_CLOSE),
    Case("aten.bmm.default", _BMM, **_CLOSE),
    Case("aten.mv.default", _MV, **_CLOSE),
    Case("aten.dot.default", _product(((3,), (3,)), ((0,), (0,))), **_CLOSE),
    Case("aten.addmm.default", _with_bias(_MM, (1,)), **_CLOSE),
    Case("aten.baddbmm.default", _with_bias(_BMM, (1, 1, 1)), **_CLOSE),
    Case("aten.addmv.default", _with_bias(_MV), **_CLOSE),
    Case("aten.linear.default", _linear, **_CLOSE),
    Case("aten.convolution.default", _convolution, rtol=1e-5, atol=1e-4),
    Case("aten.convolution_backward.default", _convolution_backward, rtol=1e-5, atol=1e-3),
]
