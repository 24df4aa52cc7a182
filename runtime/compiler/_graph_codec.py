"""The graph package's file format: canonical CBOR, read strictly.

A file is one CBOR map. Types are arrays `[dtype, [sizes]]`; a `Ref` is the map `{"r": name}`, a
`DType` the map `{"d": name}`, a tuple an array; other values are themselves. Reading checks every
type and bound, then encodes the result again and compares: whatever is not canonical (repeated
keys, long forms, trailing bytes, NaN payloads) differs and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import cbor2

from runtime.compiler.graph import (
    CHECKPOINTING,
    DType,
    Graph,
    GraphPackage,
    Input,
    Node,
    Ref,
    Scan,
    TensorType,
    Value,
)
from runtime.spec import CompileError

FORMAT = "luma/graph"
VERSION = 2

# Bounds far above any model's graph (SmolLM2-135M: 0.6 MB), far below what hurts a host.
MAX_BYTES = 256 << 20
MAX_ITEMS = 1 << 21
MAX_NAME = 1024
MAX_RANK = 32
MAX_SIZE = 1 << 48
MAX_DEPTH = 16
DTYPES = frozenset(
    [
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
    ]
)

T = TypeVar("T")


def encode(package: GraphPackage) -> bytes:
    """Encode a package to canonical CBOR.

    Raises:
        CompileError: a graph breaks a rule of `Graph.check`, or holds a scan.
    """
    for graph in package.graphs.values():
        graph.check()
    document = {
        "format": FORMAT,
        "version": VERSION,
        "graphs": {name: _encode_graph(graph) for name, graph in package.graphs.items()},
        "config_digest": package.config_digest,
        "versions": dict(package.versions),
        "packing": package.packing,
        "micro_batch": package.micro_batch,
        "seq_len": package.seq_len,
        "checkpointing": package.checkpointing,
    }
    return cbor2.dumps(document, canonical=True)


def decode(data: bytes) -> GraphPackage:
    """Decode a package and check all of it.

    Raises:
        CompileError: the bytes are not exactly what `encode` writes.
    """
    if len(data) > MAX_BYTES:
        raise CompileError(f"graph package: {len(data)} bytes; at most {MAX_BYTES} are allowed")
    try:
        document = cbor2.loads(
            data, max_depth=64, allow_indefinite=False, allow_duplicate_keys=False
        )
    except (cbor2.CBORDecodeError, ValueError, OverflowError, MemoryError, TypeError) as error:
        raise CompileError(f"graph package: not readable as CBOR ({error})") from error
    package = _decode_package(document)
    if encode(package) != data:
        raise CompileError("graph package: the bytes are not in canonical form")
    return package


def _encode_graph(graph: Graph) -> dict[str, object]:
    if any(isinstance(node, Scan) for node in graph.nodes):
        raise CompileError(
            "graph package: a scan has no form in a package; encode what capture made"
        )
    return {
        "inputs": [[i.name, i.role, i.target, _encode_type(i.type)] for i in graph.inputs],
        "nodes": [
            [
                node.name,
                node.op,
                _encode_value(node.args),
                {key: _encode_value(value) for key, value in node.kwargs.items()},
                _encode_out(node.out),
                node.module,
            ]
            for node in graph.nodes
        ],
        "outputs": [[label, ref.name] for label, ref in graph.outputs],
    }


def _encode_type(value: TensorType) -> list[object]:
    return [value.dtype, list(value.shape)]


def _encode_out(out: TensorType | tuple[TensorType | None, ...] | None) -> object:
    if isinstance(out, TensorType):
        return _encode_type(out)
    if out is None:
        return None
    return {"many": [None if item is None else _encode_type(item) for item in out]}


def _encode_value(value: Value) -> object:
    if isinstance(value, Ref):
        return {"r": value.name}
    if isinstance(value, DType):
        return {"d": value.name}
    if isinstance(value, tuple):
        return [_encode_value(item) for item in value]
    return value


def _fail(where: str, found: object, expected: str) -> CompileError:
    return CompileError(
        f"graph package: {where}: found {type(found).__name__}; expected {expected}"
    )


def _fields(value: object, where: str, names: tuple[str, ...]) -> dict[str, object]:
    """Give a map that has exactly these text keys."""
    if type(value) is not dict or set(value) != set(names):
        raise _fail(where, value, f"a map with the keys {', '.join(names)}")
    return value


def _row(value: object, where: str, length: int) -> list[object]:
    """Give an array of exactly this length."""
    if type(value) is not list or len(value) != length:
        raise _fail(where, value, f"an array of {length}")
    return value


def _many(value: object, where: str, read: Callable[[object, str], T]) -> tuple[T, ...]:
    """Read a bounded array, one item at a time."""
    if type(value) is not list or len(value) > MAX_ITEMS:
        raise _fail(where, value, f"an array of at most {MAX_ITEMS}")
    return tuple(read(item, where) for item in value)


def _text(value: object, where: str) -> str:
    if type(value) is not str or len(value) > MAX_NAME:
        raise _fail(where, value, f"text of at most {MAX_NAME} characters")
    return value


def _size(value: object, where: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_SIZE:
        raise _fail(where, value, f"an integer from 0 to {MAX_SIZE}")
    return value


def _dtype(value: object, where: str) -> str:
    name = _text(value, where)
    if name not in DTYPES:
        raise CompileError(f"graph package: {where}: unknown dtype '{name}'")
    return name


def _decode_package(document: object) -> GraphPackage:
    names = ("format", "version", "graphs", "config_digest", "versions")
    names = (*names, "packing", "micro_batch", "seq_len", "checkpointing")
    items = _fields(document, "file", names)
    if items["format"] != FORMAT or items["version"] != VERSION:
        found = f"{items['format']!r} version {items['version']!r}"[:80]
        raise CompileError(f"graph package: {found}; this reader takes {FORMAT} version {VERSION}")
    if type(items["packing"]) is not bool:
        raise _fail("packing", items["packing"], "true or false")
    return GraphPackage(
        graphs=_decode_map(items["graphs"], "graphs", _decode_graph),
        config_digest=_text(items["config_digest"], "config_digest"),
        versions=_decode_map(items["versions"], "versions", _text),
        packing=items["packing"],
        micro_batch=_size(items["micro_batch"], "micro_batch"),
        seq_len=_size(items["seq_len"], "seq_len"),
        checkpointing=_checkpointing(items["checkpointing"]),
    )


def _checkpointing(value: object) -> str:
    if value not in CHECKPOINTING:
        raise _fail("checkpointing", value, " or ".join(CHECKPOINTING))
    return str(value)


def _decode_map(value: object, where: str, read: Callable[[object, str], T]) -> dict[str, T]:
    """Read a map from text to items, in sorted order of keys."""
    if type(value) is not dict:
        raise _fail(where, value, "a map")
    keys = sorted(_text(key, where) for key in value)
    return {key: read(value[key], f"{where}.{key}") for key in keys}


def _decode_graph(value: object, where: str) -> Graph:
    items = _fields(value, where, ("inputs", "nodes", "outputs"))
    graph = Graph(
        inputs=_many(items["inputs"], f"{where}.inputs", _decode_input),
        nodes=_many(items["nodes"], f"{where}.nodes", _decode_node),
        outputs=_many(items["outputs"], f"{where}.outputs", _decode_output),
    )
    graph.check()
    return graph


def _decode_input(value: object, where: str) -> Input:
    name, role, target, kind = _row(value, where, 4)
    return Input(
        _text(name, where), _text(role, where), _text(target, where), _decode_type(kind, where)
    )


def _decode_output(value: object, where: str) -> tuple[str, Ref]:
    label, name = _row(value, where, 2)
    return _text(label, where), Ref(_text(name, where))


def _decode_node(value: object, where: str) -> Node:
    name, op, args, kwargs, out, module = _row(value, where, 6)
    where = f"{where} '{_text(name, where)}'"
    read_args = _decode_value(args, where)
    if not isinstance(read_args, tuple):
        raise _fail(where, args, "an array of arguments")
    return Node(
        name=_text(name, where),
        op=_text(op, where),
        args=read_args,
        kwargs=_decode_map(kwargs, where, _decode_value),
        out=_decode_out(out, where),
        module=_text(module, where),
    )


def _decode_type(value: object, where: str) -> TensorType:
    dtype, sizes = _row(value, where, 2)
    shape = _many(sizes, where, _size)
    if len(shape) > MAX_RANK:
        raise CompileError(f"graph package: {where}: rank {len(shape)}; at most {MAX_RANK}")
    return TensorType(shape, _dtype(dtype, where))


def _decode_out(value: object, where: str) -> TensorType | tuple[TensorType | None, ...] | None:
    if value is None:
        return None
    if type(value) is list:
        return _decode_type(value, where)
    many = _fields(value, where, ("many",))["many"]
    return _many(many, where, lambda item, at: None if item is None else _decode_type(item, at))


def _decode_value(value: object, where: str, depth: int = 0) -> Value:
    if depth > MAX_DEPTH:
        raise CompileError(f"graph package: {where}: arguments nest deeper than {MAX_DEPTH}")
    if value is None or type(value) is bool or type(value) is float:
        return value
    if type(value) is int and abs(value) < 1 << 63:
        return value
    if type(value) is str:
        return _text(value, where)
    if type(value) is list:
        return tuple(_decode_value(item, where, depth + 1) for item in value)
    if type(value) is dict and set(value) == {"r"}:
        return Ref(_text(value["r"], where))
    if type(value) is dict and set(value) == {"d"}:
        return DType(_dtype(value["d"], where))
    raise _fail(where, value, "a reference, dtype, number, text, array or nothing")
