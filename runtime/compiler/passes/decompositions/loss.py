"""Negative log-likelihood by comparison of each class with the label."""

from __future__ import annotations

from runtime.compiler.passes.decompositions.builder import Builder, Val
from runtime.compiler.passes.decompositions.registry import decomposition

_NONE, _MEAN = 0, 1


@decomposition(
    "aten.nll_loss_forward.default",
    families=("neuron",),
    because="the label's log-probability is read by index (issue 937)",
)
def nll_loss_forward(
    b: Builder, x: Val, target: Val, weight: Val | None, reduction: int, ignore_index: int
) -> tuple[Val, Val] | None:
    """Give the loss of log-probabilities, and the sum of the weights.

    Args:
        b: makes the nodes.
        x: [tokens, classes] or [classes].
        target: [tokens] or [], integers.
        weight: [classes] or None.
        reduction: 0 none, 1 mean, 2 sum.
        ignore_index: the label that counts for nothing.
    """
    if not x.size:
        return None
    kept = b.compare("ne", target, ignore_index)
    hit = b.compare("eq", b.arange(x.shape[-1]), b.unsqueeze(target, target.ndim))
    picked = b.total(b.where(hit, x, 0.0), x.ndim - 1)
    if weight is None:
        weights = b.cast(kept, x.dtype)
    else:
        weights = b.where(kept, b.total(b.where(hit, weight, 0.0), x.ndim - 1), 0.0)
    weighed = b.mul(b.mul(picked, -1.0), weights)
    losses = b.where(b.compare("eq", weights, 0.0), 0.0, weighed)
    if reduction == _NONE and target.ndim:
        return losses, b.full((), 0.0, x.dtype)
    if target.ndim:
        losses, weights = b.total(losses, 0), b.total(weights, 0)
    return (b.div(losses, weights) if reduction == _MEAN else losses), weights
