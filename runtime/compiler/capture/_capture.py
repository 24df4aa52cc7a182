"""Capture: a model in, a checked graph package and the arrays that go with it out.

Attention is captured as one op where the model lets it, else in math form (the model's "eager"
attention), and the result says which. Nothing is returned that did not pass the gradient check.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import torch
import transformers
from blake3 import blake3
from torch import Tensor, nn

from runtime.compiler.capture._attempt import Attempt, attempt, forms
from runtime.compiler.capture._attention import MathFormNeeded, base_model
from runtime.compiler.capture._autograd_functions import FunctionUse
from runtime.compiler.capture._batches import Batch
from runtime.compiler.capture._check import Disagreement, GradientCheck
from runtime.compiler.capture._names import ModelTensor, model_tensors
from runtime.compiler.capture._task import Task
from runtime.compiler.capture._trace import TraceFailed
from runtime.compiler.capture.tasks import CAUSAL_LM
from runtime.compiler.graph import GraphPackage
from runtime.spec import CaptureError

CAPTURE_VERSION = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedModel:
    """A captured model.

    Attributes:
        package: the graphs; no weights, no source.
        arrays: the values of the inputs with role param, frozen and buffer, by target. They share
            memory with the model where they can.
        check: what the gradient check found.
        attention: "op" where attention is `luma::attention`, else "math form: " and the reason.
        functions: the model's custom `autograd.Function`s, kept with their own backward, and where.
    """

    package: GraphPackage
    arrays: dict[str, np.ndarray]
    check: GradientCheck
    attention: str
    functions: tuple[FunctionUse, ...] = ()


def capture(
    model: nn.Module,
    *,
    micro_batch: int,
    seq_len: int,
    packing: bool = False,
    seed: int = 0,
    task: Task = CAUSAL_LM,
) -> CapturedModel:
    """Capture a model's training step and forward, and check both against eager.

    Args:
        model: the model, in float32 or bfloat16, on the CPU; parameters that require no gradient
            are frozen. Its mode and attention are as before when this returns.
        micro_batch: sequences in a micro-shard.
        seq_len: tokens in a sequence.
        packing: whether samples hold several documents, told apart by segment ids.
        seed: of the check's random batch.
        task: what it is trained for; `runtime.compiler.capture.tasks` has those that there are.

    Raises:
        CaptureError: the model cannot be captured, or its graph disagrees with eager.
    """
    _check_sizes(model, micro_batch, seq_len)
    tensors = model_tensors(model)
    _check_dtypes(tensors)
    batch = task.batch(model, micro_batch=micro_batch, seq_len=seq_len, packing=packing, seed=seed)
    with _kept_state(model, tensors), _no_cycle_search():
        result, attention = _first_that_passes(model, tensors, batch, task)
    package = GraphPackage(
        graphs=result.graphs,
        config_digest=_config_digest(model, tensors),
        versions={
            "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__,
            "capture": CAPTURE_VERSION,
        },
        packing=packing,
        micro_batch=micro_batch,
        seq_len=seq_len,
    )
    inputs = result.graphs["grad"].inputs
    kept = [item.target for item in inputs if item.role in ("param", "frozen", "buffer")]
    arrays = {name: _array(result.values[name]) for name in kept}
    return CapturedModel(
        package=package,
        arrays=arrays,
        check=result.check,
        attention=attention,
        functions=result.functions,
    )


def model_arrays(model: nn.Module) -> dict[str, np.ndarray]:
    """Give the model's parameters and buffers by saved name, as `CapturedModel.arrays` has them.

    They share memory with the model where they can. Constants that only a capture finds are not
    among them.

    Raises:
        CaptureError: no parameter is trainable, or one has a dtype that is not captured.
    """
    return {item.target: _array(item.tensor) for item in model_tensors(model)}


def _first_that_passes(
    model: nn.Module, tensors: Sequence[ModelTensor], batch: Batch, task: Task
) -> tuple[Attempt, str]:
    """Try each form of attention; a later one only for a reason, which the result carries."""
    failures: list[CaptureError] = []
    reasons: list[str] = []
    for form in forms(model):
        try:
            done = attempt(model, tensors, batch, form, task)
        except (MathFormNeeded, Disagreement, TraceFailed) as error:
            failures.append(error)
            reasons.append(f"{form.name}: {error.message}")
        else:
            return done, ": ".join([form.name, *(r.removeprefix("op: ") for r in reasons)])
    last = failures[-1]
    if len(failures) == 1 and isinstance(last, TraceFailed):
        raise last
    message = "the model cannot be captured: " + "; ".join(reasons)
    raise CaptureError(message, remedy=last.remedy) from last


@contextmanager
def _no_cycle_search() -> Generator[None]:
    """Keep Python from looking for garbage in cycles: traces are large, and nearly all of it lives."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _kept_state(model: nn.Module, tensors: Sequence[ModelTensor]) -> Generator[None]:
    """Leave train or eval mode as it was, zero weights zero, and no gradients behind.

    Weights that are all zero (biases, a fresh adapter's second matrix) get random values while the
    capture is checked: behind a zero, a gradient is zero and its check would be empty.
    """
    modes = {module: module.training for module in model.modules()}
    zeros = [t.tensor for t in tensors if t.role == "param" and not torch.any(t.tensor.detach())]
    generator = torch.Generator().manual_seed(0)
    try:
        for tensor in zeros:
            tensor.detach().normal_(std=0.02, generator=generator)
        yield
    finally:
        for tensor in zeros:
            tensor.detach().zero_()
        for item in tensors:
            item.tensor.grad = None
        for module, training in modes.items():
            module.training = training


def _check_sizes(model: nn.Module, micro_batch: int, seq_len: int) -> None:
    for name, value in (("micro_batch", micro_batch), ("seq_len", seq_len)):
        if value < 1:
            raise CaptureError(f"train.{name}: {value}; expected at least 1")
    config = getattr(base_model(model), "config", None)
    limit = getattr(config, "max_position_embeddings", None)
    if isinstance(limit, int) and 0 < limit < seq_len:  # XLNet says -1 for "any"
        raise CaptureError(f"train.seq_len: {seq_len}; this model takes at most {limit} positions")


def _check_dtypes(tensors: Sequence[ModelTensor]) -> None:
    captured = (torch.float32, torch.bfloat16)
    wrong = [t for t in tensors if t.role != "buffer" and t.tensor.dtype not in captured]
    if wrong:
        first = wrong[0]
        raise CaptureError(
            f"{len(wrong)} parameters are neither float32 nor bfloat16, such as '{first.target}' "
            f"({first.tensor.dtype})",
            remedy="build the model in float32; model.dtype says what it is computed in",
        )


def _config_digest(model: nn.Module, tensors: Sequence[ModelTensor]) -> str:
    """Give the digest of the model's configuration, or of its tensors' types where it has none."""
    config = getattr(base_model(model), "config", None)
    if isinstance(config, transformers.PreTrainedConfig):
        content = config.to_dict()
        # A path of this machine, and no part of what the model is.
        content.pop("_name_or_path", None)
    else:
        content = {t.target: [list(t.tensor.shape), str(t.tensor.dtype)] for t in tensors}
    return blake3(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _array(value: Tensor) -> np.ndarray:
    value = value.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:
        # numpy has no such type of its own, and torch hands none over: the same bits under its name.
        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()
