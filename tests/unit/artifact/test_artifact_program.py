"""The payload's description: what is made can be read, what is wrong is named."""

from __future__ import annotations

import contextlib
import dataclasses

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.artifact import BlockTable, Program, TargetPayload, TensorSpec
from runtime.artifact.partitions import MESH_AXES, Partitions
from runtime.artifact.program import DTYPES, ROLES
from runtime.spec import ArtifactError

SPECS = st.builds(
    TensorSpec,
    role=st.sampled_from(ROLES),
    name=st.text(max_size=30),
    shape=st.lists(st.integers(0, 1000), max_size=4).map(tuple),
    dtype=st.sampled_from(DTYPES),
)
SIGNATURES = st.lists(SPECS, max_size=6, unique_by=lambda s: (s.role, s.name)).map(tuple)
COSTS = st.floats(0, 1e20, allow_nan=False)


MESHES = st.one_of(
    st.tuples(st.tuples(st.sampled_from(MESH_AXES), st.integers(2, 8))),
    st.tuples(*(st.tuples(st.just(name), st.integers(2, 4)) for name in MESH_AXES)),
)


@st.composite
def cuts(draw, mesh, tensors: tuple[TensorSpec, ...]) -> tuple[tuple[int | None, ...], ...]:
    """Draw for each tensor dimensions that the axes of a mesh divide one after another, or none."""
    found = []
    for spec in tensors:
        rest, cut = list(spec.shape), []
        for _, size in mesh:
            cut.append(
                draw(st.sampled_from([None, *(i for i, n in enumerate(rest) if n % size == 0)]))
            )
            if cut[-1] is not None:
                rest[cut[-1]] //= size
        found.append(tuple(cut))
    return tuple(found)


@st.composite
def programs(draw, name: str) -> Program:
    inputs, outputs, partitions = draw(SIGNATURES), draw(SIGNATURES), None
    if draw(st.booleans()):
        mesh = draw(MESHES)
        partitions = Partitions(
            mesh=mesh, inputs=draw(cuts(mesh, inputs)), outputs=draw(cuts(mesh, outputs))
        )
    donated = draw(st.sets(st.integers(0, len(inputs) - 1))) if inputs else set()
    return Program(
        name=name,
        inputs=inputs,
        outputs=outputs,
        donated=tuple(sorted(donated)),
        executable=draw(st.binary(max_size=200)),
        peak_memory_bytes=draw(st.integers(0, 1 << 40)),
        flops=draw(COSTS),
        bytes_moved=draw(COSTS),
        form=draw(st.sampled_from(["pjrt", "vmfb", "neff"])),
        partitions=partitions,
    )


@st.composite
def payloads(draw) -> TargetPayload:
    rows, first = [], 0
    for name in sorted(draw(st.sets(st.text(max_size=20), max_size=5))):
        count = draw(st.integers(0, 50))
        rows.append((name, first, count))
        first += count
    return TargetPayload(
        target=draw(st.text(max_size=20)),
        programs={n: draw(programs(n)) for n in draw(st.sets(st.sampled_from(["grad", "apply"])))},
        blocks=BlockTable(block_size=4096, rows=tuple(rows)),
        cpu_name=draw(st.text(max_size=20)),
        cpu_features=tuple(draw(st.lists(st.text(max_size=10), max_size=5))),
        scrubbed=draw(st.booleans()),
        plain_forms=tuple(draw(st.lists(st.text(max_size=10), max_size=3))),
    )


@settings(max_examples=60)
@given(payloads())
def test_payload_comes_back(payload):
    assert TargetPayload.from_bytes(payload.to_bytes()) == payload


@settings(max_examples=60)
@given(payloads(), st.data())
def test_changed_payload_is_another_or_refused(payload, data):
    encoded = bytearray(payload.to_bytes())
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(ArtifactError):
        assert TargetPayload.from_bytes(bytes(encoded)) != payload


@pytest.fixture
def payload(payload_maker) -> TargetPayload:
    return payload_maker("cpu", 1)


def edited(payload: TargetPayload, edit) -> bytes:
    plain = cbor2.loads(payload.to_bytes())
    edit(plain)
    return cbor2.dumps(plain, canonical=True)


def split(mesh, inputs, outputs):
    """Give the edit that cuts the program's tensors along the axes of a mesh."""
    partitions = {"mesh": mesh, "inputs": inputs, "outputs": outputs}
    return lambda p: p["programs"]["forward"].update(partitions=partitions)


TWO = [["fsdp", 2]]
BOTH = [["fsdp", 2], ["tensor", 2]]


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (lambda p: p.update(schema="luma/payload/1"), r"payload\.schema"),
        (lambda p: p.update(more=1), r"payload\.more: unknown field"),
        (lambda p: p.pop("scrubbed"), r"payload\.scrubbed: missing"),
        (lambda p: p.update(scrubbed=1), r"payload\.scrubbed"),
        (lambda p: p.update(target=5), r"payload\.target"),
        (lambda p: p.update(cpu_features=[1]), r"payload\.cpu_features\[0\]"),
        (lambda p: p["programs"].update(train=p["programs"]["forward"]), "program.name: 'train'"),
        (lambda p: p["programs"]["forward"].pop("flops"), r"programs\.forward\.flops: missing"),
        (lambda p: p["programs"]["forward"].update(flops=float("inf")), "flops"),
        (lambda p: p["programs"]["forward"].update(flops=1), "flops"),
        (lambda p: p["programs"]["forward"].update(peak_memory_bytes=-1), "peak_memory_bytes"),
        (lambda p: p["programs"]["forward"].update(executable="text"), "executable"),
        (lambda p: p["programs"]["forward"].update(donated=[7]), "donated"),
        (lambda p: p["programs"]["forward"].update(donated=[1, 0]), "donated"),
        (lambda p: p["programs"]["forward"]["inputs"].append(["param"]), r"inputs\[2\]"),
        (
            lambda p: p["programs"]["forward"]["inputs"].append(["weight", "x", [1], "int32"]),
            "role: 'weight'",
        ),
        (
            lambda p: p["programs"]["forward"]["inputs"].append(["param", "x", [-1], "int32"]),
            "shape",
        ),
        (
            lambda p: p["programs"]["forward"]["inputs"].append(
                ["param", "x", [1 << 40, 1 << 40], "int32"]
            ),
            "shape",
        ),
        (
            lambda p: p["programs"]["forward"]["inputs"].append(["param", "x", [1], "object"]),
            "dtype: 'object'",
        ),
        (
            lambda p: p["programs"]["forward"]["inputs"].append(
                p["programs"]["forward"]["inputs"][0]
            ),
            "same role and name",
        ),
        (lambda p: p.update(plain_forms=["luma.attention", 1]), r"plain_forms\[1\]"),
        (lambda p: p["programs"]["forward"].pop("form"), r"forward\.form: missing"),
        (lambda p: p["programs"]["forward"].update(form="pickle"), r"forward\.form: 'pickle'"),
        (split([["fsdp", 1]], [[None], [None]], [[None]]), r"partitions\.mesh: 1"),
        (split([], [[], []], [[]]), r"partitions\.mesh: \(\) is not allowed; expected fsdp"),
        (split([["data", 2]], [[None], [None]], [[None]]), r"partitions\.mesh: \('data',\)"),
        (
            split(BOTH[::-1], [[None] * 2] * 2, [[None] * 2]),
            r"partitions\.mesh: \('tensor', 'fsdp'",
        ),
        (
            split([["fsdp"]], [[None], [None]], [[None]]),
            r"partitions\.mesh: .*expected \[name, size",
        ),
        (split([*BOTH, ["fsdp", 2]], [], []), r"partitions\.mesh: .*at most 2 items"),
        (split(TWO, [[0]], [[None]]), r"partitions\.inputs: 1 is not allowed; expected 2 cuts"),
        (split(TWO, [[0], [2]], [[None]]), r"partitions\.inputs: 2"),
        (split(TWO, [[-1], [0]], [[None]]), r"partitions\.inputs: -1"),
        (split(TWO, [[0, None], [0]], [[None]]), r"partitions\.inputs: .*expected 1 dimensions"),
        (
            split([["fsdp", 4]], [[0], [0]], [[None]]),
            r"partitions\.inputs: 0 .* a dimension of \[2, 4\] that the 4 chips of 'fsdp' divide",
        ),
        (
            split(BOTH, [[None, None], [0, 0]], [[None, None]]),
            r"partitions\.inputs: 0 .* that the 2 chips of 'tensor' divide",
        ),
        (split(TWO, [[0], [0]], [[True]]), r"partitions\.outputs"),
        (lambda p: p["programs"]["forward"].update(partitions=[]), "partitions"),
        (lambda p: p["blocks"]["rows"].append(["model.a", 1, 1]), r"rows\[1\]"),
        (lambda p: p["blocks"]["rows"].append(["model.z", 5, 1]), "first_block"),
        (lambda p: p["blocks"].update(block_size=0), "block_size"),
    ],
)
def test_wrong_fields_are_named(payload, edit, match):
    with pytest.raises(ArtifactError, match=match):
        TargetPayload.from_bytes(edited(payload, edit))


def test_a_program_cannot_stand_under_another_name(payload):
    with pytest.raises(ArtifactError, match=r"payload\.programs\.grad"):
        dataclasses.replace(payload, programs={"grad": payload.programs["forward"]})


def test_constructors_refuse_what_a_reader_refuses():
    with pytest.raises(ArtifactError, match="dtype"):
        TensorSpec(role="param", name="w", shape=(1,), dtype="float8")
    with pytest.raises(ArtifactError, match="first_block"):
        BlockTable(block_size=4096, rows=(("a", 0, 2), ("b", 3, 1)))


def test_cuts_that_the_chips_divide_are_taken(payload):
    plain = cbor2.loads(payload.to_bytes())
    split(BOTH, [[1, 0], [None, 0]], [[None, None]])(plain)
    read = TargetPayload.from_bytes(cbor2.dumps(plain, canonical=True)).programs["forward"]
    assert read.partitions == Partitions(
        mesh=(("fsdp", 2), ("tensor", 2)),
        inputs=((1, 0), (None, 0)),
        outputs=((None, None),),
    )
    assert read.chips == 4
    assert payload.programs["forward"].chips == 1


def test_a_part_is_what_the_cuts_leave():
    split = Partitions(mesh=(("fsdp", 2), ("tensor", 4)), inputs=(), outputs=())
    assert split.part((8, 16), (None, None)) == (8, 16)
    assert split.part((8, 16), (1, 0)) == (2, 8)
    assert split.part((8, 16), (0, 0)) == (1, 16)
    assert split.axes_of(3, (2, 0)) == (("tensor",), (), ("fsdp",))
    # The part of one tensor-parallel chip is one piece: `fsdp` divides it, not the other way.
    assert split.axes_of(2, (0, 0)) == (("tensor", "fsdp"), ())


def test_number_of_blocks():
    table = BlockTable(block_size=4096, rows=(("a", 0, 2), ("b", 2, 3)))
    assert table.n_blocks == 5
