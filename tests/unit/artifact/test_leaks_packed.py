"""What lies in executables under wrappings is found there, and counted once."""

from __future__ import annotations

import base64
import contextlib
import random
import sys
import time
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.artifact import leaks
from runtime.artifact.leaks import KINDS, leaks_in_executable, survey, totals
from runtime.artifact.mlir_bytecode import bytecode_kind
from runtime.artifact.protobuf import NotAMessageError, split, write_varint
from runtime.artifact.riegeli import read_records, write_records
from runtime.artifact.xla_forms import (
    SplitProto,
    divide,
    gpu_executable,
    telling_fields,
    unite,
)
from runtime.artifact.xla_schema import MESSAGES, TAGS, rewrite, walk
from tests.unit.artifact import executables as by_hand

TRITON = by_hand.bytecode(b"builtin", b"tt", b"arith", b"flash")
MOSAIC = by_hand.bytecode(b"builtin", b"tpu", b"matmul")
STABLEHLO = by_hand.bytecode(b"builtin", b"stablehlo")
NOISE = random.Random(5).randbytes(500)


@pytest.mark.parametrize(
    ("data", "kind"), [(TRITON, "triton_ir"), (MOSAIC, "mosaic_ir"), (STABLEHLO, "mlir_bytecode")]
)
def test_bytecode_is_told_by_its_dialects_in_any_dress(data, kind):
    escaped = by_hand.escaped(data)
    dresses = [
        data,
        b'{ir = "' + escaped + b'", name = "k"}',
        b'{ir = "' + escaped.replace(b"\\", b"\\\\") + b'"}',
        b'{"body":"' + base64.b64encode(data) + b'"}',
        zlib.compress(data),
        write_records([b"x", data]),
        write_records([write_records([b'"' + escaped + b'"'])]),
    ]
    for dress in dresses:
        assert leaks(NOISE + dress) == {kind: 1}


def test_bytecode_that_is_cut_is_still_bytecode():
    for size in range(4, len(TRITON)):
        assert bytecode_kind(TRITON[:size], 0)[0] in ("mlir_bytecode", "triton_ir")
        assert sum(leaks(TRITON[:size]).values()) == 1


def test_what_a_riegeli_file_holds_is_counted_once():
    text = b"jit(f)/add " * 3
    assert leaks(write_records([text, b"/home/someone/x"])) == {"op_name": 3, "local_path": 1}


def test_a_riegeli_file_that_is_not_whole_is_unread():
    whole = write_records([b"jit(f)/add"])
    for altered in (whole[:-1], whole[:90] + b"?" + whole[91:]):
        assert leaks(NOISE + altered)["unread"] == 1


def test_more_than_the_scan_inflates_is_unread(monkeypatch):
    monkeypatch.setattr(sys.modules[leaks.__module__], "_MAX_INFLATED", 1 << 20)
    assert leaks(zlib.compress(bytes(1 << 20))) == {}
    assert leaks(zlib.compress(bytes((1 << 20) + 1))) == {"unread": 1}


def test_wrappings_beyond_the_limit_are_unread():
    data = b"jit(f)/add" * 40
    for _ in range(8):
        data = write_records([data])
    assert leaks(data) == {"unread": 1}


def test_all_of_a_scan_together_is_bounded(monkeypatch):
    monkeypatch.setattr(sys.modules[leaks.__module__], "_MAX_SCANNED", 3 << 20)
    bombs = [zlib.compress(bytes(2 << 20), 1) for _ in range(40)]
    tracemalloc.start()
    try:
        assert leaks(b"--".join(bombs))["unread"] >= 1
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


HOSTILE = {
    # Streams of stored blocks that never end, each reaching to the end of the file.
    "zlib": b"\x78\x9c\x00\x02\x00\xfd\xff" * 5_000,
    # Files whose signature is right and whose second chunk's data, to the end, was altered.
    "riegeli": write_records([bytes(60_000)])[:200] * 600 + bytes(60_000),
    "bytecode": b"ML\xefR\x01\0\x00\xff\xff\xff\xff" * 20_000,
    "base64": base64.b64encode(b"ML\xefR" * 50_000),
    "escapes": b"ML\\EFR" + b"\\" * 200_000,
    "slashes": b"/aa" * 100_000 + b"/.c" * 1000,
    "parentheses": b"jit(" * 50_000 + b"a.b/" * 50_000,
    "fields": write_varint(0) + b"\x08\x00" * 200_000,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.timeout(60)
def test_made_to_be_slow_it_is_scanned_in_bounded_time(name):
    started = time.perf_counter()
    leaks(HOSTILE[name])
    assert time.perf_counter() - started < 20


def test_streams_that_never_end_use_the_scan_up(monkeypatch):
    monkeypatch.setattr(sys.modules[leaks.__module__], "_MAX_SCANNED", 1 << 20)
    assert leaks(HOSTILE["zlib"]) == {"unread": 1}


def test_files_that_are_not_whole_are_tried_a_few_times_only(monkeypatch):
    tries = []

    def counted(data: bytes, *, limit: int) -> list[bytes]:
        tries.append(len(data))
        return read_records(data, limit=limit)

    monkeypatch.setattr(sys.modules[leaks.__module__], "read_records", counted)
    assert leaks(HOSTILE["riegeli"])["unread"] > 0
    assert 0 < len(tries) < 60


# Field numbers on the way to what tells, read in XLA's .proto files.
PLACES = [
    ("GpuExecutable", (13, 1, 1), "hlo_name"),
    ("GpuExecutable", (13, 2, 1, 1, 1), "hlo_name"),  # sequential_thunk
    ("GpuExecutable", (13, 6, 2, 1, 1, 1), "hlo_name"),  # conditional_thunk
    ("GpuExecutable", (13, 7, 2, 1, 1, 1), "hlo_name"),  # while_thunk's condition
    ("GpuExecutable", (13, 7, 3, 1, 1, 1), "hlo_name"),  # and body
    ("GpuExecutable", (13, 16, 1, 1, 3, 1), "hlo_name"),  # host_execute_start_thunk's module
    ("GpuExecutable", (13, 16, 1, 3, 6, 1, 2, 1), "hlo_name"),  # and its steps
    ("GpuExecutable", (13, 18, 1, 1, 1, 1), "hlo_name"),  # dynamic_slice_thunk
    ("GpuExecutable", (13, 18, 7, 3, 1, 17, 1), "source_path"),
    ("GpuExecutable", (13, 30, 7), "hlo_name"),  # custom_call_thunk's called computation
    ("GpuExecutable", (13, 44, 6), "hlo_name"),  # send_thunk
    ("GpuExecutable", (13, 45, 6), "hlo_name"),  # recv_thunk
    ("GpuExecutable", (13, 47, 2, 1, 1), "hlo_name"),  # collective_group_thunk
    ("GpuExecutable", (13, 57, 3, 1, 1, 1), "hlo_name"),  # async_start_thunk
    ("GpuExecutable", (13, 60, 6, 1, 1, 1), "hlo_name"),  # dynamic_slice_fusion_thunk
    ("GpuExecutable", (13, 8, 3), "kernel_name"),
    ("GpuExecutable", (13, 36, 3, 1), "kernel_name"),
    ("GpuExecutable", (9, 3), "hlo_name"),  # program_shape.parameter_names
    ("GpuExecutable", (1, 1, 3, 2, 88), "op_name"),  # original_value
    ("GpuExecutable", (1, 1, 3, 2, 40, 7), "op_name"),  # sharding.metadata
    ("GpuExecutable", (1, 1, 3, 2, 40, 5, 7), "op_name"),  # of a tuple
    ("GpuExecutable", (1, 1, 20), "op_name"),  # original_value_recovery_table
    ("GpuExecutable", (1, 1, 17, 2), "frame_function"),
    ("GpuExecutable", (2, 1, 3, 2), "hlo_name"),  # logical buffer's instruction
    ("GpuExecutable", (2, 4, 1, 3), "hlo_name"),  # heap trace's computation
    ("ExecutableAndOptions", (1, 6, 1, 2, 2), "module_name"),
    ("ExecutableAndOptions", (1, 6, 1, 3, 1, 1, 2, 1), "hlo_name"),  # call_thunk
    ("ExecutableAndOptions", (1, 6, 1, 4, 1, 1, 2, 1), "hlo_name"),  # conditional_thunk
    ("ExecutableAndOptions", (1, 6, 1, 10, 2, 1, 2, 1), "hlo_name"),  # while_thunk
    ("ExecutableAndOptions", (2, 3, 3), "debug_options"),
    ("IfrtHeader", (6, 2, 7), "op_name"),
]


@pytest.mark.parametrize(("kind", "path", "tag"), PLACES)
def test_what_tells_is_found_at_its_place(kind, path, tag):
    message = b"telling"
    for number in reversed(path):
        message = by_hand.field(number, message)
    assert list(walk(message, kind)) == [(tag, b"telling")]


def test_names_of_a_cpu_executable_are_counted_exactly():
    found = leaks_in_executable(by_hand.cpu_executable())
    # "wq" looks like no op name, and is one; so does "max.1" like no name at all.
    assert (found["op_name"], found["stack_frame"], found["hlo_module"]) == (3, 2, 1)
    assert found["source_path"] == 1  # of the frames
    names = {v for t, v in telling_fields(by_hand.cpu_executable()) if t == "hlo_name"}
    assert names >= {b"main.9", b"relu.5", b"Arg_0.1", b"flash.3", b"model.wq", b"while.1"}
    assert found["hlo_name"] == 14


def test_names_of_a_cuda_executable_are_counted_exactly():
    ir = b'{ir = "' + by_hand.escaped(TRITON) + b'"}'
    found = leaks_in_executable(by_hand.cuda_executable(ir=ir, ptx=b".target sm_90"))
    assert (found["op_name"], found["stack_frame"], found["hlo_module"]) == (3, 2, 1)
    assert (found["triton_ir"], found["ptx"], found["local_path"]) == (1, 1, 4)
    # Two of the module's, two of the steps' and one of the header's.
    assert found["function_name"] >= 4
    assert "unread" not in found


def test_a_survey_says_where_with_examples(payload_maker):
    payload = payload_maker("cpu", 1, executable=by_hand.cpu_executable())
    found = survey(payload)["forward"]
    assert {leak.kind: leak.count for leak in found} == leaks(payload.to_bytes()) == totals(found)
    examples = {leak.kind: leak.examples for leak in found}
    assert examples["local_path"] == ("/home/someone/cuda", "./cuda_sdk_lib")
    assert examples["op_name"] == ("wq",)
    assert all(len(texts) <= 3 and all(len(t) <= 400 for t in texts) for texts in examples.values())


def test_the_table_leads_only_to_what_it_explains():
    known = set(MESSAGES) | set(TAGS)
    assert {what for fields in MESSAGES.values() for what in fields.values()} <= known


def test_a_rewrite_that_changes_nothing_keeps_every_byte():
    _, body = divide(by_hand.cpu_executable())
    assert rewrite(body, "ExecutableAndOptions", lambda _tag, value: value) == body
    # Also where a varint is written longer than it need be.
    odd = b"\x0a\x83\x00abc"
    assert rewrite(odd, "Module", lambda _tag, value: value) == odd


def test_messages_nested_without_end_are_refused():
    thunks = by_hand.field(13, b"")
    for _ in range(3000):
        thunks = by_hand.field(2, by_hand.field(1, thunks))
    with pytest.raises(NotAMessageError, match="nested deeper"):
        list(walk(by_hand.field(13, thunks), "GpuExecutable"))


def test_split_protos_read_back():
    header, body = divide(by_hand.cuda_executable())
    assert unite(header, body) == by_hand.cuda_executable()
    code = gpu_executable(body)
    assert code.type_name == "xla.gpu.GpuExecutableProto"
    assert [part.field for part in code.parts] == [3, 4, None, None, None]
    assert SplitProto.from_bytes(code.to_bytes()) == code
    merged = [f for f in split(code.merged()) if f.number == 4]
    assert [f.value for f in merged] == [by_hand.CUBIN]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "without a manifest"),
        ([by_hand.manifest(b"a", 1)], "tells of 1 records, but there are 0"),
        ([by_hand.manifest(b"a", 1), b"", b""], "tells of 1 records, but there are 2"),
        (
            [by_hand.field(2, by_hand.field(3, by_hand.field(1, b"\x08\x01\x10\x02"))), b""],
            "within another",
        ),
    ],
)
def test_split_protos_of_other_forms_are_refused(records, message):
    with pytest.raises(NotAMessageError, match=message):
        SplitProto.from_bytes(write_records(records))


EXECUTABLES = [by_hand.cpu_executable(), by_hand.cuda_executable(ir=b'"' + TRITON + b'"')]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_altered_executables_are_scanned_without_error(data):
    executable = bytearray(data.draw(st.sampled_from(EXECUTABLES)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(executable) - 1))
        if data.draw(st.booleans()):
            executable[at] = data.draw(st.integers(0, 255))
        else:
            size = data.draw(st.integers(1, 200))
            executable[at : at + size] = data.draw(st.binary(max_size=20))
            if not executable:
                break
    assert set(leaks(bytes(executable))) <= set(KINDS)
    with contextlib.suppress(NotAMessageError, ValueError):
        telling_fields(bytes(executable))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_cut_executables_are_scanned_without_error(data):
    executable = data.draw(st.sampled_from(EXECUTABLES))
    assert set(leaks(executable[: data.draw(st.integers(0, len(executable)))])) <= set(KINDS)


def test_a_header_longer_than_the_executable_is_refused():
    with pytest.raises(NotAMessageError, match="a header of 500 bytes"):
        divide(write_varint(500) + b"short")
