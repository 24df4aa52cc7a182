"""Which tensors a model holds, what each is for, and the name under which it is saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from runtime.compiler.capture._attention import base_model
from runtime.spec import CaptureError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensor:
    """One tensor of a model; tied weights are one.

    Attributes:
        role: "param", "frozen" or "buffer".
        target: the saved name: of Hugging Face's checkpoint, for an adapter of peft's.
        path: its name in the module tree that is traced.
        tensor: the tensor itself, not a copy.
    """

    role: str
    target: str
    path: str
    tensor: Tensor


def model_tensors(model: nn.Module) -> list[ModelTensor]:
    """Give every parameter and buffer once: params by name, then frozen, then buffers.

    Raises:
        CaptureError: no parameter is trainable, or two tensors would be saved under one name.
    """
    found = [*_parameters(model), *_buffers(model)]
    if not any(item.role == "param" for item in found):
        raise CaptureError(
            "the model has no trainable parameter", remedy="set requires_grad on what to train"
        )
    seen: dict[str, str] = {}
    for item in found:
        if item.target in seen:
            both = f"'{seen[item.target]}' and '{item.path}'"
            raise CaptureError(f"{both} would both be saved as '{item.target}'")
        seen[item.target] = item.path
    order = ("param", "frozen", "buffer")
    return sorted(found, key=lambda item: (order.index(item.role), item.target))


def _parameters(model: nn.Module) -> Iterator[ModelTensor]:
    """Give each parameter once, under its saved name."""
    tied = _tied_copies(model)
    adapters = _adapter_names(model)
    paths: dict[int, list[str]] = {}
    tensors = dict(model.named_parameters(remove_duplicate=False))
    for path, tensor in tensors.items():
        paths.setdefault(id(tensor), []).append(path)
    for group in paths.values():
        path = next((item for item in group if _saved_name(item) not in tied), group[0])
        tensor = tensors[path]
        yield ModelTensor(
            role="param" if tensor.requires_grad else "frozen",
            target=adapters.get(tensor.data_ptr(), _saved_name(path)),
            path=path,
            tensor=tensor,
        )


def _buffers(model: nn.Module) -> Iterator[ModelTensor]:
    """Give each buffer once, whether it is saved with the model or not."""
    for path, tensor in model.named_buffers():
        yield ModelTensor(role="buffer", target=_saved_name(path), path=path, tensor=tensor)


def _tied_copies(model: nn.Module) -> frozenset[str]:
    """Give the names that Hugging Face leaves out of a checkpoint because they are tied."""
    copies: Any = getattr(base_model(model), "all_tied_weights_keys", None)
    return frozenset(copies or ())


def _saved_name(path: str) -> str:
    """Give a tensor's name in the base model, without what peft's wrapping adds."""
    return path.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _adapter_names(model: nn.Module) -> dict[int, str]:
    """Give the names of peft's own state dict, by the tensors' addresses."""
    if base_model(model) is model:
        return {}
    from peft import PeftModel, get_peft_model_state_dict

    if not isinstance(model, PeftModel):
        return {}
    return {item.data_ptr(): name for name, item in get_peft_model_state_dict(model).items()}
