"""A CUDA executable is rewritten without names, and stays the same in all that runs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.artifact.leaks import SCRUBBED_KINDS, leaks_in_executable
from runtime.artifact.protobuf import join, split
from runtime.artifact.xla_forms import SplitProto, divide, field_value, gpu_executable
from runtime.compiler.scrub import cuda, scrub_cuda_executable
from runtime.spec import CompileError
from tests.unit.artifact import executables as by_hand

IR = b'{ir = "' + by_hand.escaped(by_hand.bytecode(b"tt", b"/home/me/kernel.py", b"load")) + b'"}'
WITH_IR = by_hand.cuda_executable(ir=IR)


@pytest.fixture(params=[True, False], ids=["in-the-table", "in-the-instruction"])
def executable(request) -> bytes:
    """Give an executable with a Triton call, whose IR stands in either place."""
    return by_hand.cuda_executable(ir=IR, table=request.param, ptx=b".target sm_90 // ptx")


def code_of(executable: bytes) -> SplitProto:
    return gpu_executable(divide(executable)[1])


def plain(executable: bytes) -> bytes:
    """Give all of an executable, its code decompressed."""
    header, body = divide(executable)
    rest = [f.raw for f in split(body) if f.number != 1]
    return b"\0".join([header, code_of(executable).merged(), *rest])


def test_what_was_there_is_gone(executable):
    before = leaks_in_executable(executable)
    for kind in ("op_name", "source_path", "stack_frame", "local_path", "triton_ir", "ptx"):
        assert before[kind] > 0
    assert b"relu.5" in plain(executable)
    scrubbed = scrub_cuda_executable(executable)
    assert leaks_in_executable(scrubbed) == {"hlo_module": 1, "kernel_name": 1}
    for trace in (b"jit_step", b"relu", b"main.9", b"Arg_0", b"wq", b"home", b"sdk_lib", b"ML\\"):
        assert trace not in plain(scrubbed)


def test_what_runs_is_the_same_to_the_byte(executable):
    before, after = code_of(executable), code_of(scrub_cuda_executable(executable))
    assert after.manifest == before.manifest
    assert [p.field for p in after.parts] == [p.field for p in before.parts]
    ptx, binary, graphs, constant, _rest = (part.data for part in after.parts)
    assert ptx == b""
    assert binary == by_hand.CUBIN
    assert (graphs, constant) == tuple(part.data for part in before.parts[2:4])
    kernel = field_value(after.parts[4].data, 13, 8, 3)
    assert kernel == b"flash"  # the symbol in the cubin


def test_a_step_still_finds_the_computation_that_it_calls(executable):
    rest = code_of(scrub_cuda_executable(executable)).parts[4].data
    thunks = [f.value for f in split(rest) if f.number == 13]
    called = field_value(thunks[1], 57, 3, 1, 30, 7)
    computations = [f.value for f in split(field_value(rest, 1, 1)) if f.number == 3]
    assert called == field_value(computations[0], 1)
    assert called != field_value(computations[1], 1)
    assert field_value(rest, 1, 1, 2) == field_value(computations[1], 1)


def test_other_calls_keep_their_configuration(monkeypatch):
    monkeypatch.setattr(by_hand, "TRITON_CALL", b"__cublas$lt$matmul")
    scrubbed = scrub_cuda_executable(by_hand.cuda_executable(ir=b'{"fusion":"cublas"}'))
    module = field_value(code_of(scrubbed).parts[4].data, 1, 1)
    assert [f.value for f in split(module) if f.number == 22] == [b"{}", b'{"fusion":"cublas"}']


def test_ptx_stays_where_there_is_no_binary():
    executable = by_hand.cuda_executable(ptx=b".target sm_90", binary=b"")
    scrubbed = scrub_cuda_executable(executable)
    assert code_of(scrubbed).parts[0].data == b".target sm_90"
    assert leaks_in_executable(scrubbed)["ptx"] == 1


def test_scrubbing_twice_changes_nothing(executable):
    once = scrub_cuda_executable(executable)
    assert scrub_cuda_executable(once) == once


def test_a_rewrite_that_would_touch_the_code_is_refused(executable, monkeypatch):
    def careless(message: bytes, kind: str, change) -> bytes:
        changed = rewrite(message, kind, change)
        if kind != "GpuExecutable" or change is cuda.skeleton_change:
            return changed
        return join([field for field in split(changed) if field.number != 2])

    rewrite = cuda.rewrite
    monkeypatch.setattr(cuda, "rewrite", careless)
    with pytest.raises(CompileError, match="what runs would not stay the same"):
        scrub_cuda_executable(executable)


def test_a_rewrite_that_would_rename_a_kernel_is_refused(executable, monkeypatch):
    class Careless(cuda.Scrubber):
        def __call__(self, tag: str, value: bytes) -> bytes | None:
            return b"k0" if tag == "kernel_name" else super().__call__(tag, value)

    monkeypatch.setattr(cuda, "Scrubber", Careless)
    with pytest.raises(CompileError, match="what runs would not stay the same"):
        scrub_cuda_executable(executable)


def test_other_forms_are_refused(executable):
    for data in (b"", executable[:-1], executable[:500], by_hand.cpu_executable()):
        with pytest.raises(CompileError, match="cannot be scrubbed"):
            scrub_cuda_executable(data)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_altered_bytes_are_refused(data):
    executable = bytearray(WITH_IR)
    at = data.draw(st.integers(0, len(executable) - 1))
    executable[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(CompileError):
        scrubbed = scrub_cuda_executable(bytes(executable))
        # What lies in the riegeli file is under its hashes: the change was outside.
        assert code_of(scrubbed) == code_of(scrub_cuda_executable(WITH_IR))


def test_scrubbed_kinds_hold_all_that_is_rewritten(executable):
    gone = set(leaks_in_executable(executable)) - set(
        leaks_in_executable(scrub_cuda_executable(executable))
    )
    assert gone <= set(SCRUBBED_KINDS)
