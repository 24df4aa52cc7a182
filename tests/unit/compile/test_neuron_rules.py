"""Neuron's documented limits, each on a real HLO module that breaks it and on one that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from runtime.compiler.neuron import hlo, rules
from runtime.compiler.neuron.codes import CODES
from runtime.compiler.neuron.hlo_rewrite import prepared
from runtime.compiler.neuron.rules import Broken, assumptions, broken_rules


def struct(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An argument's type."""
    return jax.ShapeDtypeStruct(shape, dtype)


def module_of(function: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> hlo.Module:
    """A function's module as the compiler would get it."""
    lowered = jax.jit(function).lower(*arguments)
    data = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return hlo.read(prepared(data))


def codes(function: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> set[str]:
    """The codes of all rules that a function breaks."""
    return {broken.code for broken in broken_rules(module_of(function, *arguments))}


V, M, I = struct(8), struct(4, 4), struct(4, 4, dtype=jnp.int32)
IMAGE, KERNEL = struct(1, 1, 8), struct(1, 1, 3)


def _conv(**options: Any) -> Callable[..., jax.Array]:
    defaults = {"window_strides": (1,), "padding": [(2, 2)]}
    return lambda x, k: lax.conv_general_dilated(x, k, **{**defaults, **options})


@pytest.mark.parametrize(
    ("code", "function", "arguments"),
    [
        ("EVRF001", lax.erf, (V,)),
        ("EVRF001", jnp.log1p, (V,)),
        ("EVRF001", jnp.expm1, (V,)),
        ("EVRF001", jnp.tan, (V,)),
        ("EVRF001", jnp.flip, (V,)),
        ("EVRF001", lambda x: jnp.remainder(x, 3.0), (V,)),
        ("EVRF001", lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), (V,)),
        ("EVRF001", lambda x: lax.reduce_precision(x, 8, 7), (V,)),
        ("EVRF001", lambda x: lax.while_loop(lambda y: y[0] < y[1], jnp.sin, x), (V,)),
        ("EVRF001", lambda x: lax.fori_loop(0, x[0].astype(int), lambda i, y: y + 1, x), (V,)),
        ("EVRF001", jnp.argmax, (V,)),
        ("EVRF001", lambda x: jnp.any(x > 0), (V,)),
        ("EVRF001", lambda x, y: x**y, (V, V)),
        ("EHCA005", lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True), (M, M)),
        ("EHCA005", jnp.linalg.cholesky, (M,)),
        ("EVRF004", lambda x: jnp.abs(jnp.fft.fft(x)), (V,)),
        ("EVRF004", lambda x: jnp.real(lax.complex(x, x) * 2), (V,)),
        ("EVRF010", _conv(lhs_dilation=(2,), rhs_dilation=(2,)), (IMAGE, KERNEL)),
        ("EVRF011", _conv(lhs_dilation=(2,), window_strides=(2,)), (IMAGE, KERNEL)),
        ("EVRF013", jnp.sort, (I,)),
        ("EVRF014", lax.sort, (struct(16385),)),
        ("EVRF017", lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (1,), [(0, 0)],
                                                base_dilation=(2,)), (V,)),
        ("EVRF018", lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (1,), [(0, 0)],
                                                window_dilation=(2,)), (V,)),
        ("EVRF019", lambda x: lax.reduce_window((x, x), (0.0, 0.0),
                                                lambda a, b: (a[0] + b[0], a[1] + b[1]),
                                                (2,), (1,), [(0, 0)]), (V,)),
        ("EVRF022", lambda x: x >> 1, (struct(4, dtype=jnp.int8),)),
        ("EVRF024", lambda x: jnp.broadcast_to(x[:, None, None], (8, 16384, 16384)).sum(), (V,)),
        ("EVRF035", lambda x: x @ x, (I,)),
        ("EVRF060", lambda x: x.at[jnp.zeros(3, int)].add(1), (struct(8, dtype=jnp.int32),)),
        ("EVRF016", lambda x: x.at[jnp.zeros(3, int)].max(1), (struct(8, dtype=jnp.int32),)),
        ("ESPP047", lambda x: x.astype(jnp.float8_e5m2).astype(jnp.float32), (V,)),
        ("EVRF005", lambda x: x.astype(jnp.float8_e4m3fnuz).astype(jnp.float32), (V,)),
        ("ESPP004", lambda x: x.astype(jnp.int4).astype(jnp.float32), (V,)),
    ],
)  # fmt: skip
def test_what_a_document_rules_out_is_found(
    code: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    assert code in codes(function, *arguments)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x: jnp.sum(jnp.exp(x) * 2, axis=1), (M,)),
        (lambda x: jnp.max(x) - jnp.min(x) + jnp.prod(x), (M,)),
        (lambda x: x @ x, (M,)),
        (lambda x: x**3, (V,)),
        (lambda x: lax.fori_loop(0, 5, lambda i, y: y * 2, x), (V,)),
        (lambda x: lax.scan(lambda c, y: (c + y, c), x[0], x), (M,)),
        (lambda x, i: x[i], (M, struct(2, dtype=jnp.int32))),
        (lambda x: x.at[jnp.zeros(3, int)].add(1), (V,)),
        (lambda x: x >> 1, (struct(4, dtype=jnp.int32),)),
        (lax.sort, (struct(16384),)),
        (_conv(lhs_dilation=(2,)), (IMAGE, KERNEL)),
        (_conv(rhs_dilation=(2,), window_strides=(2,)), (IMAGE, KERNEL)),
        (lambda x: jnp.where(x > 0, x, jnp.tanh(x)).astype(jnp.bfloat16), (V,)),
        (lambda x: lax.bitcast_convert_type(x, jnp.int32), (V,)),
        (lambda x: jnp.broadcast_to(x[:, None], (8, 16384)).sum(), (V,)),
    ],
)
def test_what_the_documents_allow_passes(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    assert codes(function, *arguments) == set()


def test_an_unknown_custom_call_is_found() -> None:
    module = module_of(lambda x: jnp.linalg.eigh(x)[0], M)
    found = [item.text() for item in broken_rules(module) if item.code == "EHCA005"]
    assert found
    assert "not one of the 29 known targets" in found[0]


def test_a_known_custom_call_passes() -> None:
    call = hlo.Instruction(
        id=1, name="c", opcode="custom-call", shape=hlo.Shape("f32", (2,)), target="AwsNeuronSilu"
    )
    computation = hlo.Computation(id=1, name="main", instructions={1: call}, root=1)
    assert broken_rules(hlo.Module(computations={1: computation}, entry=1)) == ()
    assert len(rules.CUSTOM_CALLS) == 29


@pytest.mark.parametrize(
    ("opcode", "code"), [("all-reduce", "EVRF061"), ("reduce-scatter", "EVRF063")]
)
def test_integer_sums_between_chips_are_found(opcode: str, code: str) -> None:
    given = hlo.Instruction(id=1, name="p", opcode="parameter", shape=hlo.Shape("s32", (4,)))
    summed = hlo.Instruction(id=2, name="s", opcode=opcode, shape=given.shape, operands=(1,))
    main = hlo.Computation(id=1, name="main", instructions={1: given, 2: summed}, root=2)
    found = broken_rules(hlo.Module(computations={1: main}, entry=1))
    assert [item.code for item in found] == [code]


def test_a_rule_is_reported_once_and_names_what_broke_it() -> None:
    found = broken_rules(module_of(lambda x: lax.erf(lax.erf(x)) + lax.erf(x), V))
    assert [item.what for item in found] == ["erf"]
    assert found[0].text() == "erf: 'Unsupported operator: erf' (issue 1081, open) (NCC_EVRF001)"


def test_what_no_document_lists_is_told_and_not_refused() -> None:
    module = module_of(lambda x: jnp.isfinite(lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)), V)
    assert broken_rules(module) == ()
    assert assumptions(module) == ("is-finite", "round-nearest-even")


def test_every_code_of_a_rule_has_a_remedy() -> None:
    given = hlo.Shape("f32", (2,))
    refused = {
        item.code
        for opcode in rules._REFUSED
        for item in broken_rules(
            hlo.Module(
                computations={
                    1: hlo.Computation(
                        id=1,
                        name="main",
                        instructions={
                            1: hlo.Instruction(id=1, name="x", opcode=opcode, shape=given)
                        },
                        root=1,
                    )
                },
                entry=1,
            )
        )
    }
    assert refused <= CODES.keys()
    assert Broken("EVRF001", "a", "b").text() == "a: b (NCC_EVRF001)"


def test_no_operator_is_in_two_lists() -> None:
    lists = [rules.DOCUMENTED.keys(), rules.ASSUMED.keys(), rules._REFUSED.keys()]
    assert sum(map(len, lists)) == len(set().union(*lists))
