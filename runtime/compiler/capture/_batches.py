"""Random batches in the shape of a job's micro-batches, for tracing and for the gradient check."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from runtime.compiler.capture._attention import base_model
from runtime.spec import CaptureError

Batch = dict[str, Tensor]
IGNORE = -100


def random_batch(
    model: nn.Module, *, micro_batch: int, seq_len: int, packing: bool, seed: int = 0
) -> Batch:
    """Give a random batch: int64 [micro_batch, seq_len] each, as data preparation makes them.

    With packing a row holds up to three documents and padding (segment 0) at its end; positions
    begin anew in each document, and a document's last token has no target.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (micro_batch, seq_len)
    size = vocabulary(model)
    batch = {
        "input_ids": torch.randint(0, size, shape, generator=generator),
        "labels": torch.randint(0, size, shape, generator=generator),
        "position_ids": torch.arange(seq_len).expand(shape).contiguous(),
    }
    unlabelled = torch.rand(shape, generator=generator) < 0.1
    batch["labels"][unlabelled] = IGNORE
    batch["labels"][:, 0] = batch["input_ids"][:, 0]
    if packing:
        batch["segment_ids"] = torch.stack([_segments(seq_len, row) for row in range(micro_batch)])
        batch["position_ids"] = _positions(batch["segment_ids"])
        batch["labels"] = _own_document_only(batch["labels"], batch["segment_ids"])
    return batch


def documents(segment_ids: Tensor) -> list[tuple[int, int, int]]:
    """Give (row, begin, end) of every document in packed rows, padding left out."""
    found: list[tuple[int, int, int]] = []
    for row, ids in enumerate(segment_ids.tolist()):
        begin = 0
        for position in range(1, len(ids) + 1):
            if position == len(ids) or ids[position] != ids[begin]:
                if ids[begin] != 0:
                    found.append((row, begin, position))
                begin = position
    return found


def vocabulary(model: nn.Module) -> int:
    """Give how many token ids the model takes and predicts.

    An input embedding may have more rows than that, for prompts or images.

    Raises:
        CaptureError: the model has no embedding to tell it by.
    """
    base = base_model(model)
    embedding = _input_embedding(base)
    if not hasattr(embedding, "num_embeddings"):  # none, or a list of them
        embedding = next((m for m in base.modules() if isinstance(m, nn.Embedding)), None)
    size = getattr(embedding, "num_embeddings", None)
    if not isinstance(size, int):
        raise CaptureError("the model has no torch.nn.Embedding; its vocabulary size is unknown")
    stated = getattr(getattr(base, "config", None), "vocab_size", None)
    return min(size, stated) if isinstance(stated, int) and stated > 0 else size


def _input_embedding(base: nn.Module) -> nn.Module | None:
    """Give the module that the model names as its input embedding, or None."""
    getter = getattr(base, "get_input_embeddings", None)
    try:
        return getter() if callable(getter) else None
    except NotImplementedError:  # transformers' answer of a model with several inputs
        return None


def _segments(seq_len: int, row: int) -> Tensor:
    """Give one row's segment ids: documents of unequal length, then padding where there is room."""
    first = max(1, (seq_len * (2 + row % 3)) // 7)
    second = min(seq_len, first + max(1, seq_len // 3))
    end = max(second, seq_len - seq_len // 8)
    ids = torch.zeros(seq_len, dtype=torch.int64)
    ids[:first] = 1
    ids[first:second] = 2
    ids[second:end] = 3
    return ids


def _positions(segment_ids: Tensor) -> Tensor:
    """Give positions that begin at 0 in every document."""
    seq_len = segment_ids.shape[1]
    index = torch.arange(seq_len).expand(segment_ids.shape)
    starts = torch.ones_like(segment_ids, dtype=torch.bool)
    starts[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    return index - torch.where(starts, index, 0).cummax(dim=1).values


def _own_document_only(labels: Tensor, segment_ids: Tensor) -> Tensor:
    """Drop the labels of padding and of each document's last position."""
    following = torch.zeros_like(segment_ids)
    following[:, :-1] = segment_ids[:, 1:]
    return torch.where((segment_ids == following) & (segment_ids != 0), labels, IGNORE)
