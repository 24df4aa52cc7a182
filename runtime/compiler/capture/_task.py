"""What a training task is to capture: which inputs a batch has, what the model gives, and its loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

if TYPE_CHECKING:
    from runtime.compiler.capture._attention import AttentionCalls
    from runtime.compiler.capture._check import Checked, GradientCheck

Batch = dict[str, Tensor]
Weights = dict[str, Tensor]


class Task(Protocol):
    """A kind of training; `runtime.compiler.capture.tasks` has those that there are."""

    @property
    def name(self) -> str:
        """Its name, such as "causal_lm"."""
        ...

    @property
    def targets(self) -> frozenset[str]:
        """The entries of a batch that only the loss reads."""
        ...

    @property
    def result(self) -> str:
        """What the forward gives, such as "logits"."""
        ...

    def batch(
        self, model: nn.Module, *, micro_batch: int, seq_len: int, packing: bool, seed: int
    ) -> Batch:
        """Give a random batch of the task's kind, in the shapes of a job's micro-batches.

        Raises:
            CaptureError: the model does not tell what its inputs are, or packing has no meaning.
        """
        ...

    def output(self, model: nn.Module, inputs: Batch, weights: Weights | None = None) -> Tensor:
        """Run the model.

        Args:
            model: the model.
            inputs: a batch without its targets.
            weights: tensors to use in place of the model's own, by path; None for its own.

        Raises:
            CaptureError: the model's forward gives something else.
        """
        ...

    def loss(self, output: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Give (sum of losses in float32, number of them) of an output and its batch."""
        ...

    def step(
        self, model: nn.Module, batch: Batch, weights: Weights | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run the model on a batch and give (sum of losses, number of them), for training.

        Args:
            model: the model.
            batch: a batch, its targets included.
            weights: tensors to use in place of the model's own, by path; None for its own.
        """
        ...

    def check(
        self,
        checked: Checked,
        *,
        has_dropout: bool,
        opened: Callable[[], AbstractContextManager[AttentionCalls | None]],
    ) -> GradientCheck:
        """Compare captured graphs with the untouched model.

        Args:
            checked: what to check.
            has_dropout: whether the training step draws.
            opened: opens the form of attention that was captured.

        Raises:
            Disagreement: loss, count, gradients or outputs are off.
        """
        ...
