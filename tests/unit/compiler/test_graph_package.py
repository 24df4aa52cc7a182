"""The graph package's file: canonical, strict, and readable without torch or jax."""

import subprocess
import sys

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.compiler.graph import (
    DType,
    Graph,
    GraphPackage,
    Input,
    Node,
    Ref,
    TensorType,
    refs,
)
from runtime.spec import CompileError

MATRIX = TensorType((2, 3), "float32")
WEIGHT = Input("w", "param", "layer.weight", MATRIX)
IDS = Input("ids", "batch", "input_ids", TensorType((2, 8), "int64"))


LOGITS = (("logits", Ref("w")),)


def package(nodes=(), outputs=LOGITS, inputs=(WEIGHT, IDS)):
    graph = Graph(tuple(inputs), tuple(nodes), tuple(outputs))
    return GraphPackage({"forward": graph}, "00ff", {"torch": "2.13.0"}, True, 2, 8)


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.just(Ref("w")),
    st.sampled_from([DType("float32"), DType("bool")]),
)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
types = st.builds(
    TensorType,
    st.lists(st.integers(0, 1 << 20), max_size=4).map(tuple),
    st.sampled_from(["float32", "int64", "bool", "bfloat16"]),
)
outs = st.one_of(types, st.none(), st.lists(st.none() | types, max_size=3).map(tuple))
bodies = st.tuples(
    st.lists(values, max_size=4).map(tuple),
    st.dictionaries(st.text(max_size=6), values, max_size=3),
    outs,
    st.text(max_size=12),
)


@given(st.lists(bodies, max_size=4))
def test_bytes_round_trip(drawn):
    nodes = [Node(f"n{i}", "aten.mm.default", *body) for i, body in enumerate(drawn)]
    original = package(nodes)
    data = original.to_bytes()
    assert GraphPackage.from_bytes(data) == original
    assert GraphPackage.from_bytes(data).to_bytes() == data
    assert len(original.digest()) == 64


def test_order_of_maps_does_not_matter():
    one = Node("n", "op", (), {"a": 1, "b": 2}, MATRIX)
    other = Node("n", "op", (), {"b": 2, "a": 1}, MATRIX)
    assert package([one]).digest() == package([other]).digest()


def test_true_and_one_are_different():
    one = package([Node("n", "op", (1,), {}, MATRIX)])
    true = package([Node("n", "op", (True,), {}, MATRIX)])
    assert one.digest() != true.digest()
    assert GraphPackage.from_bytes(true.to_bytes()).graphs["forward"].nodes[0].args[0] is True


@settings(max_examples=200)
@given(st.data())
def test_a_changed_byte_is_refused_or_another_valid_package(data):
    original = package([Node("n", "aten.mm.default", (Ref("w"), (1.5, DType("bool"))), {}, MATRIX)])
    raw = bytearray(original.to_bytes())
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= data.draw(st.integers(1, 255))
    try:
        found = GraphPackage.from_bytes(bytes(raw))
    except CompileError:
        return
    assert found != original
    assert found.to_bytes() == bytes(raw)


def test_truncated_and_trailing_bytes_are_refused():
    raw = package().to_bytes()
    for length in range(len(raw)):
        with pytest.raises(CompileError):
            GraphPackage.from_bytes(raw[:length])
    with pytest.raises(CompileError, match="canonical"):
        GraphPackage.from_bytes(raw + b"\x00")


@given(st.binary(max_size=64))
def test_noise_is_refused(noise):
    with pytest.raises(CompileError):
        GraphPackage.from_bytes(noise)


def altered(**changes):
    document = cbor2.loads(package().to_bytes())
    document.update(changes)
    return cbor2.dumps(document, canonical=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "this reader takes luma/graph"),
        ({"version": 3}, "version 2"),
        ({"extra": 1}, "keys"),
        ({"packing": 1}, "true or false"),
        ({"seq_len": -1}, "an integer from 0"),
        ({"seq_len": True}, "an integer from 0"),
        ({"config_digest": "x" * 2000}, "1024 characters"),
        ({"graphs": []}, "a map"),
        ({"checkpointing": "some"}, "none or layer"),
    ],
)
def test_wrong_fields_are_named(changes, message):
    with pytest.raises(CompileError, match=message):
        GraphPackage.from_bytes(altered(**changes))


def test_deep_nesting_and_wide_integers_are_refused():
    deep = Node("n", "op", ((((((((((((((((((1,),),),),),),),),),),),),),),),),),), {}, MATRIX)
    with pytest.raises(CompileError, match="nest deeper"):
        GraphPackage.from_bytes(package([deep]).to_bytes())
    wide = Node("n", "op", (1 << 70,), {}, MATRIX)
    with pytest.raises(CompileError, match="expected a reference"):
        GraphPackage.from_bytes(package([wide]).to_bytes())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (package([Node("n", "op", (Ref("later"),), {}, MATRIX)]), "before it is defined"),
        (package([Node("w", "op", (), {}, MATRIX)]), "defined twice"),
        (package(outputs=[("logits", Ref("gone"))]), "unknown 'gone'"),
        (package(inputs=[IDS, WEIGHT]), "order"),
        (package(inputs=[WEIGHT, WEIGHT]), "same name"),
        (package(inputs=[Input("w", "weights", "x", MATRIX)]), "expected one of param"),
        (package(inputs=[Input("w", "batch", "pixels", MATRIX)]), "unknown batch input"),
    ],
)
def test_broken_graphs_are_refused_when_written(broken, message):
    with pytest.raises(CompileError, match=message):
        broken.to_bytes()


def test_references_are_found_in_order():
    assert list(refs((Ref("a"), (1, (Ref("b"),)), Ref("a")))) == ["a", "b", "a"]


def test_reading_needs_neither_torch_nor_jax():
    code = (
        "import sys; from runtime.compiler.graph import GraphPackage; "
        f"GraphPackage.from_bytes(bytes.fromhex('{package().to_bytes().hex()}')); "
        "print(sorted({'torch', 'jax', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
