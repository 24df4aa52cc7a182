"""Grouped products in their XLA form against the reference, for every way to cut rows into groups."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kernels.grouped_mm import reference, tpu, xla

# (rows, groups): none, fewer than a tile, several tiles; one group, and more groups than rows.
_SHAPES = ((0, 3), (7, 1), (7, 12), (300, 5))
_IN, _OUT = 6, 10


@st.composite
def _groups(draw: st.DrawFn) -> tuple[int, tuple[int, ...]]:
    """Draw a number of rows and the sizes of groups, empty ones and rows behind the last included."""
    rows, groups = draw(st.sampled_from(_SHAPES))
    ends = sorted(draw(st.lists(st.integers(0, rows), min_size=groups, max_size=groups)))
    if draw(st.booleans()):
        ends[-1] = rows
    return rows, tuple(int(size) for size in np.diff([0, *ends]))


@functools.cache
def _product(transposed: bool) -> Any:
    return jax.jit(functools.partial(xla.grouped_mm, transposed=transposed))


_outer = jax.jit(xla.grouped_outer)


def _arrays(rows: int, groups: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(seed)
    shapes = ((rows, _IN), (groups, _IN, _OUT), (rows, _OUT))
    return tuple(draw.normal(size=shape).astype(np.float32) for shape in shapes)


@settings(deadline=None)
@given(cut=_groups(), transposed=st.booleans())
def test_product_equals_the_reference(cut: tuple[int, tuple[int, ...]], transposed: bool) -> None:
    """Any sizes of groups give the reference's rows, and zeros behind the last group."""
    rows, weights, _ = _arrays(cut[0], len(cut[1]))
    used = np.ascontiguousarray(weights.swapaxes(1, 2)) if transposed else weights
    sizes = np.array(cut[1], np.int32)
    want = reference.grouped_mm(
        torch.from_numpy(rows), torch.from_numpy(used), torch.from_numpy(sizes), transposed
    )
    got = _product(transposed)(rows, used, sizes)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)
    assert not np.asarray(got)[sum(cut[1]) :].any()


@settings(deadline=None)
@given(cut=_groups())
def test_outer_equals_the_reference(cut: tuple[int, tuple[int, ...]]) -> None:
    """Any sizes of groups give the reference's sums, and zeros for empty groups."""
    left, _, right = _arrays(cut[0], len(cut[1]))
    sizes = np.array(cut[1], np.int32)
    want = reference.grouped_outer(*(torch.from_numpy(x) for x in (left, right, sizes)))
    got = np.asarray(_outer(left, right, sizes))
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)
    assert not got[sizes == 0].any()


@pytest.mark.parametrize("sizes", [(300, 0, 0, 0, 0), (0, 0, 0, 0, 300), (64, 64, 64, 64, 44)])
def test_a_group_of_all_rows_and_groups_of_whole_tiles(sizes: tuple[int, ...]) -> None:
    """Edges of tiles: one group holds all rows, or groups fill their tiles exactly."""
    rows, weights, grad = _arrays(300, 5)
    counts = np.array(sizes, np.int32)
    owner = np.repeat(np.arange(5), sizes)
    want = np.einsum("ni,nio->no", rows, weights[owner])
    np.testing.assert_allclose(_product(False)(rows, weights, counts), want, rtol=1e-5, atol=1e-5)
    one_hot = (owner[:, None] == np.arange(5)).astype(np.float32)
    sums = np.einsum("ng,ni,no->gio", one_hot, rows, grad)
    np.testing.assert_allclose(_outer(rows, grad, counts), sums, rtol=1e-4, atol=1e-4)


def test_equals_ragged_dot_and_its_derivatives() -> None:
    """jax's own grouped product, differentiated by jax, gives the three products of a step."""
    rows, weights, grad = (jnp.asarray(x) for x in _arrays(300, 5))
    sizes = jnp.array([100, 0, 30, 1, 169], jnp.int32)
    want, pull = jax.vjp(lambda x, w: jax.lax.ragged_dot(x, w, sizes), rows, weights)
    want_rows, want_weights = pull(grad)
    np.testing.assert_allclose(_product(False)(rows, weights, sizes), want, rtol=1e-5, atol=1e-5)
    grad_rows = _product(True)(grad, weights, sizes)
    np.testing.assert_allclose(grad_rows, want_rows, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(_outer(rows, grad, sizes), want_weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "groups", "size"),
    [(0, 4, 32), (1024, 8, 64), (2048, 32, 32), (4096, 128, 32), (4096, 8, 128), (99999, 1, 128)],
)
def test_tiles_follow_the_mean_size_of_a_group(rows: int, groups: int, size: int) -> None:
    """Half the mean, a power of two within bounds, from shapes alone."""
    assert xla._tile_size(rows, groups) == size


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", [(100, 0, 30, 1, 169), (0, 0, 300, 0, 0), (5, 5, 5, 5, 5)])
def test_the_form_for_tpu_means_the_same(sizes: tuple[int, ...], transposed: bool) -> None:
    """The ragged product, in its form on this host's XLA; the last sizes leave rows behind."""
    rows, weights, grad = (jnp.asarray(x) for x in _arrays(300, 5))
    used = weights.swapaxes(1, 2) if transposed else weights
    counts = jnp.asarray(sizes, jnp.int32)
    got = tpu.grouped_mm(rows, used, counts, transposed)
    np.testing.assert_allclose(got, _product(transposed)(rows, used, counts), rtol=1e-5, atol=1e-5)
    sums = tpu.grouped_outer(rows, grad, counts)
    np.testing.assert_allclose(sums, _outer(rows, grad, counts), rtol=1e-4, atol=1e-4)


def test_a_nan_stays_in_its_group() -> None:
    """A row's NaN reaches its own result and its own group's sum, not its neighbours' in a tile."""
    rows, weights, grad = _arrays(300, 5)
    sizes = np.array([10, 20, 70, 100, 100], np.int32)
    rows[10], grad[10] = np.nan, np.nan
    product = np.asarray(_product(False)(rows, weights, sizes))
    assert np.isnan(product).any(1).nonzero()[0].tolist() == [10]
    sums = np.asarray(_outer(rows, grad, sizes))
    assert np.isnan(sums).any((1, 2)).nonzero()[0].tolist() == [1]


def test_half_precision_keeps_its_dtype_and_sums_in_float32() -> None:
    """bfloat16 goes in and out; the result is the float32 one, rounded once."""
    rows, weights, grad = (jnp.asarray(x, jnp.bfloat16) for x in _arrays(300, 5))
    wide = [x.astype(jnp.float32) for x in (rows, weights, grad)]
    sizes = jnp.array([100, 0, 30, 1, 169], jnp.int32)
    product, sums = xla.grouped_mm(rows, weights, sizes), xla.grouped_outer(rows, grad, sizes)
    assert (product.dtype, sums.dtype) == (jnp.bfloat16, jnp.bfloat16)
    np.testing.assert_allclose(
        product.astype(jnp.float32), xla.grouped_mm(*wide[:2], sizes), rtol=5e-3, atol=1e-2
    )
    np.testing.assert_allclose(
        sums.astype(jnp.float32), xla.grouped_outer(wide[0], wide[2], sizes), rtol=5e-3, atol=2e-2
    )


def test_memory_does_not_grow_with_the_number_of_groups_times_rows() -> None:
    """The temporaries stay near the size of the arguments; `ragged_dot` has [groups, rows, in]."""
    rows, groups, inner, outer = 512, 32, 64, 64
    shapes = [
        jax.ShapeDtypeStruct((rows, inner), jnp.float32),
        jax.ShapeDtypeStruct((groups, inner, outer), jnp.float32),
        jax.ShapeDtypeStruct((groups,), jnp.int32),
    ]

    def temporaries(function: Any) -> int:
        return jax.jit(function).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    ours = temporaries(xla.grouped_mm)
    assert ours < 4 * (rows + groups * inner) * max(inner, outer)
    assert ours < temporaries(jax.lax.ragged_dot) / 4
