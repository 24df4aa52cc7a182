"""One attempt at a capture: trace in one form of attention, convert, and check against eager."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from runtime.compiler.capture._attention import (
    AttentionCalls,
    MathFormNeeded,
    as_one_op,
    attention_implementation,
    implementation,
)
from runtime.compiler.capture._autograd_functions import FunctionUse, suspicion
from runtime.compiler.capture._batches import Batch
from runtime.compiler.capture._check import Checked, Disagreement, GradientCheck
from runtime.compiler.capture._convert import Constants, convert
from runtime.compiler.capture._experts import as_grouped_products
from runtime.compiler.capture._names import ModelTensor
from runtime.compiler.capture._rounding import check_in_its_dtype
from runtime.compiler.capture._task import Task
from runtime.compiler.capture._trace import Traced, trace_forward, trace_grad
from runtime.compiler.graph import Graph, Input, refs
from runtime.spec import CaptureError


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A way to trace the model's attention.

    Attributes:
        name: "op", or "math form" and why.
        opened: gives the context in which the model's attention has this form.
        reference: gives the context in which eager runs for the check: the model's own attention,
            but in math form its "eager" one, since SDPA draws its dropout inside.
    """

    name: str
    opened: Callable[[], AbstractContextManager[AttentionCalls | None]]
    reference: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one attempt gave.

    Attributes:
        graphs: "grad" and "forward".
        values: every parameter, buffer and constant, by target.
        check: what the gradient check found.
        functions: the model's custom autograd functions whose own backward is in "grad".
    """

    graphs: dict[str, Graph]
    values: dict[str, Tensor]
    check: GradientCheck
    functions: tuple[FunctionUse, ...]


def forms(model: nn.Module) -> list[Form]:
    """Give the forms to try, the best first; experts are grouped products in each."""
    if implementation(model) is None:
        name = "math form: the model does not call transformers' attention interface"
        return [Form(name=name, opened=_with_experts(model, lambda: nullcontext(None)))]

    def eager() -> AbstractContextManager[None]:
        return attention_implementation(model, "eager")

    op = Form(name="op", opened=_with_experts(model, lambda: as_one_op(model)))
    return [op, Form(name="math form", opened=_with_experts(model, eager), reference=eager)]


def _with_experts(
    model: nn.Module, opened: Callable[[], AbstractContextManager[AttentionCalls | None]]
) -> Callable[[], AbstractContextManager[AttentionCalls | None]]:
    """Open a form of attention together with the experts' form."""

    @contextmanager
    def both() -> Generator[AttentionCalls | None]:
        with as_grouped_products(model), opened() as calls:
            yield calls

    return both


def attempt(
    model: nn.Module, tensors: Sequence[ModelTensor], batch: Batch, form: Form, task: Task
) -> Attempt:
    """Capture in one form.

    Raises:
        MathFormNeeded: the attention op lacks what the model's attention has.
        CaptureError: this form fails, or disagrees with eager.
    """
    with form.opened() as calls:
        grad, forward = _trace_both(model, tensors, batch, task)
    if calls is not None:
        _check_calls(calls, batch)
    constants = Constants()
    graphs = _convert((grad, forward), tensors, batch, task, constants)
    values = {item.target: item.tensor.detach() for item in tensors} | constants.values
    checked = Checked(
        model=model, tensors=tensors, graphs=graphs, values=values, batch=batch, task=task
    )
    try:
        with form.reference():
            check = check_in_its_dtype(checked, has_dropout=grad.dropouts > 0, opened=form.opened)
    except Disagreement as error:
        raise Disagreement(f"{error.message}{suspicion(grad.functions)}") from error
    return Attempt(graphs=graphs, values=values, check=check, functions=grad.functions)


def _trace_both(
    model: nn.Module, tensors: Sequence[ModelTensor], batch: Batch, task: Task
) -> tuple[Traced, Traced]:
    """Trace the training step, then the forward in evaluation mode."""
    model.train()
    grad = trace_grad(model, tensors, batch, torch.zeros(2, dtype=torch.int32), task)
    model.eval()
    inputs = {name: value for name, value in batch.items() if name not in task.targets}
    return grad, trace_forward(model, tensors, inputs, task)


def _check_calls(calls: AttentionCalls, batch: Batch) -> None:
    """Refuse a model that went past the attention op, or hid from it where documents end."""
    if not calls.count:
        raise MathFormNeeded("the model does not call transformers' attention interface")
    if "attention_mask" in batch and calls.without_segments:
        raise MathFormNeeded("the attention op does not hear of the padding")
    if "segment_ids" in batch and calls.without_segments:
        raise CaptureError(
            f"{calls.without_segments} of {calls.count} attention calls did not get segment_ids: "
            "this model does not hand keywords to its attention",
            remedy="set data.packing to false",
        )


def _convert(
    traces: tuple[Traced, Traced],
    tensors: Sequence[ModelTensor],
    batch: Batch,
    task: Task,
    constants: Constants,
) -> dict[str, Graph]:
    """Convert both graphs, and give them the same frozen and buffer inputs."""
    weights = [(item.role, item.target) for item in tensors]
    trained = [item.target for item in tensors if item.role == "param"]
    given = [("batch", name) for name in batch]
    labels = ["loss_sum", "tokens", *(f"grad:{name}" for name in trained)]
    grad = convert(traces[0].graph, [*weights, *given, ("key", "key")], labels, constants)
    given = [item for item in given if item[1] not in task.targets]
    forward = convert(traces[1].graph, [*weights, *given], [task.result], constants)
    used = _used(grad) | _used(forward)
    buffers = {i.target: i for g in (grad, forward) for i in g.of_role("buffer") if i.name in used}
    shared = [buffers[target] for target in sorted(buffers)]
    return {
        "grad": replace(grad, inputs=_inputs(grad, shared)),
        "forward": replace(forward, inputs=_inputs(forward, shared)),
    }


def _inputs(graph: Graph, buffers: list[Input]) -> tuple[Input, ...]:
    """Give a graph's inputs in the package's order, with these buffers."""
    before = [*graph.of_role("param"), *graph.of_role("frozen")]
    return (*before, *buffers, *graph.of_role("batch"), *graph.of_role("key"))


def _used(graph: Graph) -> set[str]:
    """Give the names that a node or an output uses."""
    inside = {name for n in graph.nodes for name in refs((n.args, tuple(n.kwargs.values())))}
    return inside | {ref.name for _, ref in graph.outputs}
