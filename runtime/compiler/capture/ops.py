"""The `luma::` ops in torch: registered once, on import, over the kernels' references.

Export and tracing keep each as one node. An op's backward is an op of its own, because autograd is
off inside a custom op's body.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from runtime.kernels.attention import reference as attention_reference
from runtime.kernels.dropout import reference as dropout_reference


@torch.library.custom_op("luma::attention", mutates_args=())
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
    """Run `luma::attention`; see `runtime.kernels.attention.contract`."""
    return attention_reference.attention(q, k, v, segment_ids, scale, causal, window, softcap)


@torch.library.custom_op("luma::attention_backward", mutates_args=())
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
    """Run `luma::attention_backward`; see `runtime.kernels.attention.contract`."""
    return attention_reference.attention_backward(
        grad_out, q, k, v, out, lse, segment_ids, scale, causal, window, softcap
    )


@torch.library.custom_op("luma::dropout", mutates_args=())
def dropout(x: Tensor, p: float, key: Tensor, call: int) -> Tensor:
    """Run `luma::dropout`; see `runtime.kernels.dropout.contract`."""
    return dropout_reference.dropout(x, p, key, call)


@attention.register_fake
def _attention_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segment_ids: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    out = q.new_empty((*q.shape[:3], v.shape[3]))
    return out, q.new_empty(q.shape[:3], dtype=torch.float32)


@attention_backward.register_fake
def _attention_backward_fake(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


@dropout.register_fake
def _dropout_fake(x: Tensor, p: float, key: Tensor, call: int) -> Tensor:
    return x.new_empty(x.shape)


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, segment_ids, *options = inputs
    ctx.save_for_backward(q, k, v, *output, segment_ids)
    ctx.options = options
    ctx.mark_non_differentiable(output[1])


def _attention_grad(ctx: Any, grad_out: Tensor, _grad_lse: Tensor) -> tuple[Any, ...]:
    grads = attention_backward(grad_out.contiguous(), *ctx.saved_tensors, *ctx.options)
    return (*grads, None, None, None, None, None)


def _save_dropout(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.p, key, ctx.call = inputs
    ctx.save_for_backward(key)


def _dropout_grad(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
    (key,) = ctx.saved_tensors
    return dropout(grad_out.contiguous(), ctx.p, key, ctx.call), None, None, None


attention.register_autograd(_attention_grad, setup_context=_save_attention)
dropout.register_autograd(_dropout_grad, setup_context=_save_dropout)
