"""Cases of complex numbers."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.lower.support import Case, Draw

_CLOSE: dict[str, Any] = {"rtol": 3e-6, "atol": 1e-6}


def _complex(d: Draw) -> torch.Tensor:
    shape = d.shape()
    return torch.complex(d.tensor(shape), d.tensor(shape))


def _pairs(d: Draw) -> Any:
    return (d.tensor((*d.pick((), (1,), (5,), (2, 3)), 2)),), {}


def _parts(d: Draw) -> Any:
    shape = d.shape()
    return (d.tensor(shape), d.tensor(shape)), {}


def _polar(d: Draw) -> Any:
    shape = d.shape()
    magnitude = d.tensor(shape, low=0.0, edges=False)
    return (magnitude, d.tensor(shape, low=-9.0, high=9.0, edges=False)), {}


CASES = [
    Case("aten.view_as_complex.default", _pairs),
    Case("aten.view_as_real.default", lambda d: ((_complex(d),), {})),
    Case("aten.complex.default", _parts),
    Case("aten.polar.default", _polar, **_CLOSE),
    *(
        Case(f"aten.{name}.default", lambda d: ((_complex(d),), {}))
        for name in ("_conj", "_conj_physical", "conj_physical", "real", "imag")
    ),
]
