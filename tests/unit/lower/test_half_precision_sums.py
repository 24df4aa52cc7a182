"""Sums of bfloat16 are taken in float32 and rounded once: none stops growing after 256 terms."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import runtime.compiler.lower.ops  # noqa: F401 (registers the lowerings)
from runtime.compiler.lower.registry import find_lowering

TERMS = 4096
PLACES = np.zeros(TERMS, np.int32)
ZEROS = np.zeros((2, 3), jnp.bfloat16)


def _embedding(run: Any, terms: Any) -> Any:
    return run(terms, PLACES, 2, -1, False)[0]


SUMS = {
    "aten.embedding_dense_backward.default": _embedding,
    "aten.index_put.default": lambda run, terms: run(ZEROS, (PLACES,), terms, True)[0],
    "aten.index_add.default": lambda run, terms: run(ZEROS, 0, PLACES, terms)[0],
    "aten.scatter_add.default": lambda run, terms: run(
        np.zeros((TERMS, 3), jnp.bfloat16), 0, np.zeros((TERMS, 3), np.int32), terms
    )[0],
    "aten.sum.dim_IntList": lambda run, terms: run(terms, (0,)),
    "aten.mean.dim": lambda run, terms: run(terms, (0,)) * TERMS,
    "aten.cumsum.default": lambda run, terms: run(terms, 0)[-1],
}


@pytest.mark.parametrize("name", SUMS)
def test_a_long_sum_is_right_to_one_rounding(name: str) -> None:
    draw = np.random.default_rng(3)
    terms = (draw.random((TERMS, 3)) + 0.5).astype(jnp.bfloat16)
    lowering = find_lowering(name, "cpu")
    assert lowering is not None
    found = jax.jit(lambda x: SUMS[name](lambda *args: lowering(*map(_array, args)), x))(terms)
    exact = terms.astype(np.float64).sum(0)
    np.testing.assert_allclose(np.asarray(found, np.float64), exact, rtol=2.0**-8)


def _array(value: Any) -> Any:
    if isinstance(value, tuple) and isinstance(value[0], np.ndarray):
        return tuple(map(jnp.asarray, value))
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value
