"""The rest of a division of floats over all of float32, against C's fmod as numpy calls it.

torch is no reference here: its vectorised fmod gives NaN where a quotient is very large.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.compiler.capture.interpret import run_graph
from runtime.compiler.graph import Graph
from runtime.compiler.lower import lower_graph
from runtime.compiler.passes.decompose import decompose
from tests.unit.passes.support import FAMILY, TARGET, graph_of

COUNT = 4000
# XLA's code for CPU reads and writes subnormal numbers as zero; so do the chips.
SMALLEST = np.float32(2.0**-126)
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 2.5, 1.5 * SMALLEST, 3.4028235e38, 2.0**-100],
    np.float32,
)


def everywhere(generator: np.random.Generator) -> np.ndarray:
    """Draw normal float32 of every exponent and both signs."""
    size = generator.uniform(1, 2, COUNT) * np.exp2(generator.integers(-126, 128, COUNT))
    return np.where(generator.random(COUNT) < 0.5, -size, size).astype(np.float32)


def graph_for(op: str, shape: tuple[int, ...]) -> Graph:
    """Give the decomposed graph of one op on two arrays of a shape."""
    graph, _ = graph_of(op, (torch.empty(shape), torch.empty(shape)), {}, torch.empty(shape))
    return decompose(graph, FAMILY)


OPS = {
    "aten.fmod.Tensor": np.fmod,
    "aten.remainder.Tensor": np.remainder,
    "aten.floor_divide.default": np.floor_divide,
}


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_result_is_exact_for_every_exponent(op: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, y = everywhere(generator), everywhere(generator)
    check(op, x, y, run_in_torch(op, x, y))


@pytest.mark.parametrize("op", OPS)
def test_zeros_infinities_and_nan_are_as_in_c(op: str) -> None:
    x, y = (grid.ravel() for grid in np.meshgrid(SPECIAL, SPECIAL))
    check(op, x, y, run_in_torch(op, x, y))


def test_the_compiled_rest_is_exact_but_for_subnormal_numbers() -> None:
    generator = np.random.default_rng(7)
    x, y = everywhere(generator), everywhere(generator)
    run = jax.jit(lower_graph(graph_for("aten.fmod.Tensor", x.shape), TARGET))
    found = np.asarray(run([x, y])[0])
    wanted = np.fmod(x, y)
    normal = np.abs(wanted) >= SMALLEST
    np.testing.assert_array_equal(found[normal], wanted[normal])
    assert np.abs(found[~normal]).max(initial=0.0) <= SMALLEST


def run_in_torch(op: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Run the decomposed op."""
    given = {"in0": torch.from_numpy(x), "in1": torch.from_numpy(y)}
    return run_graph(graph_for(op, x.shape), given)["y"].numpy()


def check(op: str, x: np.ndarray, y: np.ndarray, found: np.ndarray) -> None:
    """Hold a result against numpy's."""
    with np.errstate(all="ignore"):
        wanted = OPS[op](x, y)
    np.testing.assert_array_equal(found, wanted)
