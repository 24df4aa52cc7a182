"""The lowerings that AMD targets take in place of the general ones, against torch, run by XLA."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from runtime.compiler.lower.ops import angles as angle_ops
from runtime.compiler.lower.ops import plain_scatter, signs
from tests.unit.lower.support import EDGES

_NUMBERS = np.array([*EDGES, 2.0, 3.0, -3.0, -1.5, 0.3], np.float32)
_FIRST, _SECOND = (grid.ravel() for grid in np.meshgrid(_NUMBERS, _NUMBERS))


def same(found: object, wanted: torch.Tensor) -> None:
    """Compare values, the signs of zeros included; XLA's CPU code flushes subnormal numbers."""
    values = np.asarray(found)
    np.testing.assert_allclose(values, wanted.numpy(), rtol=3e-6, atol=2.0**-126)
    known = ~torch.isnan(wanted).numpy()
    np.testing.assert_array_equal(np.signbit(values)[known], torch.signbit(wanted).numpy()[known])


def test_powers_follow_torch_over_all_edges() -> None:
    wanted = torch.pow(torch.tensor(_FIRST), torch.tensor(_SECOND))
    same(signs.power(jnp.asarray(_FIRST), jnp.asarray(_SECOND)), wanted)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -2, 7, 20, 0.5, -0.5, 1.7])
def test_powers_of_a_number_follow_torch(exponent: float) -> None:
    values = np.array([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0], np.float32)
    wanted = torch.pow(torch.tensor(values), exponent)
    np.testing.assert_allclose(
        signs.power_of_number(jnp.asarray(values), exponent), wanted.numpy(), rtol=3e-6
    )


def test_angles_follow_torch_over_all_edges() -> None:
    wanted = torch.atan2(torch.tensor(_FIRST), torch.tensor(_SECOND))
    same(signs.atan2(jnp.asarray(_FIRST), jnp.asarray(_SECOND)), wanted)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("middle", [True, False])
def test_indices_that_stand_apart_write_where_torch_writes(
    middle: bool, accumulate: bool, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    places = np.array([[0, 2], [1, 0]]), np.array([[-1, 3], [2, 0]])
    values = rng.standard_normal((2, 2, 4 if middle else 5)).astype(np.float32)
    first, second = (torch.tensor(place) for place in places)
    chosen = [first, None, second] if middle else [first, second]
    wanted = torch.ops.aten.index_put(
        torch.tensor(x), chosen, torch.tensor(values), accumulate
    ).numpy()
    indices = [None if c is None else jnp.asarray(c.numpy(), jnp.int32) for c in chosen]
    found = plain_scatter.index_put(jnp.asarray(x), indices, jnp.asarray(values), accumulate)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_adding_to_a_number() -> None:
    found = plain_scatter.scatter_add(jnp.float32(2), 0, jnp.int32(0), jnp.float32(3))
    assert (found.shape, float(found)) == ((), 5.0)


@pytest.fixture
def rng() -> np.random.Generator:
    """Give a seeded generator."""
    return np.random.default_rng(3)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_large_angles_keep_their_place_in_the_turn(name: str, rng: np.random.Generator) -> None:
    sizes = 10.0 ** rng.uniform(-3, 5.8, 4000)
    angles = np.where(rng.random(4000) < 0.5, -sizes, sizes).astype(np.float32)
    wanted = getattr(np, name)(angles.astype(np.float64))  # of the very float32
    found = np.asarray(getattr(angle_ops, name)(jnp.asarray(angles)))
    # Beside a pole of the tangent, the angle's own rounding is what counts.
    calm = np.abs(wanted) < 30
    np.testing.assert_allclose(found[calm], wanted[calm], rtol=3e-5, atol=3e-7)
    assert np.isnan(getattr(angle_ops, name)(jnp.float32(1e9)))
