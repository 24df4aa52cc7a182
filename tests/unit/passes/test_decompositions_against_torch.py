"""Every decomposition gives what torch gives for the op that it replaces, edge values included."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.compiler.capture import ops  # noqa: F401 (registers the luma:: ops)
from runtime.compiler.passes.decompositions.registry import registered_decompositions
from tests.unit.lower import cases as lowered_cases
from tests.unit.lower.support import QUICK, Case, Draw
from tests.unit.passes.cases import CASES as OWN
from tests.unit.passes.support import FAMILY, decomposed_matches

# What a decomposition's own arithmetic costs, where it differs from the op's: relative, absolute.
_TOLERANCES = {
    "aten.erf.default": (4e-7, 4e-7),
    "aten.gelu.default": (2e-6, 2e-6),
    "aten.gelu_backward.default": (2e-6, 2e-6),
    "aten.softplus.default": (2e-6, 1e-6),
    "aten.log1p.default": (1e-6, 1e-12),
    "aten.expm1.default": (2e-6, 1e-12),
    "aten.sinh.default": (3e-6, 1e-12),
    "aten.tan.default": (1e-5, 1e-6),
    "aten.cumsum.default": (1e-5, 1e-5),
    "aten.cumprod.default": (1e-5, 1e-5),
    "aten.pow.Tensor_Tensor": (3e-5, 1e-30),
    "aten.pow.Scalar": (3e-5, 1e-30),
    "aten.pow.Tensor_Scalar": (3e-5, 1e-30),
    "aten.embedding_dense_backward.default": (1e-5, 1e-5),
}


def _lowered_cases() -> list[Case]:
    names = [module.name for module in pkgutil.iter_modules(lowered_cases.__path__)]
    modules = [importlib.import_module(f"tests.unit.lower.cases.{name}") for name in names]
    return [case for module in modules for case in module.CASES]


# Complex numbers as pairs need more than one op: tests/unit/passes/test_decompose.py.
_REPLACED = {
    entry.op for entry in registered_decompositions(FAMILY) if not entry.op.startswith("complex:")
}
# A look-up of weights is a product: a table that is not finite has a test of its own below.
_ALL = [
    *OWN,
    *(c for c in _lowered_cases() if c.op in _REPLACED and c.op != "aten.embedding.default"),
]


def _compare(case: Case, data: st.DataObject, by: str) -> None:
    args, kwargs = case.draw(Draw(data))
    rtol, atol = _TOLERANCES.get(case.op, (0.0, 0.0))
    rtol, atol = max(rtol, case.rtol), max(atol, case.atol)
    decomposed_matches(case.op, args, kwargs, by=by, rtol=rtol, atol=atol)


@pytest.mark.parametrize("case", _ALL, ids=lambda case: case.op)
@QUICK
@given(data=st.data())
def test_the_decomposition_gives_torchs_values(case: Case, data: st.DataObject) -> None:
    """Run by torch, over dtypes, shapes and edge values; a form that is not covered stays."""
    _compare(case, data, "torch")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", _ALL, ids=lambda case: case.op)
@QUICK
@given(data=st.data())
def test_the_lowered_decomposition_gives_torchs_values(case: Case, data: st.DataObject) -> None:
    """Lowered for the family and run by jax: what a chip would be given."""
    _compare(case, data, "jax")


def test_every_decomposition_has_a_case() -> None:
    """No op is rewritten without having been compared with torch."""
    assert {case.op for case in _ALL} >= _REPLACED
