"""Cases of linear algebra."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.lower.support import Case, Draw


def _triangular(d: Draw) -> Any:
    batch_a, batch_b = d.pick(((), ()), ((2,), (2,)), ((3, 1), (2,)), ((0,), (0,)))
    n, k, left = d.pick(1, 5), d.pick(0, 1, 3), d.pick(True, False)
    # The other triangle and, where it counts as ones, the diagonal must not be read.
    a = d.tensor((*batch_a, n, n), edges=False, low=-1.0, high=1.0)
    a = a + torch.eye(n) * d.pick(3.0, -3.0)
    b = d.tensor((*batch_b, *((n, k) if left else (k, n))), edges=False)
    options = {"upper": d.pick(True, False), "unitriangular": d.pick(True, False)}
    return (a, b), options | ({} if left else {"left": False})


CASES = [Case("aten.linalg_solve_triangular.default", _triangular, rtol=1e-5, atol=1e-4)]
