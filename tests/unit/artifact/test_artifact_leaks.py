"""The leak scan finds each kind in each dress, and nothing in random bytes."""

from __future__ import annotations

import base64
import contextlib
import gzip
import random
import sys
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.artifact import leaks
from runtime.artifact.leaks import KINDS, SCRUBBED_KINDS, leaks_in_executable, scrub_violations
from runtime.artifact.protobuf import (
    NotAMessageError,
    RawField,
    join,
    read_varint,
    split,
    write_varint,
)

NOISE = random.Random(3).randbytes(2000)
BYTECODE = b"ML\xefR\x0dMLIR22.0\x00" + NOISE[:100]

SAMPLES = [
    ("op_name", b"jit(grad)/model.layers.0.mlp/jvp()/dot_general"),
    ("op_name", b"transpose(jvp())/mul"),
    ("source_path", b"modeling_llama.py"),
    ("source_path", b"/srv/code/model/train.py"),
    ("source_path", b"xla/service/cpu/cpu_compiler.cc"),
    ("local_path", b"/home/someone/model"),
    ("local_path", b"/tmp/dump"),
    ("local_path", b"/strange/root/of/things"),
    ("local_path", b"./cuda_sdk_lib"),
    ("framework_name", b"jax._src.pjit"),
    ("framework_name", b"transformers.models.llama"),
    ("framework_name", b"torch/nn/modules"),
    ("mlir_bytecode", BYTECODE),
    ("mlir_bytecode", b"ML\\EFR\\0DMLIR"),
    ("mlir_bytecode", b"ML\\\\efR\\\\0d"),
    ("mlir_bytecode", b"ML\\xefR"),
    ("mlir_bytecode", b"ML\\357R"),
    ("mlir_bytecode", b'"body": "' + base64.b64encode(BYTECODE) + b'"'),
    ("triton_ir", b"tt.func public @flash(%arg0: !tt.ptr<f32>)"),
    ("mlir_text", b"%1 = stablehlo.dot_general %0, %0"),
    ("llvm_ir", b"BC\xc0\xde\x35\x14\x00\x00"),
    ("llvm_ir", b'target datalayout = "e-m:e"'),
    ("ptx", b".version 8.7\n.target sm_90a\n.address_size 64\n"),
    ("ptx", b".visible .entry fusion_1(\n"),
    ("unread", b"\x28\xb5\x2f\xfd\x04\x00"),
    ("unread", b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f"),
    ("function_name", b"jit_train_step"),
]
IDS = [f"{i}-{kind}" for i, (kind, _) in enumerate(SAMPLES)]


@pytest.mark.parametrize(("kind", "sample"), SAMPLES, ids=IDS)
def test_each_kind_is_found_where_it_lies(kind, sample):
    for before, after in ((b"", b""), (b"\x00", b"\x00"), (NOISE, NOISE), (b'"', b'"')):
        assert leaks(before + sample + after)[kind] >= 1


@pytest.mark.parametrize(("kind", "sample"), SAMPLES, ids=IDS)
@pytest.mark.parametrize("squeeze", [zlib.compress, gzip.compress])
def test_each_kind_is_found_in_compressed_parts(kind, sample, squeeze):
    inner = squeeze(b"\x00" * 40 + sample + b"\x00" * 40)
    assert leaks(NOISE + inner + NOISE)[kind] >= 1
    assert leaks(NOISE + squeeze(b"\x00" * 40 + inner) + NOISE)[kind] >= 1


def test_each_is_counted():
    assert leaks(b"\0".join([b"jit(f)/add"] * 7))["op_name"] == 7
    assert leaks(b"\0".join([BYTECODE] * 3))["mlir_bytecode"] == 3


def test_random_bytes_hold_nothing():
    assert leaks(random.Random(11).randbytes(2 << 20)) == {}


@given(st.binary(max_size=300))
def test_any_bytes_are_scanned(data):
    assert set(leaks(data)) <= set(KINDS)


def test_inflating_is_bounded(monkeypatch):
    # By its full name: the package's `leaks` is the function.
    monkeypatch.setattr(sys.modules[leaks.__module__], "_MAX_INFLATED", 1 << 20)
    bomb = zlib.compress(bytes(64 << 20), 1)
    tracemalloc.start()
    try:
        assert leaks(bomb) == {"unread": 1}  # its first MiB is scanned, the rest is not
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_truncated_streams_are_no_error():
    squeezed = zlib.compress(b"jit(f)/add " * 40)
    for size in range(0, len(squeezed), 3):
        leaks(squeezed[:size])


def test_names_in_our_own_description_are_told_but_no_violation(payload_maker):
    payload = payload_maker("cpu", 1, scrubbed=True)
    assert leaks(payload.to_bytes()) == {"tensor_name": 2}
    assert scrub_violations(payload) == {}


@pytest.mark.parametrize(("kind", "sample"), SAMPLES, ids=IDS)
def test_a_scrubbed_payload_holds_none_of_the_kinds(payload_maker, kind, sample):
    dirty = payload_maker("cpu", 1, executable=b"\0" + sample + b"\0", scrubbed=True)
    violations = scrub_violations(dirty)
    assert (kind in violations) == (kind in SCRUBBED_KINDS)
    open_about_it = payload_maker("cpu", 1, executable=b"\0" + sample + b"\0", scrubbed=False)
    assert scrub_violations(open_about_it) == {}


def field(number: int, value: bytes) -> bytes:
    return RawField.of(number, value).raw


def test_metadata_of_an_hlo_module_is_counted_exactly():
    # A name without any slash or parenthesis looks like no op name, and still is one.
    metadata = field(7, field(2, b"wq"))
    instructions = field(2, field(1, b"a") + metadata) * 3 + field(2, field(1, b"b"))
    module = field(1, b"m") + field(3, instructions) + field(17, field(1, b"f") + field(2, b"g"))
    body = field(1, field(1, field(1, module)))
    found = leaks_in_executable(write_varint(2) + field(2, b"") + body)
    assert found["op_name"] == 3
    assert found["source_path"] == 1
    assert found["function_name"] == 2  # of the module and of the frames
    assert found["hlo_module"] == 1


@given(st.lists(st.tuples(st.integers(1, 1 << 28), st.binary(max_size=40)), max_size=8))
def test_messages_divide_and_join_to_the_same_bytes(parts):
    message = b"".join(field(number, value) for number, value in parts)
    fields = split(message)
    assert [(f.number, f.value) for f in fields] == parts
    assert join(fields) == message


@given(st.integers(0, (1 << 64) - 1))
def test_varints(value):
    assert read_varint(write_varint(value), 0) == (value, len(write_varint(value)))


@given(st.binary(max_size=100))
def test_other_bytes_are_told_from_messages(data):
    with contextlib.suppress(NotAMessageError):
        assert join(split(data)) == data


@pytest.mark.parametrize("data", [b"\x00", b"\x0a\x05abc", b"\x0b", b"\xff" * 11, b"\x09\x01"])
def test_broken_messages(data):
    with pytest.raises(NotAMessageError):
        split(data)
