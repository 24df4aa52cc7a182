"""LoRA through peft: only the adapter's matrices are trained, the rest is frozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import nn
from transformers import PreTrainedModel

from runtime.spec import CaptureError


class AdapterOptions(Protocol):
    """The options of a LoRA adapter; the job's `adapter` section has them."""

    @property
    def r(self) -> int:
        """Rank of the two matrices."""
        ...

    @property
    def alpha(self) -> float:
        """Scale; the update is multiplied by alpha / r."""
        ...

    @property
    def dropout(self) -> float:
        """Probability that an input of the adapter is dropped."""
        ...

    @property
    def target_modules(self) -> Sequence[str] | None:
        """Names of the adapted modules, or None for peft's choice."""
        ...


def apply_adapter(model: nn.Module, options: AdapterOptions) -> nn.Module:
    """Put a LoRA adapter around a model, freezing the model itself.

    Raises:
        CaptureError: the model is not from transformers, or peft finds nothing to adapt.
    """
    from peft import LoraConfig, get_peft_model

    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        raise CaptureError(f"adapter: the model is a {kind}; only transformers' models take one")
    targets = None if options.target_modules is None else list(options.target_modules)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=options.r,
        # peft types it as an integer and only divides it by r.
        lora_alpha=options.alpha,  # type: ignore[arg-type]
        lora_dropout=options.dropout,
        target_modules=targets,
    )
    try:
        return get_peft_model(model, config)
    except (ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise CaptureError(
            f"adapter: peft cannot adapt this model: {reason}",
            remedy="set adapter.target_modules to names of the model's linear layers",
        ) from error
