"""Experts of a Hugging Face mixture as grouped products, through transformers' experts interface.

While `as_grouped_products` is open, every experts layer of the model sorts its token-expert pairs,
whose number is fixed (tokens times top-k), and multiplies them with their experts' matrices by
`luma::grouped_mm`. Nothing has a shape that depends on the routing. The meaning is that of
transformers' `batched_mm`, which gathers one matrix a pair.

The order of the pairs is a permutation, and autograd does not know it: the derivative of indexing
is an addition at places, slow and on some targets in no fixed order. So each reordering here is an
`autograd.Function` whose backward is the opposite reordering; tracing keeps it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from runtime.compiler.capture import ops
from runtime.spec import CaptureError

IMPLEMENTATION = "luma"

# What transformers' decorator writes on a module whose experts go through the interface.
_MARKS = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm", "config")


@contextmanager
def as_grouped_products(model: nn.Module) -> Generator[None]:
    """Run the experts of every mixture in the model as grouped products inside the block."""
    configs: dict[int, Any] = {id(m.config): m.config for m in model.modules() if _is_experts(m)}
    before = [(config, config._experts_implementation) for config in configs.values()]  # noqa: SLF001
    try:
        for config, _ in before:
            # The property without "_internal" also writes to the configurations inside.
            config._experts_implementation_internal = IMPLEMENTATION  # noqa: SLF001
        yield
    finally:
        for config, name in before:
            config._experts_implementation_internal = name  # noqa: SLF001


def _is_experts(module: nn.Module) -> bool:
    """Tell whether a module chooses its experts' implementation by its configuration."""
    return all(hasattr(module, name) for name in _MARKS)


@dataclass(frozen=True, slots=True)
class _Order:
    """The token-expert pairs sorted by expert; pairs of one expert keep their order.

    Attributes:
        experts: int64 [pairs], the expert of each sorted pair.
        pairs: int64 [pairs], the pair that stands at each sorted place.
        places: int64 [pairs], the sorted place of each pair.
        sizes: int32 [experts], the number of pairs of each expert.
    """

    experts: Tensor
    pairs: Tensor
    places: Tensor
    sizes: Tensor


def _order(chosen: Tensor, count: int) -> _Order:
    """Sort pairs by expert.

    Args:
        chosen: int [pairs], the expert of each.
        count: number of experts.
    """
    experts, pairs = torch.sort(chosen, stable=True)
    _, places = torch.sort(pairs)
    numbers = torch.arange(count, device=chosen.device)
    sizes = (chosen[:, None] == numbers).sum(0, dtype=torch.int32)
    return _Order(experts, pairs, places, sizes)


def _luma_experts(
    module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Run one experts layer; the signature is transformers'.

    Args:
        module: the layer; it says how its weights lie and has its gate and activation.
        hidden_states: [tokens, hidden].
        top_k_index: int [tokens, top_k], the experts of each token.
        top_k_weights: [tokens, top_k], their weights.

    Returns:
        [tokens, hidden], in hidden_states' dtype.

    Raises:
        CaptureError: the layer holds only a part of the experts (expert parallelism).
    """
    if module._is_expert_parallel:  # noqa: SLF001
        raise CaptureError(
            "an experts layer is split over processes (expert parallelism); a compiled program "
            "shards the whole model by itself",
            remedy="load the model without a tensor or expert parallel plan",
        )
    tokens, top_k = top_k_index.shape
    order = _order(top_k_index.reshape(-1), module.num_experts)
    rows = _Dispatch.apply(hidden_states, order.pairs, order.places, top_k)
    name = "gate_up_proj" if module.has_gate else "up_proj"
    inner = _linear(module, name, rows, order)
    # Whether gate and up lie one behind the other or interleaved is the gate function's to know.
    inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)  # noqa: SLF001
    out = _linear(module, "down_proj", inner, order)
    if module.has_post_expert_norm:
        out = module.post_expert_norm(out)
    out = _Collect.apply(out, order.pairs, order.places)
    weighted = out.view(tokens, top_k, out.shape[-1]) * top_k_weights.unsqueeze(-1)
    return weighted.sum(dim=1).to(hidden_states.dtype)


def _linear(module: Any, name: str, rows: Tensor, order: _Order) -> Tensor:
    """Multiply sorted rows [pairs, in] with their experts' matrices, and add their biases."""
    weights = getattr(module, name)
    rows = rows.to(weights.dtype).contiguous()
    out = ops.grouped_mm(rows, weights.contiguous(), order.sizes, not module.is_transposed)
    if module.has_bias:
        bias = getattr(module, f"{name}_bias")
        out = out + _RowsOfExperts.apply(bias, order.experts, order.sizes)
    return out


class _Dispatch(torch.autograd.Function):
    """Give each sorted pair its token's row: [tokens, hidden] to [pairs, hidden]."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, pairs: Tensor, places: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(places)
        ctx.top_k = top_k
        return hidden[pairs // top_k]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        (places,) = ctx.saved_tensors
        by_token = grad[places].view(len(places) // ctx.top_k, ctx.top_k, grad.shape[-1])
        return by_token.sum(dim=1), None, None, None


class _Collect(torch.autograd.Function):
    """Bring sorted rows [pairs, hidden] back into the pairs' order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, pairs: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(pairs)
        return rows[places]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        (pairs,) = ctx.saved_tensors
        return grad[pairs], None, None


class _RowsOfExperts(torch.autograd.Function):
    """Give each sorted pair its expert's bias: [experts, out] to [pairs, out]."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, experts: Tensor, sizes: Tensor) -> Tensor:
        ctx.save_for_backward(sizes)
        return bias[experts]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        (sizes,) = ctx.saved_tensors
        ones = grad.new_ones(grad.shape[0], 1)
        return ops.grouped_outer(ones, grad.contiguous(), sizes).squeeze(1), None, None


ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, _luma_experts)
