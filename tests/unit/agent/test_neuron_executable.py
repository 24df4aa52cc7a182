"""The loader of NEFFs against a stand-in for libnrt that is compiled here and really computes."""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.agent import neuron_executable
from runtime.agent.neuron_executable import NeuronLoader, Runtime, load
from runtime.artifact.program import Program, TensorSpec
from runtime.spec import ArtifactError
from tests.unit.artifact.test_neff import neff

SOURCE = Path(__file__).with_name("stub_nrt.c")
A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.full((2, 3), 10, np.float32)


class Stub:
    """The stand-in, seen past the loader: its log of calls and what is still allocated."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._library = ctypes.CDLL(self.path)
        self._library.stub_calls.restype = ctypes.c_char_p

    def calls(self) -> list[str]:
        """The calls since the last reset, in order."""
        return self._library.stub_calls().decode().split()

    def reset(self) -> None:
        """Forget the calls."""
        self._library.stub_reset()

    def live(self) -> int:
        """What is allocated, the runtime itself included."""
        return self._library.stub_live()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Stub:
    """The stand-in, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here to make the stand-in for libnrt with")
    path = tmp_path_factory.mktemp("nrt") / "libnrt.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(path), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Stub(path)


@pytest.fixture
def stub(library: Stub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """The stand-in with an empty log; whatever a test does, nothing may be left."""
    monkeypatch.delenv("STUB_NRT_FAIL", raising=False)
    library.reset()
    yield library
    assert library.live() == 0


def spec(name: str) -> TensorSpec:
    """One float32 [2, 3] argument."""
    return TensorSpec(role="param", name=name, shape=(2, 3), dtype="float32")


def program(what: bytes = b"add", results: int = 1, **changed: Any) -> Program:
    """A program whose NEFF's name says what the stand-in computes."""
    fields: dict[str, Any] = {
        "name": "forward",
        "inputs": (spec("a"), spec("b")),
        "outputs": tuple(spec(f"r{i}") for i in range(results)),
        "donated": (),
        "executable": neff(name=what),
        "form": "neff",
        "peak_memory_bytes": 0,
        "flops": 0.0,
        "bytes_moved": 0.0,
    }
    return Program(**{**fields, **changed})


def test_a_program_computes_and_leaves_nothing_behind(stub: Stub) -> None:
    loaded = load(program(), runtime=Runtime(stub.path))
    for shift in (0, 5):
        (result,) = loaded.run([A + shift, B])
        np.testing.assert_array_equal(result, A + shift + B)
    loaded.close()
    loaded.close()


def test_the_calls_come_in_the_documented_order(stub: Stub) -> None:
    loaded = load(program(), runtime=Runtime(stub.path))
    loaded.run([A, B])
    loaded.close()
    assert stub.calls() == [
        "nrt_init",
        "nrt_load",
        "nrt_allocate_tensor_set",
        "nrt_allocate_tensor_set",
        "nrt_get_model_tensor_info",
        "nrt_free_model_tensor_info",
        *["nrt_tensor_allocate", "nrt_add_tensor_to_tensor_set"] * 3,
        *["nrt_tensor_write"] * 2,
        "nrt_execute",
        "nrt_tensor_read",
        *["nrt_destroy_tensor_set"] * 2,
        *["nrt_tensor_free"] * 3,
        "nrt_unload",
        "nrt_close",
    ]


def test_arguments_and_results_are_bound_by_name_not_by_the_runtimes_order(stub: Stub) -> None:
    loaded = load(program(b"swap", results=2), runtime=Runtime(stub.path))
    first, second = loaded.run([A, B])
    np.testing.assert_array_equal(first, B)
    np.testing.assert_array_equal(second, A)
    loaded.close()


def test_two_programs_share_one_runtime(stub: Stub) -> None:
    runtime = Runtime(stub.path)
    one, two = load(program(), runtime=runtime), load(program(b"swap", 2), runtime=runtime)
    one.close()
    np.testing.assert_array_equal(two.run([A, B])[0], B)
    two.close()
    assert (stub.calls().count("nrt_init"), stub.calls().count("nrt_close")) == (1, 1)


def test_the_loader_gives_programs_arrays_of_the_host(stub: Stub) -> None:
    """What one program gave is the next one's argument, as the trainer passes sums on."""
    loader = NeuronLoader(stub.path)
    add, swap = loader.load(program()), loader.load(program(b"swap", 2))
    source = A.copy()
    ours, lent = add.device_array(0, source), add.lent_array(1, B)
    source[:] = -1
    total = add.run([ours, lent])[0]
    np.testing.assert_array_equal(loader.host_view(total), A + B)
    np.testing.assert_array_equal(loader.host_view(swap.run([total, lent])[1]), A + B)
    add.close()
    swap.close()
    assert (stub.calls().count("nrt_init"), stub.calls().count("nrt_close")) == (1, 1)


def test_arrays_with_strides_are_copied_rightly(stub: Stub) -> None:
    loaded = load(program(), runtime=Runtime(stub.path))
    turned = np.ascontiguousarray(A.T).T
    np.testing.assert_array_equal(loaded.run([turned, B])[0], A + B)
    loaded.close()


@pytest.mark.parametrize(
    "call",
    [
        "nrt_init",
        "nrt_load",
        "nrt_allocate_tensor_set",
        "nrt_get_model_tensor_info",
        "nrt_tensor_allocate",
        "nrt_add_tensor_to_tensor_set",
    ],
)
def test_a_call_that_fails_while_loading_leaves_nothing_behind(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setenv("STUB_NRT_FAIL", call)
    monkeypatch.setenv("STUB_NRT_STATUS", "4")
    with pytest.raises(ArtifactError, match=rf"{call} failed: NRT_RESOURCE \(4\)"):
        load(program(), runtime=Runtime(stub.path))


@pytest.mark.parametrize("call", ["nrt_tensor_write", "nrt_execute", "nrt_tensor_read"])
def test_a_run_that_fails_says_why_and_the_program_can_run_again(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    loaded = load(program(), runtime=Runtime(stub.path))
    monkeypatch.setenv("STUB_NRT_FAIL", call)
    monkeypatch.setenv("STUB_NRT_STATUS", "1003")
    with pytest.raises(ArtifactError, match="NRT_EXEC_COMPLETED_WITH_NUM_ERR"):
        loaded.run([A, B])
    monkeypatch.delenv("STUB_NRT_FAIL")
    np.testing.assert_array_equal(loaded.run([A, B])[0], A + B)
    loaded.close()


def test_an_unload_that_fails_still_closes_the_runtime(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(program(), runtime=Runtime(stub.path))
    monkeypatch.setenv("STUB_NRT_FAIL", "nrt_unload")
    with pytest.raises(ArtifactError, match="nrt_unload failed: NRT_FAILURE"):
        loaded.close()
    assert stub.calls()[-1] == "nrt_close"
    assert stub.live() == 1  # the model that the runtime did not let go
    monkeypatch.delenv("STUB_NRT_FAIL")
    library = ctypes.CDLL(stub.path)
    library.nrt_init(1, b"", b"")
    library.nrt_unload.argtypes = [ctypes.c_void_p]
    assert library.nrt_unload(loaded._model) == 0
    library.nrt_close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([A], "takes 2 arrays and got 1"),
        ([A.astype(np.float64), B], r"argument 0 \(param 'a'\) is float64\[2, 3\]"),
        ([A, B[:1]], r"argument 1 \(param 'b'\) is float32\[1, 3\]; expected float32\[2, 3\]"),
    ],
)
def test_arguments_are_checked_before_anything_is_written(
    stub: Stub, given: list[np.ndarray], message: str
) -> None:
    loaded = load(program(), runtime=Runtime(stub.path))
    stub.reset()
    with pytest.raises(ArtifactError, match=message):
        loaded.run(given)
    assert stub.calls() == []
    loaded.close()


def test_a_closed_program_does_not_run(stub: Stub) -> None:
    loaded = load(program(), runtime=Runtime(stub.path))
    loaded.close()
    with pytest.raises(ArtifactError, match="program 'forward' is closed"):
        loaded.run([A, B])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"outputs": (spec("r"), spec("s"))}, "its NEFF has 1 outputs, and its signature 2"),
        (
            {"inputs": (spec("a"), dataclasses.replace(spec("b"), dtype="int32"))},
            r"inputs\[1\] of its NEFF is float32\[2, 3\] of 24 bytes; its signature says int32",
        ),
        (
            {"outputs": (dataclasses.replace(spec("r"), shape=(4,)),)},
            r"its signature says float32\[4\] of 16",
        ),
    ],
)
def test_a_neff_that_is_not_the_signatures_is_refused(
    stub: Stub, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        load(program(**changed), runtime=Runtime(stub.path))


@pytest.mark.parametrize(
    ("executable", "message"),
    [
        (neff()[:-1], "NEFF: its header states"),
        (neff(feature_bits=0x100), "which this runtime lacks"),
        (neff(requested_tpb_count=2), "needs 2 NeuronCores and the node gives 1"),
    ],
)
def test_a_neff_that_cannot_run_here_never_reaches_the_runtime(
    stub: Stub, executable: bytes, message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        load(program(executable=executable), runtime=Runtime(stub.path))
    assert stub.calls() == []


def test_another_form_of_program_is_refused(stub: Stub) -> None:
    with pytest.raises(ArtifactError, match="has the form 'pjrt'; expected 'neff'"):
        load(program(form="pjrt"), runtime=Runtime(stub.path))


def test_a_node_without_the_runtime_is_told_what_to_install() -> None:
    with pytest.raises(ArtifactError, match="is not there") as caught:
        Runtime("/nowhere/libnrt.so.1")
    assert "aws-neuronx-runtime-lib" in str(caught.value.remedy)


def test_a_library_without_the_calls_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "libnrt.so.1"
    empty.write_bytes(b"no library")
    with pytest.raises(ArtifactError, match="cannot be used"):
        Runtime(str(empty))


def test_the_status_codes_are_the_documented_ones() -> None:
    assert neuron_executable.STATUS[10] == "NRT_UNSUPPORTED_NEFF_VERSION"
    assert neuron_executable.STATUS[1005] == "NRT_EXEC_NC_BUSY"
