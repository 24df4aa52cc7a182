"""Keyed dropout in its XLA form: Random123's known answers, and the reference's bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kernels.dropout import reference, xla

# From Random123's kat_vectors, threefry2x32 with 20 rounds: counter, key, result.
_KNOWN_ANSWERS = (
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
)
_WORDS = st.integers(-(2**31), 2**31 - 1)


@pytest.mark.parametrize(("counter", "key", "result"), _KNOWN_ANSWERS)
def test_threefry_gives_the_known_answers(
    counter: tuple[int, int], key: tuple[int, int], result: tuple[int, int]
) -> None:
    """The generator is Random123's, bit for bit."""
    words = [jnp.uint32(word) for word in (*key, *counter)]
    got = xla.threefry2x32((words[0], words[1]), (words[2], words[3]))
    assert (int(got[0]), int(got[1])) == result


@settings(max_examples=15, deadline=None)
@given(
    key=st.tuples(_WORDS, _WORDS),
    call=st.integers(0, 2**20),
    p=st.sampled_from((0.0, 0.1, 0.5, 0.999, 1 - 2**-40)),
    shape=st.sampled_from(((), (0,), (7,), (3, 5))),
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
)
def test_bits_equal_the_reference(
    key: tuple[int, int], call: int, p: float, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Same mask, same scale, same rounding, for any key, call, rate and shape."""
    x = torch.linspace(-3.0, 3.0, int(np.prod(shape, dtype=int))).reshape(shape).to(dtype)
    words = np.array(key, np.int32)
    want = reference.dropout(x, p, torch.from_numpy(words), call)
    array = jnp.asarray(x.float().numpy(), str(dtype).removeprefix("torch."))
    got = xla.dropout(array, p, jnp.asarray(words), call)
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got.astype(jnp.float32), want.float().numpy())


def test_rate_and_independence_of_calls() -> None:
    """About p of a large tensor is dropped, and two calls drop different elements."""
    x, key = jnp.ones(100_000), jnp.array([1, 2], jnp.int32)
    first, second = (np.asarray(xla.dropout(x, 0.25, key, call)) for call in (0, 1))
    assert abs((first == 0).mean() - 0.25) < 0.01
    assert abs(((first == 0) & (second == 0)).mean() - 0.0625) < 0.01


def test_compiled_bits_equal_eager_bits() -> None:
    """jit changes nothing, and the key is an argument, not a constant."""
    x, key = jnp.arange(64.0), jnp.array([-5, 9], jnp.int32)
    compiled = jax.jit(lambda x, key: xla.dropout(x, 0.3, key, 4))
    np.testing.assert_array_equal(compiled(x, key), xla.dropout(x, 0.3, key, 4))
    assert not np.array_equal(compiled(x, key), compiled(x, key + 1))


def test_a_rate_of_one_is_refused() -> None:
    """Dropping everything is a mistake in the model."""
    with pytest.raises(ValueError, match="not including, 1"):
        xla.dropout(jnp.ones(3), 1.0, jnp.array([0, 0], jnp.int32), 0)
