"""The three flat programs of a job: `grad`, `apply` and `forward`, as jax functions with their specs.

Each is a pure function over a flat list of arrays, in the order that a node binds by:

- grad: param*, frozen*, buffer*, batch*, key, exponents*, grad_sum*, maxima ->
  grad_sum'*, maxima', loss_sum, tokens, overflow, nonfinite, vanished
- apply: param*, moment1*, moment2*, grad_sum*, exponents*, scalars, tokens ->
  param'*, moment1'*, moment2'*, grad_norm
- forward: param*, frozen*, buffer*, batch* -> logits

`apply` takes over the memory of parameters and moments. `grad` donates nothing: a node must be
able to drop a shard's result and still hold the sums from before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import jax
import jax.numpy as jnp

from runtime.artifact.program import BlockTable, ProgramName, TensorSpec
from runtime.compiler.arithmetic import matmul_flops
from runtime.compiler.blocks import BLOCK_SIZE, n_blocks, shard_bits
from runtime.compiler.fixed_point import Encoded, encode, sample_every, summarise
from runtime.compiler.graph import Graph, GraphPackage, Input
from runtime.compiler.lower import lower_graph
from runtime.compiler.lower.dtypes import run_dtype
from runtime.compiler.optimizer import (
    SCALARS,
    Updated,
    adamw,
    block_squares,
    clip_factor,
    gradient_norm,
    mean_gradient,
    rates,
)
from runtime.compiler.passes.decompose import decompose
from runtime.compiler.passes.rematerialise import rematerialise
from runtime.compiler.passes.reroll import reroll
from runtime.compiler.tensor_parallel import tensor_cuts
from runtime.spec import CompileError

FlatFunction = Callable[..., tuple[jax.Array, ...]]

_T = TypeVar("_T")

EACH = "each_"
"""Begins the names of functions that are called once for each parameter and compiled once."""

_TRAINABLE = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatProgram:
    """A program before compilation.

    Attributes:
        name: "grad", "apply" or "forward".
        function: takes the inputs as positional arrays, gives the outputs as a tuple.
        inputs: flat arguments, in order.
        outputs: flat results, in order.
        donated: indices of inputs whose memory a call takes over.
        flops: floating-point operations of its matrix products: what a call takes at the least.
        tensor_cuts: by a weight's name, the dimension that tensor parallelism divides.
        shared_calls: whether the functions that it calls for each parameter are compiled once for
            all parameters of a shape, see `runtime.compiler.targets.trace`.
    """

    name: ProgramName
    function: FlatFunction
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    donated: tuple[int, ...] = ()
    flops: float = 0.0
    tensor_cuts: Mapping[str, int] = field(default_factory=dict)
    shared_calls: bool = False


def block_table(package: GraphPackage) -> BlockTable:
    """Lay the parameters' blocks one after another, in name order.

    Raises:
        CompileError: the package has no "grad" graph or nothing to train.
    """
    first, rows = 0, []
    for item in _graph(package, "grad").of_role("param"):
        count = n_blocks(math.prod(item.type.shape))
        rows.append((item.target, first, count))
        first += count
    if not rows:
        raise CompileError("graph 'grad': no input has the role 'param'; nothing can be trained")
    return BlockTable(block_size=BLOCK_SIZE, rows=tuple(rows))


def build_programs(
    package: GraphPackage, *, target: str, micro_shards: int
) -> tuple[FlatProgram, ...]:
    """Give the programs that a package holds, in the order grad, apply, forward.

    Args:
        package: the captured graphs.
        target: what the ops are lowered for, such as "cpu".
        micro_shards: M, a constant of the compiled grad program.

    Raises:
        CompileError: a graph is missing, or a dtype or M is not allowed.
        LoweringError: an op has no lowering for the target.
    """
    programs = [grad_program(package, target, micro_shards), apply_program(package, target)]
    if "forward" in package.graphs:
        programs.append(forward_program(package, target))
    return tuple(programs)


def grad_program(package: GraphPackage, target: str, micro_shards: int) -> FlatProgram:
    """Fuse loss, gradients, fixed-point encoding and accumulation of one micro-shard.

    Raises:
        CompileError: see `build_programs`.
        LoweringError: an op has no lowering for the target.
    """
    graph, table = _rewritten(package, "grad", target), block_table(package)
    params = graph.of_role("param")
    _check_trainable(graph, params)
    shard_bits(micro_shards)
    lowered = lower_graph(graph, target)
    position = {label: i for i, (label, _) in enumerate(graph.outputs)}
    n_graph, n_params = len(graph.inputs), len(params)
    every, shared = sample_every(table.n_blocks), _shares_calls(target)

    def encoded(grad: jax.Array, units: jax.Array, old: jax.Array) -> Encoded:
        new = encode(grad.astype(jnp.float32), units, micro_shards, every)
        return new._replace(values=old + new.values)

    add = _for_each(encoded, shared=shared)

    def grad(*flat: jax.Array) -> tuple[jax.Array, ...]:
        units, maxima = flat[n_graph : n_graph + n_params], flat[-1]
        sums = flat[n_graph + n_params : n_graph + 2 * n_params]
        results = lowered(_as_computed(graph, flat[:n_graph]))
        added = [
            add(results[position[f"grad:{item.target}"]], unit, old)
            for item, unit, old in zip(params, units, sums, strict=True)
        ]
        found = summarise(added, jnp.concatenate(units), micro_shards)
        loss = results[position["loss_sum"]].astype(jnp.float32)
        tokens = results[position["tokens"]].astype(jnp.int32)
        totals = (item.values for item in added)
        return (*totals, jnp.maximum(maxima, found.maxima), loss, tokens, *found[1:])

    sums = _sum_specs(table)
    maxima = _vector("maxima", table.n_blocks, "int32")
    counts = tuple(
        _scalar(role, "int32") for role in ("tokens", "overflow", "nonfinite", "vanished")
    )
    return FlatProgram(
        name="grad",
        function=grad,
        inputs=(*_graph_specs(graph), *_exponent_specs(table), *sums, maxima),
        outputs=(*sums, maxima, _scalar("loss_sum", "float32"), *counts),
        flops=matmul_flops(graph),
        tensor_cuts=tensor_cuts(_graph(package, "grad")),
        shared_calls=shared,
    )


def apply_program(package: GraphPackage, target: str) -> FlatProgram:
    """Turn the reduced sums into the next parameters and moments.

    Raises:
        CompileError: see `build_programs`.
    """
    table = block_table(package)
    params = _specs("param", _graph(package, "grad").of_role("param"))
    shared, n = _shares_calls(target), len(params)
    squares = _for_each(block_squares, shared=shared)
    update = _for_each(_updated, shared=shared)

    def apply(*flat: jax.Array) -> tuple[jax.Array, ...]:
        each = [flat[i : 5 * n : n] for i in range(n)]  # param, both moments, sum, exponents
        scalars, tokens = flat[5 * n :]
        # Computed here once, not in each call: what calls compute alike is not shared.
        weight, shares = 1.0 / jnp.maximum(tokens, 1).astype(jnp.float32), rates(scalars)
        norm = gradient_norm([squares(total, units, weight) for *_, total, units in each])
        factor = clip_factor(norm, scalars[SCALARS.index("clip")])
        updated = [update(*one, weight, factor, shares) for one in each]
        return (
            *(item.param for item in updated),
            *(item.moment1 for item in updated),
            *(item.moment2 for item in updated),
            norm,
        )

    state = (*params, *_moments("moment1", params), *_moments("moment2", params))
    tail = (_vector("scalars", len(SCALARS), "float32"), _scalar("tokens", "int32"))
    return FlatProgram(
        name="apply",
        function=apply,
        inputs=(*state, *_sum_specs(table), *_exponent_specs(table), *tail),
        outputs=(*state, _scalar("grad_norm", "float32")),
        donated=tuple(range(3 * n)),
        tensor_cuts=tensor_cuts(_graph(package, "grad")),
        shared_calls=shared,
    )


def _updated(
    param: jax.Array,
    moment1: jax.Array,
    moment2: jax.Array,
    total: jax.Array,
    exponents: jax.Array,
    weight: jax.Array,
    factor: jax.Array,
    shares: jax.Array,
) -> Updated:
    """Step one parameter; see `adamw`."""
    mean = mean_gradient(total, exponents, param.shape, weight)
    return adamw(param, moment1, moment2, mean * factor, shares)


def forward_program(package: GraphPackage, target: str) -> FlatProgram:
    """Give the logits of a batch.

    Raises:
        CompileError: see `build_programs`.
        LoweringError: an op has no lowering for the target.
    """
    graph = _rewritten(package, "forward", target)
    lowered = lower_graph(graph, target)

    def forward(*flat: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(lowered(_as_computed(graph, flat)))

    shape = jax.eval_shape(forward, *[_struct(spec) for spec in _graph_specs(graph)])[0]
    logits = TensorSpec(role="logits", name="", shape=shape.shape, dtype=str(shape.dtype))
    return FlatProgram(
        name="forward",
        function=forward,
        inputs=_graph_specs(graph),
        outputs=(logits,),
        flops=matmul_flops(graph),
        tensor_cuts=tensor_cuts(_graph(package, "grad")),
    )


def _graph(package: GraphPackage, name: str) -> Graph:
    """Give a graph of the package."""
    if name not in package.graphs:
        raise CompileError(f"graph package: it holds no '{name}' graph; capture the model again")
    return package.graphs[name]


def _rewritten(package: GraphPackage, name: str, target: str) -> Graph:
    """Give a graph of the package as it is lowered for a target, through all passes."""
    family = target.partition("-")[0]
    graph = decompose(_graph(package, name), family)
    if name == "grad" and package.checkpointing == "layer":
        graph = rematerialise(graph)
    # A loop brings ops of its own: a flip of what it stacked, where it runs backwards.
    return decompose(reroll(graph), family)


def _check_trainable(graph: Graph, params: Sequence[Input]) -> None:
    """Require parameters of which float32 holds every value, and one gradient each."""
    labels = {label for label, _ in graph.outputs}
    for item in params:
        if item.type.dtype not in _TRAINABLE:
            message = (
                f"graph 'grad': parameter '{item.target}' has dtype {item.type.dtype}; "
                f"expected {' or '.join(_TRAINABLE)}"
            )
            raise CompileError(message, remedy="set model.dtype: fp32 or bf16")
        if f"grad:{item.target}" not in labels:
            raise CompileError(f"graph 'grad': parameter '{item.target}' has no gradient output")


def _as_computed(graph: Graph, flat: Sequence[jax.Array]) -> list[jax.Array]:
    """Give a graph's inputs with the float32 master parameters in the dtype it computes them in."""
    return [
        value.astype(run_dtype(item.type.dtype)) if item.role == "param" else value
        for item, value in zip(graph.inputs, flat, strict=True)
    ]


def _shares_calls(target: str) -> bool:
    """Say whether a target's compiler compiles a function once that is called many times.

    XLA's CPU back end does where calls are kept; the others inline every call.
    """
    return target == "cpu"


def _for_each(function: Callable[..., _T], *, shared: bool) -> Callable[..., _T]:
    """Give a function that is called once for each parameter.

    Shared, it stays a function in what is compiled. What differs between its calls must come in as
    an input of the program: the compiler folds constants, and slices at constant places, into each
    call, and then every call is code of its own.
    """
    if not shared:
        return function

    def each(*values: jax.Array) -> _T:
        return function(*values)

    each.__name__ = EACH + function.__name__.lstrip("_")
    return cast("Callable[..., _T]", jax.jit(each))


def _specs(role: str, items: Sequence[Input]) -> tuple[TensorSpec, ...]:
    """Describe graph inputs as a node sees them.

    64-bit integers are 32-bit at run time, and a trained parameter is its float32 master, whatever
    dtype it is computed in.
    """
    return tuple(
        TensorSpec(
            role=role,
            name=item.target,
            shape=item.type.shape,
            dtype="float32" if role == "param" else run_dtype(item.type.dtype).name,
        )
        for item in items
    )


def _graph_specs(graph: Graph) -> tuple[TensorSpec, ...]:
    """Describe all inputs of a graph, in its order."""
    return tuple(spec for item in graph.inputs for spec in _specs(item.role, [item]))


def _moments(role: str, params: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Describe one moment of every parameter."""
    return tuple(
        TensorSpec(role=role, name=spec.name, shape=spec.shape, dtype="float32") for spec in params
    )


def _sum_specs(table: BlockTable) -> tuple[TensorSpec, ...]:
    """Describe the integer gradient sums of every parameter."""
    return tuple(
        TensorSpec(role="grad_sum", name=name, shape=(count, table.block_size), dtype="int32")
        for name, _, count in table.rows
    )


def _exponent_specs(table: BlockTable) -> tuple[TensorSpec, ...]:
    """Describe the unit exponents of every parameter's blocks."""
    return tuple(
        TensorSpec(role="exponents", name=name, shape=(count,), dtype="int32")
        for name, _, count in table.rows
    )


def _vector(role: str, length: int, dtype: str) -> TensorSpec:
    """Describe a nameless vector."""
    return TensorSpec(role=role, name="", shape=(length,), dtype=dtype)


def _scalar(role: str, dtype: str) -> TensorSpec:
    """Describe a nameless scalar."""
    return TensorSpec(role=role, name="", shape=(), dtype=dtype)


def _struct(spec: TensorSpec) -> jax.ShapeDtypeStruct:
    """Give jax's description of a tensor."""
    return jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype))
