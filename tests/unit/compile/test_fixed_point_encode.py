"""Block fixed point against an independent integer reference, and its published traps."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.artifact.program import EMPTY
from runtime.compiler.blocks import BLOCK_SIZE, MAX_SHARDS, n_blocks, shard_bits
from runtime.compiler.fixed_point import (
    Encoded,
    Statistics,
    decode,
    encode,
    sample_every,
    summarise,
)
from runtime.spec import CompileError

TINY = np.finfo(np.float32).tiny  # below it chips may flush to zero; the encoding always does


def run(grad: np.ndarray, exponents: np.ndarray, shards: int) -> tuple[Encoded, Statistics]:
    """Encode one parameter in one compiled program, as `grad` does."""
    return _compiled(jnp.asarray(grad, jnp.float32), jnp.asarray(exponents, jnp.int32), shards)


@functools.partial(jax.jit, static_argnums=2)
def _compiled(grad: jax.Array, units: jax.Array, shards: int) -> tuple[Encoded, Statistics]:
    encoded = encode(grad, units, shards)
    return encoded, summarise([encoded], units, shards)


def reference(grad: np.ndarray, exponents: np.ndarray, shards: int) -> np.ndarray:
    """Round in float64, which holds every product here exactly, to int64 blocks."""
    flat = np.zeros(n_blocks(grad.size) * BLOCK_SIZE)
    flat[: grad.size] = grad.reshape(-1)
    rounded = np.rint(flat.reshape(-1, BLOCK_SIZE) * 2.0 ** -exponents[:, None].astype(np.float64))
    limit = 2 ** (31 - shard_bits(shards))
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(rounded) < limit, rounded, 0).astype(np.int64)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([1, BLOCK_SIZE, 2 * BLOCK_SIZE + 1]),
    shards=st.sampled_from([1, 64, 512]),
    scale=st.integers(-100, 60),
)
def test_encode_equals_the_integer_reference(seed: int, size: int, shards: int, scale: int) -> None:
    rng = np.random.default_rng(seed)
    spread = rng.integers(-20, 3, size).astype(np.float64)
    grad = (rng.standard_normal(size) * 2.0 ** (scale + spread)).astype(np.float32)
    exponents = rng.integers(scale - 30, scale - 20, n_blocks(size)).clip(-124, 126)
    encoded, found = run(grad, exponents, shards)
    expected = reference(grad, exponents, shards)
    np.testing.assert_array_equal(np.asarray(encoded.values), expected)

    blocks = np.zeros(n_blocks(size) * BLOCK_SIZE, np.float32)
    blocks[:size] = grad
    top = np.abs(blocks.reshape(-1, BLOCK_SIZE)).max(axis=1)
    np.testing.assert_array_equal(np.asarray(found.maxima), np.frexp(top)[1] - 1)
    rounded = np.rint(top * 2.0 ** -exponents.astype(np.float64))
    assert int(found.overflow) == int((rounded >= 2 ** (31 - shard_bits(shards))).sum())
    lost = np.rint(blocks.reshape(-1, BLOCK_SIZE) * 2.0 ** -exponents[:, None].astype(float)) == 0
    assert int(found.vanished) == int((lost.reshape(-1)[:size] & (np.abs(grad) >= TINY)).sum())
    assert int(found.nonfinite) == 0


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shards=st.sampled_from([2, 13]))
def test_sums_do_not_depend_on_order_or_grouping(seed: int, shards: int) -> None:
    rng = np.random.default_rng(seed)
    exponents = np.array([-30], np.int32)
    parts = [
        np.asarray(run(rng.standard_normal(100).astype(np.float32), exponents, shards)[0].values)
        for _ in range(shards)
    ]
    forward = np.sum(parts, axis=0, dtype=np.int32)
    cut = int(rng.integers(1, shards))
    mixed = [parts[i] for i in rng.permutation(shards)]
    grouped = np.sum(mixed[:cut], axis=0, dtype=np.int32) + np.sum(
        mixed[cut:], axis=0, dtype=np.int32
    )
    np.testing.assert_array_equal(forward, grouped)
    np.testing.assert_array_equal(forward, np.sum(parts, axis=0, dtype=np.int64))


def test_the_bound_is_strict_at_two_to_the_25_for_64_shards() -> None:
    """float32 has no 2^25 - 1: a `<=` against it would let 2^25 pass, and 64 of them overflow."""
    below = np.nextafter(np.float32(2**25), np.float32(0))
    encoded, found = run(np.array([2.0**25, below, -(2.0**25)]), np.array([0]), 64)
    assert np.asarray(encoded.values)[0, :3].tolist() == [0, int(below), 0]
    assert int(found.overflow) == 1
    assert int(found.maxima[0]) == 25


def test_the_bound_holds_after_rounding() -> None:
    """At 512 shards 2^22 - 0.25 is below the bound but rounds to it."""
    encoded, found = run(np.array([2.0**22 - 0.25, 2.0**22 - 1]), np.array([0]), 512)
    assert np.asarray(encoded.values)[0, :2].tolist() == [0, 2**22 - 1]
    assert int(found.overflow) == 1


def test_halves_round_to_even() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 3.0])
    encoded, found = run(values, np.array([0]), 4)
    assert np.asarray(encoded.values)[0, :6].tolist() == [0, 2, 2, 0, -2, 3]
    assert int(found.vanished) == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 4095])
def test_a_nonfinite_element_is_flagged_and_written_as_zero(bad: float, place: int) -> None:
    grad = np.full(2 * BLOCK_SIZE, 0.25, np.float32)
    grad[BLOCK_SIZE + place] = bad
    encoded, found = run(grad, np.array([-20, -20]), 16)
    expected = np.full((2, BLOCK_SIZE), 2**18)
    expected[1, place] = 0
    np.testing.assert_array_equal(np.asarray(encoded.values), expected)
    assert int(found.nonfinite) == 1
    assert int(found.overflow) == 0
    assert np.asarray(found.maxima).tolist() == [-2, EMPTY]


def test_a_large_finite_element_is_an_overflow_not_garbage() -> None:
    encoded, found = run(np.array([3e9, 1.0]), np.array([0]), 2)
    assert np.asarray(encoded.values)[0, :2].tolist() == [0, 1]
    assert (int(found.overflow), int(found.nonfinite)) == (1, 0)


def test_zeros_and_subnormals_leave_a_block_empty() -> None:
    _, found = run(np.array([0.0, -0.0, 1e-40]), np.array([-124]), 2)
    assert int(found.maxima[0]) == EMPTY
    assert int(found.vanished) == 0


@settings(max_examples=20, deadline=None)
@given(exponent=st.integers(-124, 126), value=st.integers(-(2**24), 2**24))
def test_decode_undoes_encode_for_what_the_unit_can_hold(exponent: int, value: int) -> None:
    exact = float(value) * 2.0**exponent
    if abs(exact) > float(np.finfo(np.float32).max):
        return
    grad = np.array([exact], np.float32)
    if grad[0] != 0 and abs(grad[0]) < np.finfo(np.float32).tiny:
        return
    units = jnp.asarray([exponent], jnp.int32)
    encoded = encode(jnp.asarray(grad), units, 2)
    assert float(decode(encoded.values, units, (1,))[0]) == exact


def test_decode_rounds_a_large_sum_once_half_to_even() -> None:
    sums = np.zeros((1, BLOCK_SIZE), np.int32)
    sums[0, :3] = [2**24 + 1, 2**24 + 3, -(2**31)]
    decoded = decode(jnp.asarray(sums), jnp.asarray([-1], jnp.int32), (3,))
    assert np.asarray(decoded).tolist() == [2.0**23, 2.0**23 + 2, -(2.0**30)]


def test_a_large_model_estimates_what_vanished_from_a_sample() -> None:
    n = 3
    units = [jnp.full((4,), 0, jnp.int32), jnp.full((n,), 0, jnp.int32)]
    grads = [np.full(4 * BLOCK_SIZE, 0.25, np.float32), np.full(n * BLOCK_SIZE, 4.0, np.float32)]
    encoded = [
        encode(jnp.asarray(grad), unit, 2, sample_every=2)
        for grad, unit in zip(grads, units, strict=True)
    ]
    assert [item.sample.shape[0] for item in encoded] == [2, 2]
    found = jax.jit(lambda e, u: summarise(e, u, 2))(encoded, jnp.concatenate(units))
    assert int(found.vanished) == round(2 * BLOCK_SIZE * 7 / 4)
    assert sample_every(127) == 1
    assert sample_every(33_000) == 515


@pytest.mark.parametrize(("shards", "bits"), [(1, 0), (2, 1), (3, 2), (64, 6), (65, 7), (512, 9)])
def test_shard_bits(shards: int, bits: int) -> None:
    assert shard_bits(shards) == bits


@pytest.mark.parametrize("shards", [0, -1, MAX_SHARDS + 1])
def test_a_shard_count_that_cannot_fit_is_refused(shards: int) -> None:
    with pytest.raises(CompileError, match=r"train\.micro_shards"):
        shard_bits(shards)


def test_a_gradient_of_another_dtype_is_refused() -> None:
    with pytest.raises(CompileError, match="float32"):
        encode(jnp.zeros(3, jnp.bfloat16), jnp.zeros(1, jnp.int32), 2)
