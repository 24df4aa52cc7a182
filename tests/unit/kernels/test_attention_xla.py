"""Attention in its XLA form against the reference, forward and backward, and against plain softmax."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from runtime.kernels.attention import reference, xla

_SCALE = 0.3
# (batch, heads, key heads, positions, head size, value size): one block, several, uneven ones.
_SIZES = ((2, 4, 2, 7, 8, 8), (1, 3, 1, 130, 4, 6), (1, 2, 1, 520, 4, 4), (1, 1, 1, 1, 2, 2))
_RULES = ((True, 0, 0.0), (True, 5, 0.0), (True, 0, 3.0), (True, 140, 2.0), (False, 0, 0.0))


def _arrays(sizes: tuple[int, ...], *, segments: bool) -> dict[str, Any]:
    batch, heads, kv_heads, positions, dim, value_dim = sizes
    draw = np.random.default_rng(3)
    shapes = {
        "q": (batch, heads, positions, dim),
        "k": (batch, kv_heads, positions, dim),
        "v": (batch, kv_heads, positions, value_dim),
        "grad": (batch, heads, positions, value_dim),
    }
    arrays: dict[str, Any] = {
        name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()
    }
    lengths = np.sort(draw.integers(0, positions + 1, size=(batch, 2)), axis=1)
    place = np.arange(positions)[None, :]
    ids = (1 + (place >= lengths[:, :1])) * (place < lengths[:, 1:])
    arrays["segments"] = ids.astype(np.int32) if segments else None
    return arrays


def _as_torch(array: Any) -> Any:
    return None if array is None else torch.from_numpy(array)


@pytest.mark.parametrize("sizes", _SIZES, ids=str)
@pytest.mark.parametrize("rule", _RULES, ids=str)
@pytest.mark.parametrize("segments", [False, True])
def test_forward_and_backward_equal_the_reference(
    sizes: tuple[int, ...], rule: tuple[bool, int, float], segments: bool
) -> None:
    """Outputs, log-sums and all three gradients agree; nothing is NaN, padding included."""
    arrays = _arrays(sizes, segments=segments)
    options = (arrays["segments"], _SCALE, *rule)
    qkv = [arrays[name] for name in "qkv"]
    out, lse = jax.jit(lambda *x: xla.attention(*x, *options))(*qkv)
    grads = jax.jit(lambda *x: xla.attention_backward(*x, *options))(arrays["grad"], *qkv, out, lse)
    torch_options = (_as_torch(arrays["segments"]), _SCALE, *rule)
    torch_qkv = [_as_torch(x) for x in qkv]
    want_out, want_lse = reference.attention(*torch_qkv, *torch_options)
    want_grads = reference.attention_backward(
        _as_torch(arrays["grad"]), *torch_qkv, want_out, want_lse, *torch_options
    )
    for got, want in zip([out, lse, *grads], [want_out, want_lse, *want_grads], strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, want.numpy(), rtol=2e-5, atol=2e-5)


def test_gradients_equal_jax_derivatives_of_the_plain_formula() -> None:
    """The written-out backward is the derivative that jax finds of the textbook formula."""
    arrays = _arrays((1, 4, 2, 600, 4, 4), segments=False)
    qkv = [jnp.asarray(arrays[name]) for name in "qkv"]
    options = (None, _SCALE, True, 0, 2.0)

    def plain(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        k, v = jnp.repeat(k, 2, 1), jnp.repeat(v, 2, 1)
        scores = 2.0 * jnp.tanh(jnp.einsum("bhsd,bhtd->bhst", q, k) * _SCALE / 2.0)
        scores = jnp.where(jnp.tril(jnp.ones((600, 600), bool)), scores, -jnp.inf)
        return jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(scores), v)

    want_out, pull = jax.vjp(plain, *qkv)
    out, lse = xla.attention(*qkv, *options)
    grads = xla.attention_backward(arrays["grad"], *qkv, out, lse, *options)
    np.testing.assert_allclose(out, want_out, rtol=1e-5, atol=1e-5)
    for got, want in zip(grads, pull(jnp.asarray(arrays["grad"])), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def test_half_precision_keeps_its_dtype_and_sums_in_float32() -> None:
    """bfloat16 goes in and out; the log-sum stays float32 and near the float32 result's."""
    arrays = _arrays((1, 2, 1, 40, 8, 8), segments=False)
    halves = [jnp.asarray(arrays[name], jnp.bfloat16) for name in "qkv"]
    options = (None, _SCALE, True, 0, 0.0)
    out, lse = xla.attention(*halves, *options)
    wide_out, wide_lse = xla.attention(*[x.astype(jnp.float32) for x in halves], *options)
    assert (out.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_array_equal(lse, wide_lse)
    np.testing.assert_array_equal(out, wide_out.astype(jnp.bfloat16))
    grads = xla.attention_backward(out, *halves, out, lse, *options)
    assert {x.dtype for x in grads} == {jnp.dtype(jnp.bfloat16)}


def test_large_scores_do_not_overflow() -> None:
    """Scores of hundreds, where e^score is infinite, give the one key that wins."""
    q = np.full((1, 1, 3, 1), 30.0, np.float32)
    k = np.array([1.0, 20.0, -5.0], np.float32).reshape(1, 1, 3, 1)
    v = np.array([1.0, 2.0, 3.0], np.float32).reshape(1, 1, 3, 1)
    out, lse = xla.attention(q, k, v, None, 1.0, False, 0, 0.0)
    np.testing.assert_array_equal(np.ravel(out), [2.0, 2.0, 2.0])
    np.testing.assert_array_equal(np.ravel(lse), [600.0, 600.0, 600.0])


@pytest.mark.parametrize(
    ("seq_len", "window"), itertools.product((512, 513, 1000, 4096), (0, 1, 200))
)
def test_blocks_cover_each_query_and_every_key_it_sees(seq_len: int, window: int) -> None:
    """Blocks follow each other without gaps, at most eight, and hold all visible keys."""
    rule = xla._Rule(scale=1.0, causal=True, window=window, softcap=0.0)
    blocks = xla._blocks(seq_len, rule)
    assert [b.first for b in blocks] == [0, *(b.last for b in blocks[:-1])]
    assert blocks[-1].last == seq_len
    assert len(blocks) <= 8
    for block in blocks:
        assert block.high == block.last
        assert block.low == (max(0, block.first - window + 1) if window else 0)


def test_causal_attention_skips_most_of_the_upper_triangle() -> None:
    """At 1,024 positions the compiled forward does at most 0.6 of the full products' arithmetic."""
    shape = jax.ShapeDtypeStruct((1, 2, 1024, 64), jnp.float32)

    def flops(causal: bool) -> float:
        forward = jax.jit(lambda q, k, v: xla.attention(q, k, v, None, 1.0, causal, 0, 0.0))
        return forward.lower(shape, shape, shape).compile().cost_analysis()["flops"]

    assert flops(causal=True) < 0.6 * flops(causal=False)
