"""What cannot be lowered is one error with every op, module and target; nothing is guessed."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from runtime.compiler.graph import DType, Graph, Input, Node, Ref, TensorType
from runtime.compiler.lower import lower_graph, op, registry
from runtime.spec import LoweringError

_FLOATS = TensorType((2,), "float32")
_X = Input("x", "buffer", "layer.weight", _FLOATS)


def _graph(*nodes: Node, inputs: tuple[Input, ...] = (_X,)) -> Graph:
    return Graph(inputs, nodes, ((nodes[-1].name, Ref(nodes[-1].name)),))


def _node(name: str, op_name: str, *args: object, out: object = _FLOATS, module: str = "m") -> Node:
    return Node(name, op_name, args, {}, out, module)  # type: ignore[arg-type]


@pytest.fixture
def temporary_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test register ops that are gone after it."""
    monkeypatch.setattr(registry, "_LOWERINGS", dict(registry._LOWERINGS))


def test_all_missing_ops_are_named_at_once() -> None:
    """Each op with each module that uses it, the target, and what to do."""
    graph = _graph(
        _node("a", "aten.nonzero.default", Ref("x"), module="model.layers.0.mlp"),
        _node("b", "aten.rand_like.default", Ref("x"), module=""),
        _node("c", "aten.nonzero.default", Ref("x"), module="model.layers.1.mlp"),
        _node("d", "aten.nonzero.default", Ref("x"), module="model.layers.1.mlp"),
        _node("e", "aten.neg.default", Ref("x")),
    )
    with pytest.raises(LoweringError) as caught:
        lower_graph(graph, "tpu-v5e")
    lines = caught.value.message.splitlines()[1:]
    assert lines == [
        "  op 'aten.nonzero.default' in module 'model.layers.0.mlp' has no lowering for target 'tpu-v5e'",
        "  op 'aten.rand_like.default' outside any module has no lowering for target 'tpu-v5e'",
        "  op 'aten.nonzero.default' in module 'model.layers.1.mlp' has no lowering for target 'tpu-v5e'",
    ]
    assert "add-an-op.md" in caught.value.diagnostics()


def test_double_precision_is_refused_by_name() -> None:
    """float64 in an input or a result has no form on accelerators."""
    double = TensorType((2,), "float64")
    graph = _graph(
        _node("a", "aten.neg.default", Ref("x"), out=double, module="model.rope"),
        inputs=(Input("x", "buffer", "rope.table", double),),
    )
    with pytest.raises(
        LoweringError, match=r"rope.table' is float64(.|\n)*'model.rope' gives float64"
    ):
        lower_graph(graph, "cpu")


def test_casting_to_double_inside_is_refused() -> None:
    """A dtype argument is checked as a result is."""
    node = Node("y", "aten.sum.default", (Ref("x"),), {"dtype": DType("float64")}, _FLOATS, "m")
    with pytest.raises(LoweringError, match="float64"):
        lower_graph(_graph(node), "cpu")([jnp.ones(2)])


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_an_integer_beyond_32_bits_is_refused(value: int) -> None:
    """It would wrap around silently; the error names the node."""
    ints = TensorType((2,), "int64")
    node = Node("y", "aten.full.default", ((2,), value), {}, ints, "model.mask")
    with pytest.raises(LoweringError, match=f"'model.mask'.*{value} does not fit in int32"):
        lower_graph(_graph(node), "cpu")([jnp.ones(2)])


@pytest.mark.parametrize(("value", "stands"), [(2**63 - 1, 2**31 - 1), (-(2**63), -(2**31))])
def test_the_extremes_of_int64_become_those_of_int32(value: int, stands: int) -> None:
    """Code uses them as "no limit"."""
    node = Node("y", "aten.full.default", ((2,), value), {}, TensorType((2,), "int64"), "m")
    (result,) = lower_graph(_graph(node), "cpu")([jnp.ones(2)])
    np.testing.assert_array_equal(result, np.full(2, stands, np.int32))


def test_a_mask_index_is_refused_with_a_remedy() -> None:
    """Its size depends on the data."""
    mask = Input("y", "buffer", "mask", TensorType((2,), "bool"))
    graph = _graph(_node("z", "aten.index.Tensor", Ref("x"), (Ref("y"),)), inputs=(_X, mask))
    with pytest.raises(LoweringError, match="depends on the data") as caught:
        lower_graph(graph, "cpu")([jnp.ones(2), jnp.ones(2, bool)])
    assert "torch.where" in caught.value.diagnostics()


@pytest.mark.parametrize(
    "argument", [np.ones(3, np.float32), np.ones(2, np.int32), np.ones((2, 1), np.float32)]
)
def test_arguments_of_another_type_are_refused(argument: np.ndarray) -> None:
    """Shape and dtype are the graph's, and the message names the parameter."""
    run = lower_graph(_graph(_node("y", "aten.neg.default", Ref("x"))), "cpu")
    with pytest.raises(LoweringError, match=r"'layer.weight' is .*expected float32\[2\]"):
        run([argument])
    with pytest.raises(LoweringError, match="takes 1 inputs and got 0"):
        run([])


@pytest.mark.usefixtures("temporary_op")
@pytest.mark.parametrize(
    ("result", "out", "message"),
    [
        (jnp.ones((3,)), _FLOATS, r"shape \[3\], torch \[2\]"),
        ((jnp.ones(2),), _FLOATS, "gave tuple, torch one tensor"),
        (None, _FLOATS, "gave NoneType"),
        (jnp.ones((2, 2)), (_FLOATS, _FLOATS), "tuple of 2"),
        ((jnp.ones(2),), (_FLOATS, _FLOATS), "tuple of 2"),
    ],
)
def test_a_lowering_with_a_wrong_result_is_caught(
    result: object, out: object, message: str
) -> None:
    """An array where a tuple was meant once made XLA compile a kernel a row, for minutes."""
    op("luma.broken.default")(lambda _x: result)
    graph = _graph(_node("y", "luma.broken.default", Ref("x"), out=out))
    with pytest.raises(LoweringError, match=f"luma.broken.default.*{message}"):
        lower_graph(graph, "cpu")([jnp.ones(2)])


@pytest.mark.usefixtures("temporary_op")
def test_a_target_s_own_lowering_wins_over_its_family_s_and_the_general_one() -> None:
    """Most special first; another target is not touched."""
    graph = _graph(_node("y", "luma.special.default", Ref("x")))
    op("luma.special.default")(lambda x: x)
    op("luma.special.default", target="cuda")(lambda x: x + 1)
    op("luma.special.default", target="cuda-sm90")(lambda x: x + 2)
    found = {
        t: float(lower_graph(graph, t)([jnp.zeros(2)])[0][0])
        for t in ("cpu", "cuda-sm80", "cuda-sm90")
    }
    assert found == {"cpu": 0.0, "cuda-sm80": 1.0, "cuda-sm90": 2.0}


@pytest.mark.usefixtures("temporary_op")
def test_an_op_is_registered_once() -> None:
    """Two lowerings of one op for one target are a mistake in the code."""
    with pytest.raises(ValueError, match=r"aten.mm.default' already has a lowering"):
        op("aten.mm.default")(lambda x, y: x)
