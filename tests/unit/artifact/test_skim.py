"""Skimming a payload judges as reading it whole does, and keeps none of its executables."""

from __future__ import annotations

import dataclasses
import itertools

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.artifact import _skim
from runtime.artifact._skim import PayloadSkimmer
from runtime.artifact.payloads import PayloadDescription
from runtime.artifact.program import TargetPayload
from runtime.spec import ArtifactError
from tests.unit.artifact.conftest import make_payload

PROGRAMS = ("grad", "apply", "forward")
EXECUTABLES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([23, 24, 255, 256, 65_535, 65_536]).map(bytes),  # where heads grow
)


@st.composite
def payloads(draw) -> TargetPayload:
    base = make_payload(draw(st.text(max_size=64)), 0)
    programs = {
        name: dataclasses.replace(
            base.programs["forward"], name=name, executable=draw(EXECUTABLES), donated=()
        )
        for name in draw(st.sets(st.sampled_from(PROGRAMS)))
    }
    features = tuple(draw(st.lists(st.text(max_size=30), max_size=4)))
    return dataclasses.replace(base, programs=programs, cpu_features=features)


def skimmed(data: bytes, cuts: list[int]) -> tuple[str, PayloadDescription]:
    """Skim `data` in the pieces between `cuts`."""
    skimmer = PayloadSkimmer()
    bounds = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(bounds):
        skimmer.feed(data[start:end])
    return skimmer.describe()


def read(data: bytes) -> tuple[str, PayloadDescription]:
    payload = TargetPayload.from_bytes(data)
    return payload.target, PayloadDescription.of(payload)


def outcome(judge, data: bytes) -> tuple[str, PayloadDescription] | None:
    """Give what a reader tells of `data`, None where it refuses it."""
    try:
        return judge(data)
    except ArtifactError:
        return None


def draw_cuts(data, size: int) -> list[int]:
    return data.draw(st.lists(st.integers(0, size), max_size=6))


@settings(max_examples=60)
@given(payloads(), st.data())
def test_a_payload_is_described_as_if_read_whole(payload, data):
    encoded = payload.to_bytes()
    assert skimmed(encoded, draw_cuts(data, len(encoded))) == read(encoded)


def test_it_may_come_byte_by_byte():
    encoded = make_payload("cpu", 1, 300).to_bytes()
    assert skimmed(encoded, list(range(1, len(encoded)))) == read(encoded)


@settings(max_examples=300)
@given(st.data())
def test_a_changed_payload_is_judged_as_if_read_whole(data):
    encoded = bytearray(make_payload("cpu", 1, 60).to_bytes())
    for _ in range(data.draw(st.integers(1, 2))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cuts = draw_cuts(data, len(encoded))
    changed = bytes(encoded)
    assert outcome(lambda d: skimmed(d, cuts), changed) == outcome(read, changed)


@settings(max_examples=100)
@given(payloads(), st.data())
def test_a_cut_or_prolonged_payload_is_refused_by_both(payload, data):
    encoded = payload.to_bytes()
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    for bad in (cut, encoded + data.draw(st.binary(min_size=1, max_size=12))):
        cuts = draw_cuts(data, len(bad))
        with pytest.raises(ArtifactError, match="payload: "):
            skimmed(bad, cuts)
        assert outcome(read, bad) is None


ITEMS = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(1 << 64), (1 << 64) - 1), st.floats(),
        st.text(max_size=30), st.binary(max_size=300),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
FIELDS = ("target", "programs", "blocks", "cpu_name", "cpu_features", "scrubbed", "plain_forms")
PROGRAM_FIELDS = ("inputs", "donated", "executable", "form", "partitions", "flops")


@settings(max_examples=200)
@given(ITEMS, st.sampled_from(FIELDS), st.sampled_from(PROGRAM_FIELDS), st.booleans())
def test_any_item_in_a_field_is_judged_as_if_read_whole(item, field, program_field, deep):
    plain = cbor2.loads(make_payload("cpu", 1, 60).to_bytes())
    place = plain["programs"]["forward"] if deep else plain
    place[program_field if deep else field] = item
    encoded = cbor2.dumps(plain, canonical=True)
    assert outcome(lambda d: skimmed(d, [40]), encoded) == outcome(read, encoded)


@pytest.mark.parametrize(
    "head",
    [b"\x58\x05", b"\x59\x00\x05", b"\x5a\x00\x00\x00\x05", b"\x5b" + bytes(7) + b"\x05",
     b"\x5f\x45", b"\x5c", b"\x5d", b"\x5e"],
    ids=["8 bits", "16 bits", "32 bits", "64 bits", "in parts", "28", "29", "30"],
)  # fmt: skip
def test_a_byte_string_of_another_form_is_refused(head):
    encoded = make_payload("cpu", 1, executable=b"ABCDE").to_bytes()
    assert encoded.count(b"\x45ABCDE") == 1
    changed = encoded.replace(b"\x45ABCDE", head + b"ABCDE")
    for judge in (read, lambda d: skimmed(d, [])):
        with pytest.raises(ArtifactError, match="payload: "):
            judge(changed)


def test_what_is_kept_does_not_follow_the_executable():
    small, large = PayloadSkimmer(), PayloadSkimmer()
    small.feed(make_payload("cpu", 1, 1000).to_bytes())
    large.feed(make_payload("cpu", 1, 60_000).to_bytes())
    assert len(small._kept) == len(large._kept) < 1000


@pytest.mark.parametrize("first", [b"\x7b" + b"\xff" * 8, b"\x65hello" * 100], ids=["one", "many"])
def test_what_is_kept_has_a_limit(monkeypatch, first):
    monkeypatch.setattr(_skim, "MAX_SKIMMED_BYTES", 500)
    with pytest.raises(ArtifactError, match="more than 500 bytes beside its executables"):
        PayloadSkimmer().feed(first)
