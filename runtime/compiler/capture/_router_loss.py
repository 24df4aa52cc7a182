"""The router's own loss of a mixture of experts, where the model's configuration asks for it.

With `output_router_logits` transformers' models add it to a loss that they make themselves: its
coefficient times `out.aux_loss`, beside the mean cross-entropy. A captured step sums cross-entropies
and divides by their number later, so the same weight is coefficient times tokens.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from runtime.compiler.capture._attention import base_model
from runtime.spec import CaptureError

_COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")


def has_router_loss(model: nn.Module) -> bool:
    """Tell whether the model's configuration asks for the router's loss."""
    return any(getattr(place, "output_router_logits", False) for place in _places(model))


def router_loss(model: nn.Module, out: Any) -> Tensor | None:
    """Give coefficient times the router's loss, a scalar, or None where the model has none.

    Args:
        model: the model.
        out: what its forward gave.

    Raises:
        CaptureError: the model gives such a loss and does not say how much it counts.
    """
    loss = getattr(out, "aux_loss", None)
    if not isinstance(loss, Tensor) or not has_router_loss(model):
        return None
    for place in (base_model(model), *_places(model)):
        for name in _COEFFICIENTS:
            coefficient = getattr(place, name, None)
            if isinstance(coefficient, (int, float)):
                return coefficient * loss.float()
    raise CaptureError(
        f"the model gives a router loss, and its configuration has no {_COEFFICIENTS[0]}",
        remedy="set output_router_logits to false in the model's configuration",
    )


def _places(model: nn.Module) -> list[Any]:
    """Give the configurations that may speak of a router: the model's, and its text part's."""
    config = getattr(base_model(model), "config", None)
    return [config, getattr(config, "text_config", None)]
