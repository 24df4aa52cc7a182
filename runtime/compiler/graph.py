"""The graph package: what leaves the customer's side, and all that a compiler gets.

A package holds ATen-level graphs, parameter names, shapes, dtypes and digests. It never holds
weights, training data or source text: every tensor constant is an input with the role "buffer",
whose values stay with the customer. This module imports neither torch nor jax, so a compiler host
needs neither to read a package; `runtime.compiler._graph_codec` is its file format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from blake3 import blake3

from runtime.spec import CompileError

ROLES = ("param", "frozen", "buffer", "batch", "key")
BATCH_KEYS = (
    "input_ids",
    "labels",
    "position_ids",
    "segment_ids",
    "attention_mask",
    "decoder_input_ids",
    "pixel_values",
    "targets",
)
CHECKPOINTING = ("none", "layer")
SUFFIX = ".graph"


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor's static type.

    Attributes:
        shape: the sizes, outermost first.
        dtype: numpy-like name, such as "float32", "bfloat16", "int64", "bool".
    """

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of the value that the input or node `name` produces."""

    name: str


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype as an argument of an op (`aten._to_copy`'s dtype=...), by its numpy-like name."""

    name: str


@dataclass(frozen=True, slots=True)
class Affine:
    """The integer `start + step * i` in iteration i of a scan's body, as an argument of an op.

    Only the arguments of `INDEX_ARGUMENTS` may be one.
    """

    start: int
    step: int


Value: TypeAlias = "Ref | DType | Affine | bool | int | float | str | tuple[Value, ...] | None"

# Positional arguments that say where an op reads or writes, and may differ between iterations.
INDEX_ARGUMENTS: Mapping[str, tuple[int, ...]] = {
    "aten.select.int": (2,),
    "aten.slice.Tensor": (2, 3),
    "aten.select_scatter.default": (3,),
    "aten.slice_scatter.default": (3, 4),
}


@dataclass(frozen=True, slots=True)
class Node:
    """One op of a graph.

    Attributes:
        name: unique in the graph.
        op: "aten.mm.default", "luma.attention.default", or "getitem" (args: a Ref to a node with
            several outputs, an index).
        args: positional arguments in the op's schema order.
        kwargs: keyword arguments.
        out: the result's type; a tuple for several results, with None where one is absent; None
            for an op that gives no tensor.
        module: dotted path of the model's module that ran the op, for error messages; may be "".
    """

    name: str
    op: str
    args: tuple[Value, ...]
    kwargs: Mapping[str, Value]
    out: TensorType | tuple[TensorType | None, ...] | None
    module: str = ""


@dataclass(frozen=True, slots=True)
class Body:
    """What one iteration of a `Scan` computes. Its names are its own, apart from the graph's.

    Attributes:
        carries: names of the values handed from one iteration to the next.
        invariants: names of the values that are the same in every iteration.
        nodes: in execution order.
        following: what each carry is in the next iteration, in the order of `carries`.
        stacked: values of which every iteration's is kept.
    """

    carries: tuple[str, ...]
    invariants: tuple[str, ...]
    nodes: tuple[Node, ...]
    following: tuple[Ref, ...]
    stacked: tuple[Ref, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(Node):
    """A loop of fixed length. `passes.reroll` makes it; no package holds one.

    `op` is "luma.scan", `args` are (first values of the carries, values of the invariants), and
    `out` are the types of the carries after the last iteration, then of the stacked values: those
    of one iteration with a first dimension of size `length` before.

    Attributes:
        body: one iteration.
        length: how many there are.
    """

    body: Body
    length: int


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a graph.

    Attributes:
        name: unique among the graph's inputs and nodes.
        role: one of `ROLES`.
        target: the parameter's or buffer's saved name, or the batch key.
        type: its shape and dtype in torch (batch int64; key int32[2], a uint32[2] bit pattern).
    """

    name: str
    role: str
    target: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Graph:
    """A pure function: inputs in order, nodes in execution order, labelled outputs."""

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, Ref], ...]

    def of_role(self, role: str) -> tuple[Input, ...]:
        """Give the inputs with this role, in order."""
        return tuple(item for item in self.inputs if item.role == role)

    def check(self) -> None:
        """Check names, roles, order of inputs, and that every use follows its definition.

        Raises:
            CompileError: on the first rule that is broken, with the name.
        """
        _check_inputs(self.inputs)
        known = {item.name for item in self.inputs}
        for node in self.nodes:
            for name in refs((node.args, tuple(node.kwargs.values()))):
                if name not in known:
                    message = f"graph: node '{node.name}' uses '{name}' before it is defined"
                    raise CompileError(message)
            if node.name in known:
                raise CompileError(f"graph: the name '{node.name}' is defined twice")
            if isinstance(node, Scan):
                _check_body(node)
            known.add(node.name)
        for label, ref in self.outputs:
            if ref.name not in known:
                raise CompileError(f"graph: output '{label}' refers to unknown '{ref.name}'")


@dataclass(frozen=True, slots=True)
class GraphPackage:
    """Everything that is compiled for one job.

    Attributes:
        graphs: "grad" (outputs "loss_sum", "tokens", then "grad:<param>" sorted by name) and
            "forward" (output "logits").
        config_digest: BLAKE3 hex of the model's configuration.
        versions: what captured it, such as {"torch": "2.13.0"}.
        packing: whether samples hold several documents, told apart by `segment_ids`.
        micro_batch: sequences in a micro-shard.
        seq_len: tokens in a sequence.
        checkpointing: what the compiled backward finds in memory, one of `CHECKPOINTING`: all that
            it reads ("none"), or what entered each layer, whose inside it computes again ("layer").
    """

    graphs: Mapping[str, Graph]
    config_digest: str
    versions: Mapping[str, str] = field(default_factory=dict)
    packing: bool = False
    micro_batch: int = 1
    seq_len: int = 1
    checkpointing: str = "none"

    def to_bytes(self) -> bytes:
        """Give the canonical CBOR form: equal packages give equal bytes."""
        from runtime.compiler import _graph_codec

        return _graph_codec.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> GraphPackage:
        """Read a package, refusing everything that `to_bytes` could not have written.

        Raises:
            CompileError: the bytes are not a canonical package of this format.
        """
        from runtime.compiler import _graph_codec

        return _graph_codec.decode(data)

    def digest(self) -> str:
        """Give the BLAKE3 of the canonical form, as hex."""
        return blake3(self.to_bytes()).hexdigest()


def refs(value: Value) -> Iterator[str]:
    """Give the name of every `Ref` inside a value, in order."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, tuple):
        for item in value:
            yield from refs(item)


def _check_body(scan: Scan) -> None:
    """Check that a scan's body uses only what it defines or is given."""
    body = scan.body
    known = {*body.carries, *body.invariants}
    for node in body.nodes:
        missing = set(refs((node.args, tuple(node.kwargs.values())))) - known
        if missing:
            name = min(missing)
            raise CompileError(f"graph: scan '{scan.name}': '{node.name}' uses unknown '{name}'")
        known.add(node.name)
    for ref in (*body.following, *body.stacked):
        if ref.name not in known:
            raise CompileError(f"graph: scan '{scan.name}' gives unknown '{ref.name}'")


def _check_inputs(inputs: tuple[Input, ...]) -> None:
    """Check roles, uniqueness and the fixed order of inputs."""
    names = [item.name for item in inputs]
    if len(set(names)) != len(names):
        raise CompileError("graph: two inputs have the same name")
    for item in inputs:
        if item.role not in ROLES:
            allowed = ", ".join(ROLES)
            message = (
                f"graph: input '{item.name}' has role '{item.role}'; expected one of {allowed}"
            )
            raise CompileError(message)
        if item.role == "batch" and item.target not in BATCH_KEYS:
            raise CompileError(f"graph: unknown batch input '{item.target}'")
    order = [_input_order(item) for item in inputs]
    if order != sorted(order) or len(set(order)) != len(order):
        raise CompileError("graph: inputs are not in order of role, then name, or one is repeated")


def _input_order(item: Input) -> tuple[int, int, str]:
    """Give the sort key of an input: role, then batch position or name."""
    position = BATCH_KEYS.index(item.target) if item.role == "batch" else 0
    return ROLES.index(item.role), position, item.target
