"""From a model to one flat torch.fx graph of ATen and `luma::` ops: loss and gradients, or logits.

The model itself is traced once, in fake mode (no arithmetic, no memory), with autograd on, so the
graph holds the forward and the backward that eager would run, custom autograd functions included.
`torch.export` is not used: it replaces the backward of a custom autograd function by the
derivative of its forward, and doubles the time.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._decomp import core_aten_decompositions
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from runtime.compiler.capture._attention import base_model
from runtime.compiler.capture._autograd_functions import (
    FunctionUse,
    function_that_failed,
    functions_under,
)
from runtime.compiler.capture._dropout import keyed_dropout
from runtime.compiler.capture._modules import recorded_modules
from runtime.compiler.capture._names import ModelTensor
from runtime.compiler.capture._ragged import ragged_rows
from runtime.compiler.capture._router_loss import router_loss
from runtime.compiler.capture._task import Task
from runtime.spec import CaptureError

Batch = dict[str, Tensor]


class TraceFailed(CaptureError):
    """The model cannot be traced in this form; another form of attention may do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A traced graph.

    Attributes:
        graph: the fx graph module; placeholders in the order of what was given.
        dropouts: calls of keyed dropout in it.
        functions: the model's custom autograd functions whose backward is in it.
    """

    graph: fx.GraphModule
    dropouts: int
    functions: tuple[FunctionUse, ...] = ()


def call_model(model: nn.Module, batch: Batch, weights: dict[str, Tensor] | None = None) -> Tensor:
    """Run the model on a batch and give its logits [micro_batch, seq_len, vocabulary].

    Args:
        model: a causal LM; its forward takes input_ids, and position_ids and segment_ids where
            it has such parameters or takes any keyword.
        batch: input_ids [micro_batch, seq_len], and what else there is.
        weights: tensors to use in place of the model's own, by path; None for its own.
    """
    return logits_of(run_model(model, batch, weights))


def logits_of(out: Any) -> Tensor:
    """Give the logits [micro_batch, seq_len, vocabulary] of what a causal LM's forward gave.

    Raises:
        CaptureError: it gave something else.
    """
    logits = out if isinstance(out, Tensor) else getattr(out, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() != 3:
        raise CaptureError(
            f"the model's forward gave {type(out).__name__}; expected logits "
            "[batch, seq_len, vocabulary], or an object that has them as .logits"
        )
    return logits


def run_model(
    model: nn.Module, given: Mapping[str, Tensor], weights: dict[str, Tensor] | None = None
) -> Any:
    """Run the model with those of the given keywords that its forward takes.

    Args:
        model: any model.
        given: keywords by name.
        weights: tensors to use in place of the model's own, by path; None for its own.
    """
    keywords = _accepted(model, given)
    if weights is None:
        return model(**keywords)
    return torch.func.functional_call(model, weights, (), keywords, tie_weights=True)


def loss_of(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Give (sum of cross-entropies in float32 over labels != -100, their count).

    Args:
        logits: [micro_batch, seq_len, vocabulary], or other dimensions before the classes.
        labels: [micro_batch, seq_len], already shifted: the target of each position.
    """
    flat = logits.float().reshape(-1, logits.shape[-1])
    loss = torch.nn.functional.cross_entropy(
        flat, labels.reshape(-1), ignore_index=-100, reduction="sum"
    )
    return loss, (labels != -100).sum()


def causal_step(
    model: nn.Module, batch: Batch, weights: dict[str, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Give (sum of cross-entropies, tokens) of a causal LM, its router's loss in the sum.

    Args:
        model: a causal LM.
        batch: see `call_model`, and labels.
        weights: tensors to use in place of the model's own, by path; None for its own.
    """
    out = run_model(model, {k: v for k, v in batch.items() if k != "labels"}, weights)
    loss, tokens = loss_of(logits_of(out), batch["labels"])
    balance = router_loss(model, out)
    return (loss if balance is None else loss + balance * tokens), tokens


def trace_grad(
    model: nn.Module, tensors: Sequence[ModelTensor], batch: Batch, key: Tensor, task: Task
) -> Traced:
    """Trace (tensors, batch, key) -> (loss_sum, tokens, gradient of each "param").

    Raises:
        CaptureError: the model cannot be traced; the message names the module.
    """
    names = list(batch)

    def step(*flat: Tensor) -> tuple[Tensor, ...]:
        values, rest = flat[: len(tensors)], flat[len(tensors) :]
        given = dict(zip(names, rest[:-1], strict=True))
        weights = {item.path: value for item, value in zip(tensors, values, strict=True)}
        with keyed_dropout(rest[-1]) as calls, ragged_rows():
            loss, tokens = task.step(model, given, weights)
        dropouts.append(calls.count)
        functions.append(functions_under(loss, paths.at))
        paths.label_backward(loss)
        trained = [v for item, v in zip(tensors, values, strict=True) if item.role == "param"]
        grads = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        return loss.detach(), tokens, *grads

    dropouts: list[int] = []
    functions: list[tuple[FunctionUse, ...]] = []
    with recorded_modules(model) as paths:
        graph = _make_fx(
            step, [*(t.tensor for t in tensors), *batch.values(), key], lambda: paths.current
        )
    return Traced(graph=graph, dropouts=dropouts[-1], functions=functions[-1])


def trace_forward(
    model: nn.Module, tensors: Sequence[ModelTensor], batch: Batch, task: Task
) -> Traced:
    """Trace (tensors, batch without targets) -> output, for a model in evaluation mode.

    Raises:
        CaptureError: the model cannot be traced; the message names the module.
    """
    names = list(batch)

    def forward(*flat: Tensor) -> tuple[Tensor]:
        values, rest = flat[: len(tensors)], flat[len(tensors) :]
        weights = {item.path: value for item, value in zip(tensors, values, strict=True)}
        with ragged_rows():
            return (task.output(model, dict(zip(names, rest, strict=True)), weights),)

    with torch.no_grad(), recorded_modules(model) as paths:
        flat = [*(t.tensor for t in tensors), *batch.values()]
        return Traced(graph=_make_fx(forward, flat, lambda: paths.current), dropouts=0)


def _make_fx(
    function: Callable[..., tuple[Tensor, ...]], flat: list[Tensor], where: Callable[[], str]
) -> fx.GraphModule:
    """Trace in fake mode, with the math form of SDPA: its fused form gives wrong gradients here.

    SDPA's CPU flash op is decomposed in the forward and stays whole in the backward (facts:
    "silent wrong gradients").
    """
    try:
        with sdpa_kernel(SDPBackend.MATH), _quiet():
            return functional(_traced(function, flat), flat)
    except CaptureError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]
        place = f"module '{where()}'" if where() else "the model"
        custom = function_that_failed(error)
        place = f"the custom autograd function '{custom}' in {place}" if custom else place
        raise TraceFailed(
            f"{place} cannot be traced to a graph of fixed ops: {reason}",
            remedy="remove Python control flow that depends on tensor values from the model",
        ) from error


@contextmanager
def _quiet() -> Generator[None]:
    """Keep torch's fake mode from printing the traceback of an error that is told properly."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def functional(traced: fx.GraphModule, flat: list[Tensor]) -> fx.GraphModule:
    """Give the graph without in-place ops, traced again where it has some."""
    if not any(is_in_place(node) for node in traced.graph.nodes):
        return traced
    run = torch.func.functionalize(fx.Interpreter(traced).run, remove="mutations")
    with fx_traceback.preserve_node_meta(), torch.no_grad():
        return _traced(run, flat)


def _traced(function: Callable[..., Any], flat: list[Tensor]) -> fx.GraphModule:
    """Run make_fx with the core ATen decompositions."""
    # A dict in all but its type: custom decompositions are looked up when they are asked for.
    table: Any = core_aten_decompositions()
    # Tensors that are plain attributes of a module are met as they are, and lifted to inputs.
    traced = make_fx(
        function, tracing_mode="fake", decomposition_table=table, _allow_non_fake_inputs=True
    )
    return traced(*flat)


def is_in_place(node: fx.Node) -> bool:
    """Tell whether a node changes one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def _accepted(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, object]:
    """Give the keywords of a batch that the model's forward takes."""
    base = base_model(model)
    parameters = inspect.signature(base.forward).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    keywords: dict[str, object] = {
        name: value for name, value in batch.items() if anything or name in parameters
    }
    if "use_cache" in parameters or (anything and isinstance(base, PreTrainedModel)):
        keywords["use_cache"] = False
    return keywords
