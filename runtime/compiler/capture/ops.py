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
from runtime.kernels.grouped_mm import reference as grouped_reference


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


@torch.library.custom_op("luma::grouped_mm", mutates_args=())
def grouped_mm(
    rows: Tensor, weights: Tensor, group_sizes: Tensor, transposed: bool = False
) -> Tensor:
    """Run `luma::grouped_mm`; see `runtime.kernels.grouped_mm.contract`."""
    return grouped_reference.grouped_mm(rows, weights, group_sizes, transposed)


@torch.library.custom_op("luma::grouped_outer", mutates_args=())
def grouped_outer(left: Tensor, right: Tensor, group_sizes: Tensor) -> Tensor:
    """Run `luma::grouped_outer`; see `runtime.kernels.grouped_mm.contract`."""
    return grouped_reference.grouped_outer(left, right, group_sizes)


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


@grouped_mm.register_fake
def _grouped_mm_fake(
    rows: Tensor, weights: Tensor, group_sizes: Tensor, transposed: bool = False
) -> Tensor:
    return rows.new_empty(rows.shape[0], weights.shape[1 if transposed else 2])


@grouped_outer.register_fake
def _grouped_outer_fake(left: Tensor, right: Tensor, group_sizes: Tensor) -> Tensor:
    return left.new_empty(group_sizes.shape[0], left.shape[1], right.shape[1])


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


def _save_grouped_mm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, weights, group_sizes, ctx.transposed = inputs
    ctx.save_for_backward(rows, weights, group_sizes)


def _grouped_mm_grad(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Give the gradients that are asked for: a frozen expert's would be most of the work."""
    rows, weights, group_sizes = ctx.saved_tensors
    grad, grad_rows, grad_weights = grad.contiguous(), None, None
    if ctx.needs_input_grad[0]:
        grad_rows = grouped_mm(grad, weights, group_sizes, not ctx.transposed)
    if ctx.needs_input_grad[1]:
        pair = (grad, rows) if ctx.transposed else (rows, grad)
        grad_weights = grouped_outer(*pair, group_sizes)
    return grad_rows, grad_weights, None, None


def _save_grouped_outer(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _grouped_outer_grad(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    left, right, group_sizes = ctx.saved_tensors
    grad = grad.contiguous()
    grad_left = grouped_mm(right, grad, group_sizes, transposed=True)
    return grad_left, grouped_mm(left, grad, group_sizes), None


attention.register_autograd(_attention_grad, setup_context=_save_attention)
dropout.register_autograd(_dropout_grad, setup_context=_save_dropout)
grouped_mm.register_autograd(_grouped_mm_grad, setup_context=_save_grouped_mm)
grouped_outer.register_autograd(_grouped_outer_grad, setup_context=_save_grouped_outer)
