"""Attention of a Hugging Face model as one op, through transformers' attention interface.

While `as_one_op` is open, every attention layer of the model calls `luma::attention`. The mask
interface is answered with None, since the op makes its mask from its own arguments. What the op
cannot express is a `MathFormNeeded`, never a wrong result.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from runtime.compiler.capture import ops  # noqa: F401 (registers the luma:: ops)
from runtime.spec import CaptureError

IMPLEMENTATION = "luma"

# Keywords that models hand to every attention function and that do not change its result.
_HARMLESS = frozenset(
    {
        "position_ids",
        "cache_position",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "is_causal",
        "num_items_in_batch",
        "layer_idx",
    }
)


class MathFormNeeded(CaptureError):
    """A layer's attention has something that `luma::attention` lacks."""


@dataclass(slots=True)
class AttentionCalls:
    """What the attention op was given while it was open.

    Attributes:
        count: calls of the op.
        without_segments: calls that got no segment ids.
    """

    count: int = 0
    without_segments: int = 0


_calls: ContextVar[AttentionCalls | None] = ContextVar("luma_attention_calls", default=None)


def base_model(model: nn.Module) -> nn.Module:
    """Give the model that peft wraps, or the model itself."""
    inner = getattr(model, "get_base_model", None)
    return inner() if callable(inner) else model


def implementation(model: nn.Module) -> str | None:
    """Give the name of the model's attention implementation, or None where it has no choice."""
    base = base_model(model)
    if not isinstance(base, PreTrainedModel) or not base._can_set_attn_implementation():  # noqa: SLF001
        return None
    return base.config._attn_implementation  # noqa: SLF001


@contextmanager
def attention_implementation(model: nn.Module, name: str) -> Generator[None]:
    """Use this attention implementation inside the block, where the model has a choice."""
    before = implementation(model)
    base = base_model(model)
    if before is None or not isinstance(base, PreTrainedModel):
        yield
        return
    base.set_attn_implementation(name)
    try:
        yield
    finally:
        base.set_attn_implementation(before)


@contextmanager
def as_one_op(model: nn.Module) -> Generator[AttentionCalls]:
    """Capture the model's attention as one op inside the block, and count its calls."""
    calls = AttentionCalls()
    token = _calls.set(calls)
    try:
        with attention_implementation(model, IMPLEMENTATION):
            yield calls
    finally:
        _calls.reset(token)


def _luma_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    segment_ids: Tensor | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Run one layer's attention as the op; the signature is transformers'."""
    _refuse_extras(attention_mask, dropout, rest)
    if query.shape[2] != key.shape[2]:
        lengths = f"{query.shape[2]} queries over {key.shape[2]} keys"
        raise MathFormNeeded(f"attention of {lengths}: luma::attention takes as many of both")
    calls = _calls.get()
    if calls is not None:
        calls.count += 1
        calls.without_segments += segment_ids is None
    causal = rest.get("is_causal")
    causal = bool(getattr(module, "is_causal", True)) if causal is None else bool(causal)
    out, _ = torch.ops.luma.attention(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        segment_ids,
        query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        causal,
        int(sliding_window or 0),
        float(softcap or 0.0),
    )
    return out.transpose(1, 2).contiguous(), None


def _refuse_extras(mask: Tensor | None, dropout: float, rest: dict[str, Any]) -> None:
    """Refuse arguments that would change the result and that the op cannot take."""
    reasons = [f"'{name}'" for name, value in rest.items() if name not in _HARMLESS and _set(value)]
    if mask is not None:
        reasons.append("a mask of its own")
    if dropout:
        reasons.append(f"dropout on attention weights (p={dropout})")
    if reasons:
        raise MathFormNeeded(f"attention with {', '.join(reasons)}: luma::attention has no such")


def _set(value: object) -> bool:
    """Tell whether a keyword's value can change a result."""
    return value is not None and value is not False


def _no_mask(*_: Any, **__: Any) -> None:
    """Answer transformers' request for a mask: the op makes its own."""


AttentionInterface.register(IMPLEMENTATION, _luma_attention)
AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
