"""A node's loader of IREE modules: its checks, its errors, and what it runs on IREE's CPU driver.

What runs is written by hand in StableHLO, so nothing of the compiler's tracing is in it. Tests that
need IREE are slow and skip where the extra `amd` is not installed.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from runtime.agent.arguments import check_arguments
from runtime.agent.iree_executable import CPU_DRIVER, host_view, load
from runtime.artifact.program import Program, TensorSpec
from runtime.compiler.targets.iree_compile import iree_compile
from runtime.spec import ArtifactError
from tests.unit.iree_support import CPU_FLAGS, needs_iree

MODULE = b"""
module @step {
  func.func public @main(%state: tensor<2x3xf32> {tf.aliasing_output = 0 : i32},
                         %rate: tensor<f32>,
                         %unused: tensor<4xi32>) -> (tensor<2x3xf32>, tensor<i32>, tensor<3xi1>) {
    %factor = stablehlo.broadcast_in_dim %rate, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %next = stablehlo.multiply %state, %factor : tensor<2x3xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sums = stablehlo.reduce(%next init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>
    %zeros = stablehlo.constant dense<0.0> : tensor<3xf32>
    %positive = stablehlo.compare GT, %sums, %zeros : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xi1>
    %ones = stablehlo.convert %positive : (tensor<3xi1>) -> tensor<3xi32>
    %none = stablehlo.constant dense<0> : tensor<i32>
    %count = stablehlo.reduce(%ones init: %none) applies stablehlo.add across dimensions = [0]
      : (tensor<3xi32>, tensor<i32>) -> tensor<i32>
    return %next, %count, %positive : tensor<2x3xf32>, tensor<i32>, tensor<3xi1>
  }
}
"""
"""Scales its first argument in place, and tells which column sums are positive, and how many."""

STATE = np.array([[1, -2, 3], [4, -5, -6]], np.float32)


def make(executable: bytes, **changes: Any) -> Program:
    """Describe the module."""
    fields: dict[str, Any] = {
        "name": "forward",
        "form": "vmfb",
        "inputs": (
            TensorSpec(role="param", name="w", shape=(2, 3), dtype="float32"),
            TensorSpec(role="scalars", name="", shape=(), dtype="float32"),
            TensorSpec(role="exponents", name="", shape=(4,), dtype="int32"),
        ),
        "outputs": (
            TensorSpec(role="param", name="w", shape=(2, 3), dtype="float32"),
            TensorSpec(role="tokens", name="", shape=(), dtype="int32"),
            TensorSpec(role="overflow", name="", shape=(3,), dtype="bool"),
        ),
        "donated": (0,),
        "executable": executable,
        "peak_memory_bytes": 0,
        "flops": 0.0,
        "bytes_moved": 0.0,
    }
    return Program(**(fields | changes))


def arguments() -> list[np.ndarray]:
    """Give the module's arguments."""
    return [STATE.copy(), np.array(0.5, np.float32), np.zeros(4, np.int32)]


@pytest.fixture(scope="module")
def program() -> Program:
    """The module, compiled for this host's CPU."""
    return make(iree_compile(MODULE, CPU_FLAGS, what="the test's module").data)


def test_another_form_is_refused() -> None:
    with pytest.raises(ArtifactError, match=r"has the form 'pjrt'; expected 'vmfb'"):
        load(make(b"", form="pjrt"))


def test_a_node_without_the_runtime_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "iree.runtime", None)
    with pytest.raises(
        ArtifactError, match=r"needs IREE's runtime, which does not import: .*iree"
    ) as caught:
        load(make(b"bytes"))
    assert caught.value.remedy == "install the extra 'amd' on this node"


@pytest.mark.parametrize(
    ("index", "value", "words"),
    [
        (0, np.zeros((3, 2), np.float32), r"argument 0 \(param 'w'\) is float32\[3, 2\]"),
        (0, np.zeros((2, 3), np.float16), r"is float16\[2, 3\]; expected float32\[2, 3\]"),
        (2, np.zeros(4, np.int64), r"argument 2 \(exponents\) is int64\[4\]; expected int32\[4\]"),
    ],
)
def test_an_argument_that_differs_from_the_signature_is_named(
    index: int, value: np.ndarray, words: str
) -> None:
    given = arguments()
    given[index] = value
    with pytest.raises(ArtifactError, match=words):
        check_arguments(make(b""), given)


def test_a_wrong_number_of_arguments_is_refused() -> None:
    with pytest.raises(ArtifactError, match="takes 3 arrays and got 2"):
        check_arguments(make(b""), arguments()[:2])


@needs_iree
@pytest.mark.slow
def test_results_are_what_the_module_says(program: Program) -> None:
    results = load(program, driver=CPU_DRIVER).run(arguments())
    found = [np.array(host_view(result)) for result in results]
    np.testing.assert_array_equal(found[0], STATE * np.float32(0.5))
    assert found[1].item() == 1
    assert found[2].tolist() == [True, False, False]
    for value, item in zip(found, program.outputs, strict=True):
        assert (value.shape, value.dtype.name) == (item.shape, item.dtype)


@needs_iree
@pytest.mark.slow
def test_a_result_stays_on_the_device_and_is_taken_over(program: Program) -> None:
    """A chain of steps gives powers of the rate, and the caller's own array is never written."""
    loaded = load(program, driver=CPU_DRIVER)
    given = arguments()
    state = loaded.run(given)[0]
    for _ in range(3):
        state = loaded.run([state, *given[1:]])[0]
    np.testing.assert_array_equal(host_view(state), STATE / np.float32(16))
    np.testing.assert_array_equal(given[0], STATE)


@needs_iree
@pytest.mark.slow
def test_run_checks_its_arguments_before_the_device_sees_them(program: Program) -> None:
    given = arguments()
    given[0] = given[0][:1]
    with pytest.raises(ArtifactError, match="expected float32"):
        load(program, driver=CPU_DRIVER).run(given)


@needs_iree
@pytest.mark.slow
def test_a_module_that_was_cut_or_altered_does_not_load(program: Program) -> None:
    data = program.executable
    for broken in (b"", data[: len(data) // 2], b"no module" * 100):
        with pytest.raises(ArtifactError, match="does not load on driver 'local-task'"):
            load(make(broken), driver=CPU_DRIVER)


@needs_iree
@pytest.mark.slow
def test_an_unknown_driver_is_refused_with_those_that_are_there(program: Program) -> None:
    with pytest.raises(ArtifactError, match=r"has no driver 'tpu'; it has .*local-task"):
        load(program, driver="tpu")


@needs_iree
@pytest.mark.slow
def test_a_host_without_amds_library_says_so(program: Program) -> None:
    from ctypes.util import find_library

    if find_library("amdhip64") is not None:
        pytest.skip("this host has AMD's HIP library")
    with pytest.raises(ArtifactError, match="driver 'hip' does not start on this node") as caught:
        load(program)
    assert "libamdhip64.so" in str(caught.value.remedy)


@needs_iree
@pytest.mark.slow
def test_another_signature_than_the_modules_is_an_error_not_a_crash(program: Program) -> None:
    wider = TensorSpec(role="param", name="w", shape=(2, 4), dtype="float32")
    changed = make(program.executable, inputs=(wider, *program.inputs[1:]))
    given = arguments()
    given[0] = np.zeros((2, 4), np.float32)
    with pytest.raises(ArtifactError, match="it failed on the device"):
        load(changed, driver=CPU_DRIVER).run(given)
