"""A model in bfloat16, as transformers would load it, and the float32 values that it had before.

Master weights keep the source's full precision: they are taken before anything is rounded.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from runtime.compiler.capture._names import ModelTensor, model_tensors


def masters_of(model: nn.Module) -> dict[str, np.ndarray]:
    """Give the float32 values of the trained parameters, by saved name.

    They keep their memory when `to_bfloat16` changes the model.

    Raises:
        CaptureError: no parameter is trainable.
    """
    trained = [item for item in model_tensors(model) if item.role == "param"]
    return {item.target: item.tensor.detach().float().contiguous().numpy() for item in trained}


def to_bfloat16(model: nn.Module) -> None:
    """Round a model's parameters and saved buffers to bfloat16, in place.

    It then is what `from_pretrained(dtype=torch.bfloat16)` gives: buffers that are not saved (the
    frequencies of a rotary embedding) and modules that the model's class keeps in float32 stay.
    """
    for name, tensor in _saved_tensors(model):
        if tensor.dtype == torch.float32 and not _kept_in_float32(model, name):
            tensor.data = tensor.data.to(torch.bfloat16)
    if isinstance(model, PreTrainedModel):
        model.config.dtype = torch.bfloat16


@contextmanager
def in_float32(tensors: Sequence[ModelTensor]) -> Generator[None]:
    """Hold a model's bfloat16 tensors in float32 inside the block, with the same values.

    Gradients are gone at its end: they have the other dtype.
    """
    narrow = [item.tensor for item in tensors if item.tensor.dtype == torch.bfloat16]
    before = [tensor.data for tensor in narrow]
    _forget_gradients(tensors)
    for tensor in narrow:
        tensor.data = tensor.data.float()
    try:
        yield
    finally:
        _forget_gradients(tensors)
        for tensor, data in zip(narrow, before, strict=True):
            tensor.data = data


def _forget_gradients(tensors: Sequence[ModelTensor]) -> None:
    for item in tensors:
        item.tensor.grad = None


def _saved_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Give every parameter once, and every buffer that is part of the model's state dict."""
    yield from model.named_parameters()
    saved = set(model.state_dict())
    for name, buffer in model.named_buffers():
        if name in saved:
            yield name, buffer


def _kept_in_float32(model: nn.Module, name: str) -> bool:
    """Tell whether the model's class wants this tensor in float32 whatever the model's dtype is."""
    if not isinstance(model, PreTrainedModel):
        return False
    kept = model._keep_in_fp32_modules_strict or ()  # noqa: SLF001 - a class's own statement
    return any(f".{module}." in f".{name}." for module in kept)
