"""The barrier gives every value bit for bit, whatever the value is that it waits for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.compiler.lower.ops.barrier import barrier

AFTER = [0.0, -0.0, 1.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, 1.17549449e-38, 3.4e38]
VALUES = (
    np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 2.5], np.float32),
    np.array([[1, -2], [3, -(2**31)]], np.int32),
    np.array([True, False]),
    np.array(7.0, np.float32),
    np.zeros((0, 3), np.float32),
    np.array([0.1, -0.0, np.nan], jnp.bfloat16),
)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_values_pass_unchanged(dtype: type, shape: tuple[int, ...]) -> None:
    compiled = jax.jit(barrier)
    for number in AFTER:
        found = compiled(VALUES, np.full(shape, number, np.float32).astype(dtype))
        assert len(found) == len(VALUES)
        for one, value in zip(found, VALUES, strict=True):
            assert (one.shape, one.dtype) == (value.shape, value.dtype)
            assert np.asarray(one).tobytes() == value.tobytes()


def test_the_compiler_does_not_see_through_it() -> None:
    """The value that is waited for stays an operand, and a repeated product is made twice."""

    def twice(x: jax.Array, y: jax.Array, after: jax.Array) -> tuple[jax.Array, ...]:
        again, other = barrier((x, y), after)
        return x @ y, again @ other

    square = jax.ShapeDtypeStruct((64, 64), np.float32)
    text = jax.jit(twice).lower(square, square, square).compile().as_text()
    assert text is not None
    assert text.count(" dot(") == 2
