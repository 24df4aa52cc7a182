"""Attention as plain XLA operations: grouped heads without repeated keys, blocks without dead work.

Two things make it fast where no fused kernel is. The query heads that share a key head are one
matrix product with it, so keys and values are never repeated. And the queries are cut into blocks,
each multiplied only with the keys that the causal rule and the window let it see, so most of the
upper triangle of the scores is never computed. A block's softmax is whole, so nothing is rescaled.
The cut is a constant of the program, as all shapes are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax

from runtime.kernels.attention.contract import sizes_of

# Measured on 2 AVX2 cores, forward and backward: at 1,024 positions eight blocks take 0.6 of one
# block's time; at 256 two blocks save 4% of a whole training step and triple its compile time.
_SHORTEST_CUT = 512
_SMALLEST_BLOCK = 128
_MOST_BLOCKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """How scores are made and which are seen."""

    scale: float
    causal: bool
    window: int
    softcap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Some queries, rows `first` to `last`, and the keys from `low` to `high` that they may see."""

    first: int
    last: int
    low: int
    high: int


def attention(
    q: Array,
    k: Array,
    v: Array,
    segment_ids: Array | None,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Array, Array]:
    """Compute attention as `contract` says.

    Args:
        q: [b, h, s, d], any float dtype.
        k: [b, hk, s, d].
        v: [b, hk, s, dv].
        segment_ids: [b, s] integers, or None.
        scale: factor of the scores.
        causal: whether a query sees only keys up to its own position.
        window: how many keys a query sees, itself included; 0 for no limit.
        softcap: bound of the scores; 0 for none.

    Returns:
        out [b, h, s, dv] in q's dtype, and lse [b, h, s] in float32.
    """
    sizes = sizes_of(q.shape, k.shape, v.shape)
    rule = _Rule(scale=scale, causal=causal or window > 0, window=window, softcap=softcap)
    grouped = _grouped(q, sizes.kv_heads)
    outs, lses = [], []
    for block in _blocks(sizes.seq_len, rule):
        scores = _masked(_scores(grouped, k, block, rule), segment_ids, block, rule, -jnp.inf)
        top = jnp.max(scores, -1, keepdims=True)
        weights = jnp.exp(scores - top)
        total = jnp.sum(weights, -1, keepdims=True)
        outs.append(_product("bkgst,bktd->bkgsd", weights, _keys(v, block)) / total)
        lses.append((top + jnp.log(total))[..., 0])
    out, lse = jnp.concatenate(outs, 3), jnp.concatenate(lses, 3)
    return out.reshape(*q.shape[:3], sizes.value_dim).astype(q.dtype), lse.reshape(q.shape[:3])


def attention_backward(
    grad_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    segment_ids: Array | None,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Array, Array, Array]:
    """Compute the gradients of attention's `out` (Dao et al. 2022, algorithm 4).

    Args:
        grad_out: [b, h, s, dv], the gradient of out.
        q: as given to `attention`; likewise k, v, segment_ids and the options.
        k: [b, hk, s, d].
        v: [b, hk, s, dv].
        out: [b, h, s, dv], from `attention`.
        lse: [b, h, s], from `attention`.
        segment_ids: [b, s] integers, or None.
        scale: factor of the scores.
        causal: see `attention`.
        window: see `attention`.
        softcap: see `attention`.

    Returns:
        dq, dk and dv, with the shapes and dtypes of q, k and v.
    """
    sizes = sizes_of(q.shape, k.shape, v.shape)
    rule = _Rule(scale=scale, causal=causal or window > 0, window=window, softcap=softcap)
    queries, grads = _grouped(q, sizes.kv_heads), _grouped(grad_out, sizes.kv_heads)
    sums = lse.reshape(*queries.shape[:4], 1)
    delta = jnp.sum(grads * _grouped(out, sizes.kv_heads), -1, keepdims=True)
    grad_qs, grad_ks, grad_vs = [], [], []
    for block in _blocks(sizes.seq_len, rule):
        grad = _queries(grads, block)
        scores = _scores(queries, k, block, rule)
        weights = jnp.exp(scores - _queries(sums, block))
        weights = _masked(weights, segment_ids, block, rule, 0.0)
        grad_weights = _product("bkgsd,bktd->bkgst", grad, _keys(v, block))
        grad_scores = weights * (grad_weights - _queries(delta, block))
        if softcap:
            grad_scores = grad_scores * (1 - jnp.square(scores / softcap))
        grad_qs.append(_product("bkgst,bktd->bkgsd", grad_scores, _keys(k, block)) * scale)
        grad_k = _product("bkgsd,bkgst->bkdt", _queries(queries, block) * scale, grad_scores)
        grad_ks.append(_placed(grad_k, block, sizes.seq_len))
        grad_v = _product("bkgsd,bkgst->bkdt", grad, weights)
        grad_vs.append(_placed(grad_v, block, sizes.seq_len))
    grad_q = jnp.concatenate(grad_qs, 3).reshape(q.shape)
    return (
        grad_q.astype(q.dtype),
        _summed(grad_ks).astype(k.dtype),
        _summed(grad_vs).astype(v.dtype),
    )


def _blocks(seq_len: int, rule: _Rule) -> list[_Block]:
    """Cut the queries, unless each may see every key or there are few."""
    if not rule.causal or seq_len < _SHORTEST_CUT:
        return [_Block(first=0, last=seq_len, low=0, high=seq_len)]
    size = max(_SMALLEST_BLOCK, math.ceil(seq_len / _MOST_BLOCKS))
    blocks = []
    for first in range(0, seq_len, size):
        last = min(first + size, seq_len)
        low = max(0, first - rule.window + 1) if rule.window else 0
        blocks.append(_Block(first=first, last=last, low=low, high=last))
    return blocks


def _grouped(x: Array, kv_heads: int) -> Array:
    """Give [b, h, s, d] as float32 [b, hk, h / hk, s, d]."""
    batch, heads, seq_len, dim = x.shape
    return x.astype(jnp.float32).reshape(batch, kv_heads, heads // kv_heads, seq_len, dim)


def _queries(x: Array, block: _Block) -> Array:
    """Give a block's rows of [b, hk, g, s, ...]."""
    return lax.slice_in_dim(x, block.first, block.last, axis=3)


def _keys(x: Array, block: _Block) -> Array:
    """Give the rows of [b, hk, s, ...] that a block may see, as float32."""
    return lax.slice_in_dim(x, block.low, block.high, axis=2).astype(jnp.float32)


def _placed(part: Array, block: _Block, seq_len: int) -> Array:
    """Give a block's [b, hk, d, t] the whole sequence's length, with zeros around it."""
    return jnp.pad(part, ((0, 0), (0, 0), (0, 0), (block.low, seq_len - block.high)))


def _summed(parts: list[Array]) -> Array:
    """Add the blocks' [b, hk, d, s], and give [b, hk, s, d].

    They are made with the sequence last because XLA's CPU products are 1.5 to 2.5 times slower when
    it is the large operand that must be turned; the barrier keeps XLA from undoing that.
    """
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return jnp.swapaxes(lax.optimization_barrier(total), 2, 3)


def _product(equation: str, x: Array, y: Array) -> Array:
    return jnp.einsum(equation, x, y, precision=lax.Precision.HIGHEST)


def _scores(queries: Array, k: Array, block: _Block, rule: _Rule) -> Array:
    """Give a block's scores before the mask: [b, hk, g, rows, keys]."""
    scaled = _queries(queries, block) * rule.scale
    scores = _product("bkgsd,bktd->bkgst", scaled, _keys(k, block))
    return rule.softcap * jnp.tanh(scores / rule.softcap) if rule.softcap else scores


def _masked(x: Array, segment_ids: Array | None, block: _Block, rule: _Rule, value: float) -> Array:
    """Put a value where a query does not see a key."""
    seen = None
    if rule.causal:
        shape = block.last - block.first, block.high - block.low
        row = lax.broadcasted_iota(jnp.int32, shape, 0) + block.first
        column = lax.broadcasted_iota(jnp.int32, shape, 1) + block.low
        seen = column <= row
        if rule.window:
            seen = seen & (column > row - rule.window)
    if segment_ids is not None:
        own = lax.slice_in_dim(segment_ids, block.first, block.last, axis=1)
        other = lax.slice_in_dim(segment_ids, block.low, block.high, axis=1)
        same = (own[:, :, None] == other[:, None, :])[:, None, None]
        seen = same if seen is None else same & seen
    return x if seen is None else jnp.where(seen, x, value)
