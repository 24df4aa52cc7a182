"""Which loader a payload gets on this node, and what is said where it gets none."""

from __future__ import annotations

import sys

import pytest

from runtime.agent import neuron_executable
from runtime.agent.executable import PjrtLoader
from runtime.agent.loaders import loader_for
from runtime.agent.threads import island_environment
from runtime.artifact.program import BlockTable, Program, ProgramForm, TargetPayload, TensorSpec
from runtime.spec import ArtifactError, RunError


def payload(target: str, *forms: ProgramForm) -> TargetPayload:
    """A payload of programs that no loader has to load."""
    spec = TensorSpec(role="param", name="w", shape=(2,), dtype="float32")
    programs = {
        name: Program(
            name=name, inputs=(spec,), outputs=(spec,), donated=(), executable=b"x", form=form,
            peak_memory_bytes=0, flops=0.0, bytes_moved=0.0,
        )
        for name, form in zip(("grad", "apply"), forms, strict=False)
    }  # fmt: skip
    return TargetPayload(
        target=target, programs={**programs}, blocks=BlockTable(block_size=4096, rows=()),
        cpu_name="haswell", cpu_features=(), scrubbed=False,
    )  # fmt: skip


def refused(target: str, *forms: ProgramForm) -> ArtifactError:
    """Give the error for a payload that this node cannot run."""
    with pytest.raises(ArtifactError) as caught:
        loader_for(payload(target, *forms))
    return caught.value


def test_a_cpu_payload_gets_the_pjrt_loader() -> None:
    given = payload("cpu", "pjrt", "pjrt")
    loader = loader_for(given)
    assert isinstance(loader, PjrtLoader)
    assert loader.chip_class(given).startswith("cpu/haswell/jaxlib-")


@pytest.mark.parametrize(("target", "kind"), [("cuda-sm90", "gpu"), ("tpu-v5e", "tpu")])
def test_a_chip_that_is_not_here_is_named_with_target_and_form(target: str, kind: str) -> None:
    error = refused(target, "pjrt", "pjrt")
    assert error.message.startswith(f"target '{target}' (form 'pjrt') cannot run on this node: ")
    assert f"it needs a device of the kind '{kind}': this process has 1 x 'cpu'" in error.message
    assert f"on a node with the chip '{target}', with luma's extra" in str(error.remedy)


def test_an_island_larger_than_this_process_is_refused() -> None:
    error = refused("cpux4-tp2", "pjrt", "pjrt")
    assert error.message == (
        "target 'cpux4-tp2' (form 'pjrt') cannot run on this node: "
        "it runs on 4 chips, this process has 1"
    )


def test_amds_form_needs_irees_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "iree.runtime", None)
    error = refused("rocm-gfx942", "vmfb", "vmfb")
    assert "target 'rocm-gfx942' (form 'vmfb') cannot run on this node: it needs" in error.message
    assert error.remedy == "install the extra 'amd' on this node"


def test_neurons_form_needs_neurons_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neuron_executable, "LIBRARY", "/nowhere/libnrt.so")
    error = refused("trn2", "neff")
    assert (
        "target 'trn2' (form 'neff') cannot run on this node: the Neuron runtime" in error.message
    )
    assert "aws-neuronx-runtime-lib" in str(error.remedy)


def test_programs_of_several_forms_or_of_no_target_are_refused() -> None:
    assert "forms neff, pjrt; expected exactly one" in refused("cpu", "pjrt", "neff").message
    assert "forms none" in refused("cpu").message
    assert "'abacus' is no target" in refused("abacus", "pjrt").message


def test_the_process_of_an_island_is_started_for_its_target() -> None:
    assert island_environment(1)["JAX_PLATFORMS"] == "cpu"
    assert "device_count" not in island_environment(1)["XLA_FLAGS"]
    flags = island_environment(2, "cpux4-tp2")["XLA_FLAGS"].split()
    assert flags[:2] == ["--xla_cpu_max_isa=AVX2", "--xla_force_host_platform_device_count=4"]
    for target, platform in (("cuda-sm90x8", "cuda"), ("tpu-v5e", "tpu"), ("trn2", "cpu")):
        assert island_environment(1, target)["JAX_PLATFORMS"] == platform
    assert "device_count" not in island_environment(1, "cuda-sm90x8")["XLA_FLAGS"]
    with pytest.raises(RunError, match="'abacus' is no target"):
        island_environment(1, "abacus")
