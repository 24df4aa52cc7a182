"""Attention in plain torch, forward and backward written out: the meaning of the op, not its speed.

The backward is written out because autograd is off inside a custom op's body. It follows the
recomputation form of FlashAttention (Dao et al. 2022, algorithm 4): probabilities come back from
the saved `lse`, and the softmax's derivative needs only delta = sum(grad_out * out).
"""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.kernels.attention.contract import sizes_of


def attention_mask(
    seq_len: int, segment_ids: Tensor | None, causal: bool, window: int
) -> Tensor | None:
    """Give what each query sees: [s, s] or [b, 1, s, s] bool, or None where it sees all."""
    device = None if segment_ids is None else segment_ids.device
    row = torch.arange(seq_len, device=device)[:, None]
    column = torch.arange(seq_len, device=device)[None, :]
    mask = None
    if causal or window:
        mask = column <= row
    if window and mask is not None:
        mask = mask & (column > row - window)
    if segment_ids is not None:
        same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
        mask = same if mask is None else same & mask
    return mask


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segment_ids: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:
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
    sizes = sizes_of(tuple(q.shape), tuple(k.shape), tuple(v.shape))
    scores = _scores(q, k, scale, softcap)
    mask = attention_mask(sizes.seq_len, segment_ids, causal, window)
    if mask is not None:
        scores = scores.masked_fill(~_grouped(mask), -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    probabilities = torch.exp(scores - lse[..., None])
    out = torch.einsum("bkgst,bktd->bkgsd", probabilities, _wide(v))
    shape = (sizes.batch, sizes.heads, sizes.seq_len)
    return out.reshape(*shape, sizes.value_dim).to(q.dtype), lse.reshape(shape).float()


def attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    segment_ids: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of attention's `out`.

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
    sizes = sizes_of(tuple(q.shape), tuple(k.shape), tuple(v.shape))
    heads = (sizes.kv_heads, sizes.groups)
    scores = _scores(q, k, scale, softcap)
    probabilities = torch.exp(scores - _wide(lse).unflatten(1, heads)[..., None])
    mask = attention_mask(sizes.seq_len, segment_ids, causal, window)
    if mask is not None:
        probabilities = probabilities.masked_fill(~_grouped(mask), 0.0)
    grad = _wide(grad_out).unflatten(1, heads)
    delta = (grad * _wide(out).unflatten(1, heads)).sum(-1, keepdim=True)
    grad_v = torch.einsum("bkgst,bkgsd->bktd", probabilities, grad)
    grad_p = torch.einsum("bkgsd,bktd->bkgst", grad, _wide(v))
    grad_scores = probabilities * (grad_p - delta)
    if softcap:
        grad_scores = grad_scores * (1 - (scores / softcap) ** 2)
    grad_scores = grad_scores * scale
    grad_q = torch.einsum("bkgst,bktd->bkgsd", grad_scores, _wide(k)).flatten(1, 2)
    grad_k = torch.einsum("bkgst,bkgsd->bktd", grad_scores, _wide(q).unflatten(1, heads))
    return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype)


def _wide(x: Tensor) -> Tensor:
    """Give x in the dtype of the sums: float32, or float64 where x has that (for tests)."""
    return x if x.dtype == torch.float64 else x.float()


def _scores(q: Tensor, k: Tensor, scale: float, softcap: float) -> Tensor:
    """Give the scores before the mask: [b, hk, groups, s, s]."""
    grouped = _wide(q).unflatten(1, (k.shape[1], q.shape[1] // k.shape[1]))
    scores = torch.einsum("bkgsd,bktd->bkgst", grouped, _wide(k)) * scale
    return softcap * torch.tanh(scores / softcap) if softcap else scores


def _grouped(mask: Tensor) -> Tensor:
    """Give a mask that broadcasts over [b, hk, groups, s, s]."""
    return mask if mask.dim() == 2 else mask[:, :, None]
