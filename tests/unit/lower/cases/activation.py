"""Cases of activation functions and their derivatives."""

from __future__ import annotations

from typing import Any

from tests.unit.lower.support import FLOATS, HALVES, INTS, Case, Draw

_REALS = (*FLOATS, *HALVES)


def _unary(*dtypes: Any) -> Any:
    return lambda d: ((d.tensor(d.shape(), *dtypes),), {})


def _gradient(*extra: Any, low: float = -4.0, high: float = 4.0) -> Any:
    def draw(d: Draw) -> Any:
        shape, dtype = d.shape(), d.pick(*_REALS)
        grad = d.tensor(shape, dtype, edges=False)
        return (grad, d.tensor(shape, dtype, low=low, high=high, edges=False), *extra), {}

    return draw


def _gelu(d: Draw) -> Any:
    return (d.tensor(d.shape(), *_REALS, edges=False),), {"approximate": d.pick("none", "tanh")}


def _gelu_backward(d: Draw) -> Any:
    args, _ = _gradient()(d)
    return args, {"approximate": d.pick("none", "tanh")}


def _softplus(d: Draw) -> Any:
    return (d.tensor(d.shape(), *FLOATS), d.pick(1.0, 2.0), d.pick(20.0, 3.0)), {}


_CLOSE: dict[str, Any] = {"rtol": 3e-6, "atol": 1e-6}

CASES = [
    Case("aten.sigmoid.default", _unary(*_REALS, *INTS), **_CLOSE),
    Case("aten.sigmoid_backward.default", _gradient(low=0.0, high=1.0), **_CLOSE),
    Case("aten.tanh.default", _unary(*_REALS, *INTS), **_CLOSE),
    Case("aten.tanh_backward.default", _gradient(low=-1.0, high=1.0), **_CLOSE),
    Case("aten.relu.default", _unary(*_REALS, *INTS)),
    Case("aten.threshold_backward.default", _gradient(0), **_CLOSE),
    Case("aten.leaky_relu.default", _unary(*FLOATS), **_CLOSE),
    Case("aten.leaky_relu_backward.default", _gradient(0.01, False), **_CLOSE),
    Case("aten.silu.default", _unary(*FLOATS), **_CLOSE),
    Case("aten.silu_backward.default", _gradient(), **_CLOSE),
    Case("aten.softplus.default", _softplus, **_CLOSE),
    Case("aten.softplus_backward.default", _gradient(1.0, 2.0), **_CLOSE),
    Case("aten.gelu.default", _gelu, **_CLOSE),
    Case("aten.gelu_backward.default", _gelu_backward, rtol=1e-5, atol=1e-5),
]
