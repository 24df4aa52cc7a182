"""Cases of counting by range."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.lower.support import FLOATS, SHAPES, Case, Draw


def _histc(d: Draw) -> Any:
    """Whole numbers as a router has them, which lie on the ranges' ends, or any numbers."""
    shape = d.shape()
    if d.pick(True, False):
        bins = d.pick(1, 4, 7)
        return (d.index(shape, bins).float(), bins, 0, d.pick(bins, bins - 1)), {}
    bounds = d.pick((-2.0, 3.0), (0.0, 0.5), (1.0, 1.0), (0.0, 0.0))
    finite = bounds[0] == bounds[1]  # torch refuses to take the range of what is not finite
    shapes = [s for s in SHAPES if 0 not in s] if finite else SHAPES
    x = d.tensor(d.pick(*shapes), *FLOATS, edges=not finite)
    # The ends of float ranges fall where rounding puts them; keep away from them.
    return (torch.where((x * 16).frac().abs() < 0.01, x + 0.013, x), d.pick(1, 5), *bounds), {}


CASES = (Case("aten.histc.default", _histc),)
