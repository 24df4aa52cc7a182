"""The tasks that can be captured: causal language models, and a first slice beyond them.

| task | batch | output | loss |
|---|---|---|---|
| CAUSAL_LM | input_ids, labels, position_ids, segment_ids if packed | logits | cross-entropy a token |
| MASKED_LM | input_ids, labels, attention_mask | logits | cross-entropy a token |
| EMBEDDING | input_ids, attention_mask, targets | unit embeddings | 1 - cosine to the target |
| SEQ2SEQ | input_ids, labels, attention_mask, decoder_input_ids | logits | cross-entropy a token |
| IMAGE_CLASSIFICATION | pixel_values, labels | logits | cross-entropy an image |
| IMAGE_TEXT | input_ids, pixel_values | similarities | contrastive, both ways |

A new one is an object with the methods of `Task`; its batch's names go into `BATCH_KEYS` of
`runtime.compiler.graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from runtime.compiler.capture._attention import AttentionCalls, base_model
from runtime.compiler.capture._batches import IGNORE, random_batch, vocabulary
from runtime.compiler.capture._check import Checked, GradientCheck, check_capture, check_outputs
from runtime.compiler.capture._task import Batch, Task, Weights
from runtime.compiler.capture._trace import call_model, causal_step, loss_of, run_model
from runtime.spec import CaptureError


class _CausalLM:
    """Next-token prediction; the one task that packs several documents into a row."""

    name = "causal_lm"
    targets = frozenset({"labels"})
    result = "logits"

    def batch(
        self, model: nn.Module, *, micro_batch: int, seq_len: int, packing: bool, seed: int
    ) -> Batch:
        return random_batch(
            model, micro_batch=micro_batch, seq_len=seq_len, packing=packing, seed=seed
        )

    def output(self, model: nn.Module, inputs: Batch, weights: Weights | None = None) -> Tensor:
        return call_model(model, inputs, weights)

    def loss(self, output: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return loss_of(output, batch["labels"])

    def step(
        self, model: nn.Module, batch: Batch, weights: Weights | None = None
    ) -> tuple[Tensor, Tensor]:
        return causal_step(model, batch, weights)

    def check(
        self,
        checked: Checked,
        *,
        has_dropout: bool,
        opened: Callable[[], AbstractContextManager[AttentionCalls | None]],
    ) -> GradientCheck:
        return check_capture(checked, has_dropout=has_dropout, opened=opened)


class _RowTask:
    """A task whose rows stand each for itself; padding is told by `attention_mask`."""

    name = ""
    targets = frozenset({"labels"})
    result = "logits"

    def batch(
        self, model: nn.Module, *, micro_batch: int, seq_len: int, packing: bool, seed: int
    ) -> Batch:
        if packing:
            raise CaptureError(
                f"task '{self.name}' takes one sample a row", remedy="set data.packing to false"
            )
        draw = torch.Generator().manual_seed(seed)
        return self._draw(model, micro_batch, seq_len, draw)

    def output(self, model: nn.Module, inputs: Batch, weights: Weights | None = None) -> Tensor:
        return _tensor(run_model(model, self._keywords(inputs), weights), "logits")

    def loss(self, output: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return loss_of(output, batch["labels"])

    def step(
        self, model: nn.Module, batch: Batch, weights: Weights | None = None
    ) -> tuple[Tensor, Tensor]:
        inputs = {name: value for name, value in batch.items() if name not in self.targets}
        return self.loss(self.output(model, inputs, weights), batch)

    def check(self, checked: Checked, **_form: Any) -> GradientCheck:
        return check_outputs(checked)

    def _draw(self, model: nn.Module, rows: int, length: int, draw: torch.Generator) -> Batch:
        raise NotImplementedError

    def _keywords(self, inputs: Batch) -> dict[str, Any]:
        """Give what the model's forward is called with."""
        return dict(inputs)


class _MaskedLM(_RowTask):
    """Prediction of the tokens that labels name, seen from both sides."""

    name = "masked_lm"

    def _draw(self, model: nn.Module, rows: int, length: int, draw: torch.Generator) -> Batch:
        mask = _padding(rows, length)
        labels = _token_ids(model, rows, length, draw)
        masked = (torch.rand(rows, length, generator=draw) < 0.3) & (mask != 0)
        masked[:, 0] = True
        return {
            "input_ids": _token_ids(model, rows, length, draw),
            "labels": torch.where(masked, labels, IGNORE),
            "attention_mask": mask,
        }

    def _keywords(self, inputs: Batch) -> dict[str, Any]:
        return _with_segments(inputs)


class _Embedding(_RowTask):
    """Sentence embeddings: the mean of the last hidden states, scaled to length 1."""

    name = "embedding"
    targets = frozenset({"targets"})
    result = "embeddings"

    def _draw(self, model: nn.Module, rows: int, length: int, draw: torch.Generator) -> Batch:
        width = getattr(getattr(base_model(model), "config", None), "hidden_size", None)
        if not isinstance(width, int):
            raise CaptureError("task 'embedding': the model's configuration has no hidden_size")
        targets = torch.randn(rows, width, generator=draw)
        return {
            "input_ids": _token_ids(model, rows, length, draw),
            "attention_mask": _padding(rows, length),
            "targets": functional.normalize(targets, dim=-1),
        }

    def _keywords(self, inputs: Batch) -> dict[str, Any]:
        return _with_segments(inputs)

    def output(self, model: nn.Module, inputs: Batch, weights: Weights | None = None) -> Tensor:
        out = run_model(model, self._keywords(inputs), weights)
        hidden = _tensor(out, "last_hidden_state").float()
        seen = inputs["attention_mask"].unsqueeze(-1).float()
        mean = (hidden * seen).sum(1) / seen.sum(1).clamp_min(1.0)
        return functional.normalize(mean, dim=-1)

    def loss(self, output: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Give the sum over rows of 1 - cosine(embedding, target); targets have length 1."""
        cosines = (output * batch["targets"]).sum(-1)
        return (1.0 - cosines).sum(), _count(output)


class _Seq2Seq(_RowTask):
    """Prediction of the decoder's tokens from an encoded text and the tokens before."""

    name = "seq2seq"

    def _draw(self, model: nn.Module, rows: int, length: int, draw: torch.Generator) -> Batch:
        labels = _token_ids(model, rows, length, draw)
        unlabelled = torch.rand(rows, length, generator=draw) < 0.1
        unlabelled[:, 0] = False
        return {
            "input_ids": _token_ids(model, rows, length, draw),
            "labels": torch.where(unlabelled, IGNORE, labels),
            "attention_mask": _padding(rows, length),
            "decoder_input_ids": _token_ids(model, rows, length, draw),
        }


class _ImageClassification(_RowTask):
    """One label an image."""

    name = "image_classification"

    def _draw(
        self,
        model: nn.Module,
        rows: int,
        length: int,  # noqa: ARG002 (an image's size is the model's)
        draw: torch.Generator,
    ) -> Batch:
        classes = getattr(base_model(model).config, "num_labels", None)
        if not isinstance(classes, int):
            raise CaptureError("task 'image_classification': the configuration has no num_labels")
        return {
            "labels": torch.randint(0, classes, (rows,), generator=draw),
            "pixel_values": _pixels(model, rows, draw),
        }


class _ImageText(_RowTask):
    """Images and texts that belong together, each against the rest of its micro-batch.

    There is no attention_mask: the text side is causal and reads its end-of-text token, behind
    which padding changes nothing.
    """

    name = "image_text"
    targets = frozenset[str]()
    result = "similarities"

    def _draw(self, model: nn.Module, rows: int, length: int, draw: torch.Generator) -> Batch:
        ids = _token_ids(model, rows, length, draw)
        text = getattr(base_model(model).config, "text_config", None)
        end = getattr(text, "eos_token_id", None)
        if isinstance(end, int):
            ids[:, -1] = end
        return {"input_ids": ids, "pixel_values": _pixels(model, rows, draw)}

    def output(self, model: nn.Module, inputs: Batch, weights: Weights | None = None) -> Tensor:
        return _tensor(run_model(model, self._keywords(inputs), weights), "logits_per_image")

    def loss(
        self,
        output: Tensor,
        batch: Mapping[str, Tensor],  # noqa: ARG002 (a pair's target is its own place)
    ) -> tuple[Tensor, Tensor]:
        """Give the sum over rows of the mean of both directions' cross-entropies.

        Args:
            output: similarities [images, texts], scaled; row i belongs to column i.
            batch: not used.
        """
        own = torch.arange(output.shape[0], device=output.device)
        losses = [loss_of(side, own)[0] for side in (output, output.T)]
        return (losses[0] + losses[1]) / 2, _count(output)


CAUSAL_LM: Task = _CausalLM()
MASKED_LM: Task = _MaskedLM()
EMBEDDING: Task = _Embedding()
SEQ2SEQ: Task = _Seq2Seq()
IMAGE_CLASSIFICATION: Task = _ImageClassification()
IMAGE_TEXT: Task = _ImageText()


def _tensor(out: Any, name: str) -> Tensor:
    """Give one of a model's outputs."""
    value = getattr(out, name, None)
    if not isinstance(value, Tensor):
        raise CaptureError(f"the model's forward gave {type(out).__name__}; expected .{name}")
    return value


def _with_segments(inputs: Batch) -> dict[str, Any]:
    """Tell the attention op by segments what others are told by the mask; others ignore them."""
    return {**inputs, "segment_ids": inputs["attention_mask"]}


def _token_ids(model: nn.Module, rows: int, length: int, draw: torch.Generator) -> Tensor:
    return torch.randint(0, vocabulary(model), (rows, length), generator=draw)


def _padding(rows: int, length: int) -> Tensor:
    """Give a mask int64 [rows, length] whose rows end in 0, 1, 2, ... places of padding."""
    ends = torch.tensor([max(1, length - row % length) for row in range(rows)])
    return (torch.arange(length) < ends[:, None]).to(torch.int64)


def _pixels(model: nn.Module, rows: int, draw: torch.Generator) -> Tensor:
    """Give float32 images [rows, channels, height, width] of the size that the model takes."""
    config = getattr(base_model(model), "config", None)
    config = getattr(config, "vision_config", config)
    size, channels = (getattr(config, name, None) for name in ("image_size", "num_channels"))
    if not isinstance(size, (int, tuple, list)) or not isinstance(channels, int):
        raise CaptureError("the model's configuration has no image_size and num_channels")
    height, width = (size, size) if isinstance(size, int) else size
    return torch.randn(rows, channels, height, width, generator=draw)


def _count(output: Tensor) -> Tensor:
    """Give the number of rows, as int64[]."""
    return torch.full((), output.shape[0], dtype=torch.int64, device=output.device)
