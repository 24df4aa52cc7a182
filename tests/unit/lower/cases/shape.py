"""Cases of views and re-arrangements."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.lower.support import BOOL, FLOATS, Case, Draw

_ANY = (*FLOATS, torch.int64, *BOOL)
_VIEWS = (
    ((2, 3), (3, 2)),
    ((2, 3), (-1,)),
    ((2, 3, 4), (6, -1)),
    ((2, 0, 3), (0, 7)),
    ((), (1, 1)),
    ((1,), ()),
)
_EXPANDS = (
    ((2, 1), (2, 4)),
    ((3,), (2, 3)),
    ((2, 1, 3), (-1, 5, -1)),
    ((), (2, 2)),
    ((1, 3), (0, 3)),
    ((1,), (1,)),
)


def _reshaped(*options: Any) -> Any:
    def draw(d: Draw) -> Any:
        shape, want = d.pick(*options)
        return (d.tensor(shape, *_ANY), list(want)), {}

    return draw


def _permute(d: Draw) -> Any:
    shape, dims = d.pick(
        ((2, 3), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((2, 0, 3), (-1, 0, 1)), ((), ())
    )
    return (d.tensor(shape, *_ANY), list(dims)), {}


def _with_dim(d: Draw) -> Any:
    shape = d.shape()
    return (d.tensor(shape, *_ANY), d.dim(shape)), {}


def _transpose(d: Draw) -> Any:
    shape = d.shape()
    return (d.tensor(shape, *_ANY), d.dim(shape), d.dim(shape)), {}


def _unsqueeze(d: Draw) -> Any:
    shape = d.shape()
    return (d.tensor(shape, *_ANY), d.dim((*shape, 1))), {}


def _squeeze_dims(d: Draw) -> Any:
    shape, dims = d.pick(((1, 2, 1), [0]), ((1, 2, 1), [0, -1]), ((1, 2, 1), [1]), ((2,), []))
    return (d.tensor(shape, *_ANY), dims), {}


def _cat(d: Draw) -> Any:
    shapes, dim = d.pick(
        (((2, 3), (1, 3)), 0),
        (((2, 3), (2, 0), (2, 1)), -1),
        (((0,), (2, 3)), 1),
        (((0,), (0,)), 0),
    )
    return ([d.tensor(shape, *_ANY) for shape in shapes], dim), {}


def _stack(d: Draw) -> Any:
    shape = d.shape()
    dtype = d.pick(*_ANY)
    return ([d.tensor(shape, dtype) for _ in range(3)], d.dim((*shape, 1))), {}


def _split_sizes(d: Draw) -> Any:
    sizes, dim = d.pick(([1, 2], 1), ([0, 3], -2), ([2], 0))
    return (d.tensor((2, 3, 3), *_ANY), sizes, dim), {}


def _split(d: Draw) -> Any:
    shape = d.pick((5,), (3, 4), (0, 2))
    return (d.tensor(shape, *_ANY), d.pick(1, 2, 7), d.pick(0, -len(shape))), {}


def _unbind(d: Draw) -> Any:
    shape = d.pick((3,), (2, 3), (2, 0, 3))
    return (d.tensor(shape, *_ANY), d.pick(0, -1)), {}


def _pad(d: Draw) -> Any:
    pad = d.pick([1, 2], [0, 1, 2, 0], [-1, 1], [-1, -1, 1, 0])
    return (d.tensor((2, 3), *FLOATS, torch.int64), pad, d.pick(0, -7)), {}


def _repeat(d: Draw) -> Any:
    shape, repeats = d.pick(((2, 3), [1, 2]), ((3,), [2, 2]), ((2,), [0]), ((), [3]))
    return (d.tensor(shape, *_ANY), repeats), {}


def _flip(d: Draw) -> Any:
    shape, dims = d.pick(((2, 3), [0]), ((2, 3), [0, -1]), ((2, 0, 3), [1]), ((), []))
    return (d.tensor(shape, *_ANY), dims), {}


def _roll(d: Draw) -> Any:
    shifts, dims = d.pick(([1], [0]), ([-2], [1]), ([1, 5], [0, -1]), ([2], []))
    return (d.tensor(d.pick((2, 3), (0, 3)), *_ANY), shifts, dims), {}


def _unfold(d: Draw) -> Any:
    dim, size, step = d.pick((0, 2, 1), (1, 3, 2), (-1, 1, 4), (1, 5, 1))
    return (d.tensor((2, 5), *_ANY), dim, size, step), {}


def _diagonal(d: Draw) -> Any:
    return (d.tensor((2, 3, 4), *_ANY), d.pick(0, 1, -1), d.pick(0, -1), 1), {}


def _triangle(d: Draw) -> Any:
    return (d.tensor(d.pick((3, 3), (2, 4), (2, 3, 2), (0, 3)), *_ANY), d.pick(0, 1, -1, -9)), {}


CASES = [
    *(
        Case(f"aten.{name}.default", _reshaped(*_VIEWS))
        for name in ("view", "_unsafe_view", "reshape")
    ),
    Case("aten.expand.default", _reshaped(*_EXPANDS)),
    Case("aten.permute.default", _permute),
    Case("aten.transpose.int", _transpose),
    Case("aten.t.default", lambda d: ((d.tensor(d.pick((2, 3), (3,), ()), *_ANY),), {})),
    Case("aten.unsqueeze.default", _unsqueeze),
    Case("aten.squeeze.default", lambda d: ((d.tensor(d.pick((1, 2, 1), (1,), ()), *_ANY),), {})),
    Case("aten.squeeze.dim", _with_dim),
    Case("aten.squeeze.dims", _squeeze_dims),
    Case("aten.cat.default", _cat),
    Case("aten.stack.default", _stack),
    Case("aten.split_with_sizes.default", _split_sizes),
    Case("aten.split.Tensor", _split),
    Case("aten.unbind.int", _unbind),
    Case("aten.constant_pad_nd.default", _pad),
    Case("aten.repeat.default", _repeat),
    Case("aten.flip.default", _flip),
    Case("aten.roll.default", _roll),
    Case("aten.unfold.default", _unfold),
    Case("aten.diagonal.default", _diagonal),
    Case("aten.tril.default", _triangle),
    Case("aten.triu.default", _triangle),
]
