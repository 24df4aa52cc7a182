"""One architecture, all the way: build, eager, capture, a second batch, lower, compile, run.

This runs in a process of its own (see `child.py`), and writes its row after each stage, so that a
process that is killed leaves how far it came.

What counts as right, against eager torch on the same batch: the loss within 1e-4 of itself; every
gradient element within 1e-4 of the largest gradient element of the model, and within 1 % of the
largest of its own parameter (above a floor of 2e-6 of the model's largest, below which float32
gradients that cancel are rounding). Both the captured graph, run in torch, and the compiled program
are held to it, on a batch that the capture never saw.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from runtime.compiler.capture import capture, eager_loss, run_graph
from runtime.compiler.capture._dropout import keyed_dropout
from runtime.compiler.graph import Graph, GraphPackage
from runtime.compiler.lower.registry import find_lowering
from runtime.spec import LumaError
from tests.coverage.row import Limits, Row, graph_path
from tests.coverage.tiny_config import tiny_config

TARGET = "cpu"
KEY = (3, 4)
TOLERANCE, OWN_TOLERANCE, OWN_FLOOR = 1e-4, 1e-2, 2e-6
# Of the largest gradient: a unit of 2^-28 leaves rounding far below the tolerance, and two bits
# above the largest gradient before an element overflows 2^31.
_UNIT_BITS = 28
_ERROR_LENGTH = 600


class NotTrainable(Exception):
    """The model gives no loss and gradients from token ids in eager torch."""


class Wrong(Exception):
    """A result is not eager's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eager:
    """What eager gives for a batch: loss sum, tokens, and the gradient of each parameter by name."""

    loss: float
    tokens: int
    grads: Mapping[str, Tensor]


def cover(model_type: str, folder: Path, limits: Limits) -> Row:
    """Take one architecture as far as it goes; its row lies in `folder` after each stage."""
    row = Row(model_type)
    try:
        _cover(row, folder, limits)
    except Exception as error:
        row.error = _first_line(error)
        row.reason = reason_of(row.stage, error)
        if row.stage == "eager":
            row.status = "not trainable"
    row.write(folder)
    return row


def _cover(row: Row, folder: Path, limits: Limits) -> None:
    """Run the stages in order; the first that fails raises."""
    micro_batch, seq_len = limits.micro_batch, limits.seq_len

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        row.stage = name
        row.write(folder)
        started = time.perf_counter()
        yield
        row.seconds[name] = round(time.perf_counter() - started, 2)

    with stage("build"):
        model = build(row.model_type)
    row.status = "built"
    batch = random_batch(micro_batch, seq_len, seed=1)
    with stage("eager"):
        eager = run_eager(model, batch)
    with stage("capture"):
        captured = capture(model, micro_batch=micro_batch, seq_len=seq_len)
    graph = captured.package.graphs["grad"]
    row.nodes, row.attention = len(graph.nodes), captured.attention
    with stage("second batch"):
        _check_params(graph, model)
        given = arguments(graph, captured.arrays, batch)
        compare(eager, torch_results(graph, given), "the captured graph")
    row.status = "captured"
    graph_path(folder, row.model_type).write_bytes(captured.package.to_bytes())
    with stage("lower"):
        row.missing_ops = missing_ops(captured.package)
        if row.missing_ops:
            raise Wrong(f"no lowering for {', '.join(row.missing_ops)}")
    if limits.capture_only:
        return
    with stage("compile"):
        run = compiled_step(captured.package)
    row.status = "compiled"
    with stage("run"):
        row.gradient_error = compare(eager, run(given, eager), "the compiled step")
    row.status, row.stage = "correct", ""


def build(model_type: str) -> nn.Module:
    """Build a tiny random model in training mode.

    Parameters that are zero at the start (biases, gates) get small random values: behind a zero
    gate every gradient is zero, and a comparison would be empty.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    config = tiny_config(model_type)
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    # A mapping may name a model's whole configuration and the class of its decoder alone.
    own = [
        part
        for name in config.sub_configs
        if isinstance(part := getattr(config, name), kind.config_class)
    ]
    model = kind(own[0]) if own else AutoModelForCausalLM.from_config(config)
    model = model.float()
    with torch.no_grad():
        for parameter in model.parameters():
            if not torch.any(parameter):
                parameter.normal_(std=0.02)
    return model.train()


def random_batch(micro_batch: int, seq_len: int, *, seed: int) -> dict[str, Tensor]:
    """Give random token ids, labels (a tenth ignored) and positions, int64 [micro_batch, seq_len]."""
    from tests.coverage.tiny_config import VOCABULARY

    generator = torch.Generator().manual_seed(seed)
    shape = (micro_batch, seq_len)
    ids, labels = (torch.randint(0, VOCABULARY, shape, generator=generator) for _ in range(2))
    labels[torch.rand(shape, generator=generator) < 0.1] = -100
    return {
        "input_ids": ids,
        "labels": labels,
        "position_ids": torch.arange(seq_len).expand(shape).contiguous(),
    }


def run_eager(model: nn.Module, batch: dict[str, Tensor]) -> Eager:
    """Run the untouched model, forward and backward.

    Raises:
        NotTrainable: it fails, or its loss or a gradient is not finite, or there is no gradient.
    """
    try:
        # Under the key that the captured step is run with: a model may draw while it trains.
        with keyed_dropout(torch.tensor(KEY, dtype=torch.int32)):
            loss, tokens = eager_loss(model, batch)
            loss.backward()
    except Exception as error:
        raise NotTrainable(_first_line(error)) from error
    # Every name of a tied parameter: which of them a checkpoint keeps is the capture's business.
    named = model.named_parameters(remove_duplicate=False)
    grads = {name: _grad(parameter) for name, parameter in named}
    model.zero_grad()
    if not math.isfinite(float(loss.detach())) or not all(
        g.isfinite().all() for g in grads.values()
    ):
        raise NotTrainable("the loss or a gradient is not finite")
    if not any(bool(grad.any()) for grad in grads.values()):
        raise NotTrainable("every gradient is zero")
    return Eager(loss=float(loss.detach()), tokens=int(tokens), grads=grads)


def _grad(parameter: nn.Parameter) -> Tensor:
    """Give a copy of a parameter's gradient; none is zeros."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()


def arguments(
    graph: Graph, arrays: Mapping[str, np.ndarray], batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Give a tensor for every input of the graph, by the input's name."""
    key = {"key": torch.tensor(KEY, dtype=torch.int32)}
    weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
    sources: dict[str, Mapping[str, Tensor]] = {"batch": batch, "key": key}
    return {item.name: sources.get(item.role, weights)[item.target] for item in graph.inputs}


def _check_params(graph: Graph, model: nn.Module) -> None:
    """Require a gradient for each parameter of the model, so that none goes uncompared."""
    expected = sum(1 for parameter in model.parameters() if parameter.requires_grad)
    found = len(graph.of_role("param"))
    if found != expected:
        raise Wrong(f"the captured graph has {found} parameters, the model {expected}")


def torch_results(graph: Graph, given: Mapping[str, Tensor]) -> Eager:
    """Run a captured training step in torch."""
    found = run_graph(graph, given)
    grads = {k.removeprefix("grad:"): v for k, v in found.items() if k.startswith("grad:")}
    return Eager(loss=float(found["loss_sum"]), tokens=int(found["tokens"]), grads=grads)


def missing_ops(package: GraphPackage) -> list[str]:
    """Give the ops of both graphs that have no lowering."""
    ops = {node.op for graph in package.graphs.values() for node in graph.nodes}
    return sorted(op for op in ops if find_lowering(op, TARGET) is None)


def compiled_step(package: GraphPackage) -> Callable[[Mapping[str, Tensor], Eager], Eager]:
    """Compile the training step as a job's is, load its executable, and give a function to run it.

    The function takes the values by the graph's input names, and eager's results: the unit of the
    fixed-point gradients follows from the largest.
    """
    import jax.numpy as jnp

    from runtime.agent.executable import load_program
    from runtime.artifact.program import EMPTY
    from runtime.compiler.programs import block_table, grad_program

    flat = grad_program(package, TARGET, micro_shards=1)
    program = load_program(_compile(flat))
    inputs, n_blocks = package.graphs["grad"].inputs, block_table(package).n_blocks

    def run(given: Mapping[str, Tensor], eager: Eager) -> Eager:
        largest = max(float(grad.abs().max()) for grad in eager.grads.values())
        unit = math.floor(math.log2(largest)) + 1 - _UNIT_BITS
        values: list[np.ndarray] = [given[item.name].numpy() for item in inputs]
        values += [
            np.full(spec.shape, unit if spec.role == "exponents" else 0)
            for spec in flat.inputs[len(values) : -1]
        ]
        values.append(np.full(n_blocks, EMPTY))
        typed = [
            np.asarray(value, jnp.dtype(spec.dtype))
            for value, spec in zip(values, flat.inputs, strict=True)
        ]
        results = [np.asarray(item) for item in program.run(typed)]
        by_role = {spec.role: item for spec, item in zip(flat.outputs, results, strict=True)}
        for count in ("overflow", "nonfinite"):
            if by_role[count]:
                raise Wrong(f"the compiled step counts {by_role[count]} blocks of {count}")
        grads = {
            spec.name: _decoded(item, unit, eager.grads[spec.name].shape)
            for spec, item in zip(flat.outputs, results, strict=True)
            if spec.role == "grad_sum"
        }
        loss, tokens = float(by_role["loss_sum"]), int(by_role["tokens"])
        return Eager(loss=loss, tokens=tokens, grads=grads)

    return run


def _compile(flat: Any) -> Any:
    """Compile a flat program in this process, whose environment is the target's."""
    from runtime.compiler.targets import back_end, find_target

    target = find_target(TARGET)
    return back_end(target).compile(flat, target, lambda _stage, _s: None)


def _decoded(sums: np.ndarray, unit: int, shape: torch.Size) -> Tensor:
    """Give the gradient that int32 blocks stand for: each element times 2^unit."""
    values = sums.astype(np.float64).reshape(-1)[: shape.numel()] * 2.0**unit
    return torch.from_numpy(values.astype(np.float32)).reshape(shape)


def compare(eager: Eager, found: Eager, what: str) -> float:
    """Hold results against eager's; give the largest difference over the largest gradient.

    Raises:
        Wrong: the loss, the token count or a gradient is off, or a gradient is missing.
    """
    if found.tokens != eager.tokens:
        raise Wrong(f"{what} counts {found.tokens} tokens, eager {eager.tokens}")
    if not abs(found.loss - eager.loss) <= TOLERANCE * max(1.0, abs(eager.loss)):
        raise Wrong(f"{what} gives loss {found.loss}, eager {eager.loss}")
    scale = max(float(grad.abs().max()) for grad in eager.grads.values())
    worst = 0.0
    for name, grad in found.grads.items():
        expected = eager.grads[name]
        error, own = float((grad - expected).abs().max()), float(expected.abs().max())
        if not error <= min(TOLERANCE * scale, OWN_TOLERANCE * own + OWN_FLOOR * scale):
            raise Wrong(
                f"{what} gives a gradient of '{name}' that differs from eager's by {error:.1e}; its "
                f"largest element is {own:.1e}, that of all gradients {scale:.1e}"
            )
        worst = max(worst, error / scale)
    return worst


def reason_of(stage: str, error: Exception) -> str:
    """Give the cause of a failure in a few words, by where and how it failed."""
    text = str(error)
    if stage == "build":
        return "transformers does not build it from a tiny configuration here"
    if stage == "eager":
        return "the model itself does not train from token ids in eager torch"
    causes = {
        "depends on data": "reads values of tensors, so a shape or a branch depends on the data",
        "random, not keyed": "draws random numbers outside dropout",
        "which a step only reads": "its forward changes its own parameters or buffers",
        "changes its argument": "an in-place op that could not be made pure",
        "differs from eager": "the captured form computes something else",
        "no lowering for": "ops without a lowering",
        "cannot be lowered": "ops or dtypes without a lowering",
    }
    found = [cause for words, cause in causes.items() if words in text]
    if not found and any(w in text for w in ("DataDependent", "GuardOnDataDependent", "item()")):
        found = [causes["depends on data"]]
    if not found and isinstance(error, (LumaError, Wrong)):
        found = [f"fails at the stage '{stage}'"]
    return found[0] if found else f"an unexpected {type(error).__name__} at the stage '{stage}'"


def _first_line(error: BaseException) -> str:
    """Give an error as one line of bounded length, with its kind where it has no words."""
    text = " ".join(str(error).split()) or type(error).__name__
    prefix = (
        "" if isinstance(error, (LumaError, Wrong, NotTrainable)) else f"{type(error).__name__}: "
    )
    return (prefix + text)[:_ERROR_LENGTH]
