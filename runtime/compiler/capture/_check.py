"""The gate of every capture: the graphs' results against the untouched model's.

Eager runs with the model's own attention. With packing it runs each document alone, so that a leak
from one document into another is a failed check. Gradients accumulate in the parameters' `.grad`
and are compared one by one, so at most two sets of them exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from runtime.compiler.capture._attention import AttentionCalls, base_model
from runtime.compiler.capture._batches import Batch, documents
from runtime.compiler.capture._cones import computes_all_of
from runtime.compiler.capture._dropout import keyed_dropout
from runtime.compiler.capture._names import ModelTensor
from runtime.compiler.capture._router_loss import has_router_loss
from runtime.compiler.capture._task import Task
from runtime.compiler.capture._trace import call_model, causal_step, loss_of
from runtime.compiler.capture.interpret import run_graph
from runtime.compiler.graph import Graph
from runtime.spec import CaptureError

# Of the largest gradient; float32 rounding stays below 2e-6 on a 135M model.
TOLERANCE = 1e-4
# Of a parameter's own largest gradient, above a floor that covers gradients which cancel to
# nothing but rounding (the bias of a key projection): a small gradient must be right as well.
OWN_TOLERANCE, OWN_FLOOR = 1e-2, 2e-6
# Half of it has its top bit set: a draw that took the words as signed would differ.
CHECK_KEY = (0x5EED, -7)
_PIECE = 1 << 18


class Disagreement(CaptureError):
    """A captured graph gives another result than the model in eager torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCheck:
    """What the check of one capture found.

    Attributes:
        loss_eager: the loss sum of the untouched model on the check's batch.
        loss_graph: the same from the captured graph.
        tokens: supervised tokens of that batch.
        worst_relative_gradient_error: largest difference of an element of a gradient, over the
            largest element of all gradients.
        worst_parameter: where it was found.
        worst_relative_logit_error: the same for the logits of the forward graph; None where the
            training step's graph computes them op for op, so that its own check covers them.
    """

    loss_eager: float
    loss_graph: float
    tokens: int
    worst_relative_gradient_error: float
    worst_parameter: str
    worst_relative_logit_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What is checked: a model, its tensors, its graphs, their values, a random batch, its task."""

    model: nn.Module
    tensors: Sequence[ModelTensor]
    graphs: Mapping[str, Graph]
    values: Mapping[str, Tensor]
    batch: Batch
    task: Task

    def run(self, name: str, batch: Batch, key: Tensor) -> dict[str, Tensor]:
        """Run one of the graphs on a batch; outputs by label."""
        sources: dict[str, Mapping[str, Tensor]] = {"batch": batch, "key": {"key": key}}
        graph = self.graphs[name]
        given = {i.name: sources.get(i.role, self.values)[i.target] for i in graph.inputs}
        return run_graph(graph, given)


def check_capture(
    checked: Checked,
    *,
    has_dropout: bool,
    opened: Callable[[], AbstractContextManager[AttentionCalls | None]],
) -> GradientCheck:
    """Check both graphs.

    With packing and dropout a document alone has other draws than in its row, and a mixture's
    router another share of the whole micro-batch. Then the check has two steps: the graph against
    the model in eager with the captured form of attention, on packed rows under the same draws;
    and, without draws and the router's loss, that form against the untouched model on each document
    alone.

    Args:
        checked: what to check.
        has_dropout: whether the training step draws.
        opened: opens the form of attention that was captured.

    Raises:
        Disagreement: loss, tokens, gradients or logits are off.
    """
    by_rows = has_dropout or has_router_loss(checked.model)
    in_two_steps = by_rows and "segment_ids" in checked.batch
    key = torch.tensor(CHECK_KEY, dtype=torch.int32)
    checked.model.train()
    if in_two_steps:
        with opened():
            eager = eager_gradients(checked, key, whole_rows=True)
    else:
        eager = eager_gradients(checked, key)
    outputs = checked.run("grad", checked.batch, key)
    worst, where = _compare(checked.tensors, eager, outputs)
    if in_two_steps:
        _check_documents(checked, opened)
    return GradientCheck(
        loss_eager=eager[0],
        loss_graph=float(outputs["loss_sum"]),
        tokens=eager[1],
        worst_relative_gradient_error=worst,
        worst_parameter=where,
        worst_relative_logit_error=_check_forward(checked, key),
    )


def check_outputs(checked: Checked) -> GradientCheck:
    """Check both graphs of a task whose rows stand each for itself.

    Raises:
        Disagreement: loss, count, gradients or outputs are off.
    """
    task, model, batch = checked.task, checked.model, checked.batch
    key = torch.tensor(CHECK_KEY, dtype=torch.int32)
    for item in checked.tensors:
        item.tensor.grad = None
    model.train()
    with keyed_dropout(key):
        loss, count = task.step(model, batch)
    loss.backward()
    eager = float(loss.detach()), int(count)
    outputs = checked.run("grad", batch, key)
    worst, where = _compare(checked.tensors, eager, outputs)
    return GradientCheck(
        loss_eager=eager[0],
        loss_graph=float(outputs["loss_sum"]),
        tokens=eager[1],
        worst_relative_gradient_error=worst,
        worst_parameter=where,
        worst_relative_logit_error=_check_full_rows(checked, key),
    )


def eager_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Give (loss_sum, tokens) of the untouched model in plain torch, with autograd.

    Args:
        model: a causal LM; its own attention and mode (train or eval) are used.
        batch: input_ids, labels (already shifted), position_ids [micro_batch, seq_len], and
            segment_ids when packed: then every document runs alone.
    """
    losses, tokens = zip(*_eager_losses(model, batch), strict=True)
    return torch.stack(losses).sum(), torch.stack(tokens).sum()


def eager_gradients(
    checked: Checked, key: Tensor, *, whole_rows: bool = False
) -> tuple[float, int]:
    """Run the model and leave its gradients in the parameters' `.grad`.

    Documents of a packed batch run alone, one at a time, so the activations of only one are kept.

    Args:
        checked: model and batch; the graphs are not used.
        key: int32[2], of the dropout's draws.
        whole_rows: run packed rows as they are; the attention in use must know segments.

    Returns:
        (loss_sum, tokens).
    """
    for item in checked.tensors:
        item.tensor.grad = None
    total, count = 0.0, 0
    with keyed_dropout(key):
        for loss, tokens in _eager_losses(checked.model, checked.batch, whole_rows=whole_rows):
            loss.backward()
            total, count = total + float(loss.detach()), count + int(tokens)
    return total, count


def _eager_losses(
    model: nn.Module, batch: Batch, *, whole_rows: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Give (loss_sum, tokens) of a batch as it is, or of each document of packed rows, run alone.

    The router's loss of a mixture is that of a whole micro-batch: documents alone have none.
    """
    if whole_rows or "segment_ids" not in batch:
        yield causal_step(model, batch)
        return
    for row, begin, end in documents(batch["segment_ids"]):
        one = {name: value[row : row + 1, begin:end] for name, value in batch.items()}
        yield loss_of(call_model(model, _one_document(model, one)), one["labels"])


def _one_document(model: nn.Module, rows: Batch) -> Batch:
    """Give what the untouched model takes for rows of one document each.

    Hugging Face's attention knows no segment ids; a module of the user's own may ask for them.
    """
    given = {name: rows[name] for name in ("input_ids", "position_ids")}
    if "segment_ids" in rows and not isinstance(base_model(model), PreTrainedModel):
        given["segment_ids"] = torch.ones_like(rows["input_ids"])
    return given


def _compare(
    tensors: Sequence[ModelTensor], eager: tuple[float, int], outputs: Mapping[str, Tensor]
) -> tuple[float, str]:
    """Compare outputs with `.grad`; give the worst relative error of a gradient, and where.

    Raises:
        Disagreement: loss, tokens or a gradient is off.
    """
    _judge_loss(eager, outputs)
    errors: dict[str, tuple[float, float]] = {}
    for item in tensors:
        if item.role == "param":
            errors[item.target] = _error(outputs[f"grad:{item.target}"], item.tensor.grad)
    scale = max(own for _, own in errors.values()) or 1.0
    for name, (error, own) in errors.items():
        if not error <= min(TOLERANCE * scale, OWN_TOLERANCE * own + OWN_FLOOR * scale):
            raise Disagreement(
                f"the captured gradient of '{name}' differs from eager's by {error:.1e}; its "
                f"largest element is {own:.1e}, that of all gradients {scale:.1e}"
            )
    where = max(errors, key=lambda name: errors[name][0])
    return errors[where][0] / scale, where


def _error(found: Tensor, expected: Tensor | None) -> tuple[float, float]:
    """Give (largest difference, largest expected); no gradient in eager means zeros."""
    if expected is None:
        return _largest(found), 0.0
    pieces = zip(_pieces(found), _pieces(expected), strict=True)
    largest = [(_largest(one - other), _largest(other)) for one, other in pieces]
    error, own = torch.tensor(largest, dtype=torch.float64).amax(0).tolist()  # NaN stays
    return error, own


def _pieces(values: Tensor) -> tuple[Tensor, ...]:
    """Give the elements in pieces of 1 MiB: what is made of one stays in a core's cache."""
    return values.reshape(-1).split(_PIECE)


def _largest(values: Tensor) -> float:
    """Give the largest magnitude, NaN where there is one, without a copy of the magnitudes."""
    low, high = torch.aminmax(values)
    return float(torch.maximum(-low, high))


def _judge_loss(eager: tuple[float, int], outputs: Mapping[str, Tensor]) -> None:
    loss, tokens = float(outputs["loss_sum"]), int(outputs["tokens"])
    if tokens != eager[1]:
        raise Disagreement(f"the captured graph counts {tokens} tokens; eager counts {eager[1]}")
    if not abs(loss - eager[0]) <= TOLERANCE * max(1.0, abs(eager[0])):
        raise Disagreement(f"the captured loss is {loss!r}; eager's is {eager[0]!r}")


def _check_documents(
    checked: Checked, opened: Callable[[], AbstractContextManager[AttentionCalls | None]]
) -> None:
    """Check, without dropout, that packed rows in the captured form equal documents alone."""
    checked.model.eval()
    key = torch.tensor(CHECK_KEY, dtype=torch.int32)
    eager = eager_gradients(checked, key)
    trained = [item for item in checked.tensors if item.role == "param"]
    with opened():
        inputs = _without(checked.batch, checked.task.targets)
        logits = call_model(checked.model, inputs)
        loss, tokens = loss_of(logits, checked.batch["labels"])
        grads = torch.autograd.grad(
            loss, [t.tensor for t in trained], allow_unused=True, materialize_grads=True
        )
    outputs = {f"grad:{t.target}": grad for t, grad in zip(trained, grads, strict=True)}
    _compare(checked.tensors, eager, {"loss_sum": loss.detach(), "tokens": tokens} | outputs)


def _check_forward(checked: Checked, key: Tensor) -> float | None:
    """Run the forward graph against the untouched model on rows of one document.

    A causal LM's loss depends on every logit, and the gradient of its head on each of them alone.
    """
    if computes_all_of(checked.graphs["grad"], checked.graphs["forward"]):
        return None
    ids = checked.batch["input_ids"]
    plain = dict(checked.batch)
    plain["position_ids"] = torch.arange(ids.shape[1]).expand_as(ids)
    if "segment_ids" in plain:
        plain["segment_ids"] = torch.ones_like(ids)
    checked.model.eval()
    with torch.no_grad():
        expected = call_model(checked.model, _one_document(checked.model, plain))
    return _judge_output(checked, plain, key, expected)


def _check_full_rows(checked: Checked, key: Tensor) -> float:
    """Run the forward graph against the untouched model on rows without padding.

    What a model gives for padding means nothing, and the attention op gives something else there.
    """
    inputs = _without(checked.batch, checked.task.targets)
    if "attention_mask" in inputs:
        inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    checked.model.eval()
    with torch.no_grad():
        expected = checked.task.output(checked.model, inputs)
    return _judge_output(checked, inputs, key, expected)


def _without(batch: Batch, names: frozenset[str]) -> Batch:
    """Give a batch without some of its entries."""
    return {name: value for name, value in batch.items() if name not in names}


def _judge_output(checked: Checked, inputs: Batch, key: Tensor, expected: Tensor) -> float:
    """Run the forward graph and give its relative error.

    Raises:
        Disagreement: it is too large.
    """
    result = checked.task.result
    found = checked.run("forward", inputs, key)[result]
    error = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not error <= TOLERANCE:
        raise Disagreement(f"the captured forward's {result} differ from eager's by {error:.1e}")
    return error
