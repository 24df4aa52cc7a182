"""Cases of arithmetic on each element."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.lower.support import BOOL, FLOATS, HALVES, INTS, PAIRS, Case, Draw

_NUMBERS = (*FLOATS, *HALVES, *INTS)


def _unary(*dtypes: torch.dtype, low: float = -4.0, high: float = 4.0) -> Any:
    return lambda d: ((d.tensor(d.shape(), *dtypes, low=low, high=high),), {})


def _binary(
    *dtypes: torch.dtype, nonzero: bool = False, low: float = -4.0, edges: bool = True
) -> Any:
    def draw(d: Draw) -> Any:
        left, right = d.pick(*PAIRS)
        x = d.tensor(left, *dtypes, low=low, edges=edges)
        y = d.tensor(right, *dtypes, low=low, edges=edges)
        if nonzero and not (x.dtype.is_floating_point or y.dtype.is_floating_point):
            y = torch.where(y == 0, torch.ones_like(y), y)
        return (x, y), {}

    return draw


def _scalar(
    *dtypes: torch.dtype, values: tuple[Any, ...] = (2, -3, 0.5, -1.5), edges: bool = True
) -> Any:
    return lambda d: ((d.tensor(d.shape(), *dtypes, edges=edges), d.pick(*values)), {})


def _scaled(draw: Any) -> Any:
    def with_alpha(d: Draw) -> Any:
        args, _ = draw(d)
        return args, d.pick({}, {"alpha": 2}, {"alpha": -1})

    return with_alpha


def _rounded(draw: Any) -> Any:
    def with_mode(d: Draw) -> Any:
        args, _ = draw(d)
        return args, {"rounding_mode": d.pick("floor", "trunc", None)}

    return with_mode


def _triple(d: Draw) -> Any:
    shape = d.shape()
    x, y, z = (d.tensor(shape, low=0.5, edges=False) for _ in range(3))
    return (x, y, z), d.pick({}, {"value": 2}, {"value": -0.5})


def _lerp(d: Draw) -> Any:
    shape = d.shape()
    start, end, weight = (d.tensor(shape, edges=False) for _ in range(3))
    return (start, end, weight), {}


def _lerp_scalar(d: Draw) -> Any:
    shape = d.shape()
    return (d.tensor(shape, edges=False), d.tensor(shape, edges=False), d.pick(0.25, 0.75)), {}


def _cast(d: Draw) -> Any:
    source = d.pick(*FLOATS, *HALVES, *INTS, *BOOL)
    target = d.pick(*FLOATS, *HALVES, *INTS, *BOOL)
    x = d.tensor(d.shape(), source, edges=target.is_floating_point or target == torch.bool)
    x = x.abs() if target == torch.uint8 and source not in BOOL else x
    return (x,), {"dtype": target}


def _copy(d: Draw) -> Any:
    shape, source = d.pick(((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 3), ()), ((0, 3), (1, 3)))
    (x,), dtype = _cast(d)
    source = d.tensor(source, x.dtype, edges=False)
    source = source.abs() if dtype["dtype"] == torch.uint8 and x.dtype not in BOOL else source
    return (torch.zeros(shape, dtype=dtype["dtype"]), source), {}


def _clamp(d: Draw) -> Any:
    x = d.tensor(d.shape(), *FLOATS, *INTS)
    return (x, d.pick(None, -1, 0.5), d.pick(-2, 1, 1.5)), {}


def _clamp_tensor(d: Draw) -> Any:
    shape = d.pick((2, 3), (0,), ())
    return (d.tensor(shape), d.tensor(shape), d.pick(None, d.tensor(shape))), {}


_REALS = (*FLOATS, *INTS, *BOOL)
_TRANSCENDENTAL = {
    "acos": (-1.0, 1.0),
    "asin": (-1.0, 1.0),
    "atan": (-4.0, 4.0),
    "cos": (-9.0, 9.0),
    "cosh": (-4.0, 4.0),
    "erf": (-4.0, 4.0),
    "erfc": (-4.0, 4.0),
    "exp": (-9.0, 9.0),
    "exp2": (-9.0, 9.0),
    "expm1": (-4.0, 4.0),
    "log": (0.0, 9.0),
    "log10": (0.0, 9.0),
    "log1p": (-1.0, 9.0),
    "log2": (0.0, 9.0),
    "reciprocal": (-4.0, 4.0),
    "rsqrt": (0.0, 9.0),
    "sin": (-9.0, 9.0),
    "sinh": (-4.0, 4.0),
    "sqrt": (0.0, 9.0),
    "tan": (-1.0, 1.0),
}
# The products x * 3e38 and x * 1.2e-38 of the edge values leave the range of normal numbers, where
# the two sides may round or flush differently; 2e-38 is below every number that matters.
_TINY = 2e-38

CASES = [
    *(
        Case(f"aten.{name}.default", _unary(*_REALS, low=low, high=high), rtol=3e-6, atol=1e-6)
        for name, (low, high) in _TRANSCENDENTAL.items()
    ),
    *(
        Case(f"aten.{name}.default", _unary(*_NUMBERS))
        for name in ("abs", "ceil", "floor", "neg", "round", "trunc", "sign")
    ),
    *(
        Case(f"aten.{name}.default", _unary(*_NUMBERS, *BOOL))
        for name in ("alias", "clone", "detach", "lift_fresh_copy")
    ),
    Case("aten._to_copy.default", _cast),
    Case("aten.copy.default", _copy),
    Case("aten.add.Tensor", _scaled(_binary(*_NUMBERS)), rtol=1e-6, atol=_TINY),
    Case("aten.add.Scalar", _scaled(_scalar(*_NUMBERS, values=(2, 3))), rtol=1e-6, atol=_TINY),
    Case("aten.sub.Tensor", _scaled(_binary(*_NUMBERS)), rtol=1e-6, atol=_TINY),
    Case("aten.sub.Scalar", _scaled(_scalar(*FLOATS)), rtol=1e-6, atol=_TINY),
    Case("aten.rsub.Tensor", _scaled(_binary(*FLOATS)), rtol=1e-6, atol=_TINY),
    Case("aten.rsub.Scalar", _scalar(*FLOATS, torch.int64), rtol=1e-6, atol=_TINY),
    Case("aten.mul.Tensor", _binary(*_NUMBERS, *BOOL), atol=_TINY),
    Case("aten.mul.Scalar", _scalar(*FLOATS, torch.int64, torch.int32), atol=_TINY),
    Case("aten.div.Tensor", _binary(*_NUMBERS), rtol=1e-6, atol=_TINY),
    Case("aten.div.Scalar", _scalar(*_NUMBERS), rtol=1e-6, atol=_TINY),
    Case(
        "aten.div.Tensor_mode",
        _rounded(_binary(*FLOATS, *INTS, nonzero=True)),
        rtol=1e-6,
        atol=_TINY,
    ),
    Case("aten.div.Scalar_mode", _rounded(_scalar(*FLOATS, torch.int64)), rtol=1e-6, atol=_TINY),
    Case("aten.floor_divide.default", _binary(*FLOATS, *INTS, nonzero=True), rtol=1e-6, atol=_TINY),
    Case(
        "aten.remainder.Tensor",
        _binary(*FLOATS, *INTS, nonzero=True, edges=False),
        rtol=1e-6,
        atol=1e-6,
    ),
    Case("aten.remainder.Scalar", _scalar(*FLOATS, torch.int64, edges=False), rtol=1e-6, atol=1e-6),
    Case(
        "aten.fmod.Tensor", _binary(*FLOATS, *INTS, nonzero=True, edges=False), rtol=1e-6, atol=1e-6
    ),
    Case("aten.fmod.Scalar", _scalar(*FLOATS, torch.int64, edges=False), rtol=1e-6, atol=1e-6),
    Case("aten.pow.Tensor_Tensor", _binary(*FLOATS), rtol=3e-6, atol=_TINY),
    Case(
        "aten.pow.Tensor_Scalar",
        _scalar(*FLOATS, values=(2, 3, 2.0, -1.0, 0.5, -0.5, 1.5, 0.0, -2, 7.0)),
        rtol=3e-6,
        atol=_TINY,
    ),
    Case(
        "aten.pow.Scalar",
        lambda d: ((d.pick(2, 0.5, 10000.0), d.tensor(d.shape(), low=-3.0)), {}),
        rtol=3e-6,
        atol=_TINY,
    ),
    Case("aten.atan2.default", _binary(*FLOATS), rtol=3e-6, atol=1e-6),
    Case("aten.addcmul.default", _triple, rtol=1e-6, atol=1e-6),
    Case("aten.addcdiv.default", _triple, rtol=1e-6, atol=1e-6),
    Case("aten.lerp.Scalar", _lerp_scalar, rtol=1e-6, atol=1e-6),
    Case("aten.lerp.Tensor", _lerp, rtol=1e-6, atol=1e-5),
    Case("aten.maximum.default", _binary(*_NUMBERS)),
    Case("aten.minimum.default", _binary(*_NUMBERS)),
    Case("aten.clamp.default", _clamp),
    Case("aten.clamp.Tensor", _clamp_tensor),
    Case("aten.clamp_min.default", _scalar(*FLOATS, torch.int64)),
    Case("aten.clamp_min.Tensor", _binary(*FLOATS)),
    Case("aten.clamp_max.default", _scalar(*FLOATS, torch.int64)),
    Case("aten.clamp_max.Tensor", _binary(*FLOATS)),
]
