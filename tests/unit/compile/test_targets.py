"""The table of targets: names, islands, what is missing, and what lowerings are looked up for."""

from __future__ import annotations

import pytest

from runtime.compiler.targets import back_end, cuda, expand, find_target, target_names, tpu
from runtime.compiler.targets.target import Requirement
from runtime.spec import CompileError
from runtime.spec.sections import CompileSection

NAMES = (
    "cpu", "cuda-sm80", "cuda-sm89", "cuda-sm90", "cuda-sm100", "tpu-v4", "tpu-v5e", "tpu-v5p",
    "tpu-v6e", "rocm-gfx942", "rocm-gfx950", "trn1", "trn2", "trn3", "inf2",
)  # fmt: skip


def test_the_targets_are_those_that_a_job_may_name() -> None:
    assert target_names() == NAMES
    section = CompileSection(
        targets=(*NAMES, "cuda-sm90x8", "cuda-sm90x8-tp4", "tpu-v5ex4", "cpux2")
    )
    assert expand(section.targets) == section.targets


@pytest.mark.parametrize("name", NAMES)
def test_a_target_belongs_to_the_back_end_that_knows_it(name: str) -> None:
    target = find_target(name)
    assert (target.name, target.chip, target.chips) == (name, name, 1)
    assert back_end(target).family == target.family
    assert target in back_end(target).targets()
    assert target.environment["JAX_PLATFORMS"] == "cpu"
    assert find_target(f"{name}x1") is target


@pytest.mark.parametrize(
    ("name", "lowering"),
    [("cpux2", "cpu"), ("cuda-sm90x8", "cuda-sm90"), ("trn2", "neuron-trn2"), ("tpu-v4", "tpu-v4")],
)
def test_lowerings_are_looked_up_for_the_chip_with_its_family_before_it(
    name: str, lowering: str
) -> None:
    target = find_target(name)
    assert target.lowering == lowering
    assert target.lowering.partition("-")[0] == target.family


def test_an_island_is_the_same_chip_several_times() -> None:
    eight = find_target("cuda-sm90x8")
    assert (eight.chip, eight.chips, eight.topology) == ("cuda-sm90", 8, "1x1x8")
    assert eight.description == find_target("cuda-sm90").description
    assert find_target("tpu-v5ex8").topology == "v5e:2x4"
    assert find_target("tpu-v5px8").topology == "v5p:2x2x2"
    flags = find_target("cpux3").environment["XLA_FLAGS"].split()
    assert flags[:2] == ["--xla_cpu_max_isa=AVX2", "--xla_force_host_platform_device_count=3"]


def test_tensor_parallel_groups_are_part_of_an_islands_name() -> None:
    island, groups = find_target("cuda-sm90x8"), find_target("cuda-sm90x8-tp4")
    assert (groups.name, groups.chips, groups.tensor_parallel) == ("cuda-sm90x8-tp4", 8, 4)
    assert (groups.topology, groups.lowering) == (island.topology, "cuda-sm90")
    assert find_target("cuda-sm90x8-tp1") == island
    assert island.tensor_parallel == 1
    assert find_target("cpux2-tp2").environment == find_target("cpux2").environment


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cuda-sm90x8-tp3", "groups of 3 do not divide 8 chips; allowed: 1, 2, 4, 8"),
        ("cpux2-tp4", "groups of 4 do not divide 2 chips; allowed: 1, 2"),
        ("cpu-tp2", "'cpu-tp2' is no target"),
        ("cpux2-tp0", "'cpux2-tp0' is no target"),
    ],
)
def test_groups_that_do_not_divide_an_island_are_refused(name: str, words: str) -> None:
    with pytest.raises(CompileError, match=words):
        find_target(name)
    with pytest.raises(ValueError, match=words):
        CompileSection(targets=(name,))


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("tpu-v5ex3", "4, 8, 16, 32"),
        ("cuda-sm90x64", "2 to 16"),
        ("cpux17", "2 to 16"),
        ("rocm-gfx942x8", "1"),
    ],
)
def test_chips_that_cannot_be_joined_are_refused_with_what_can(name: str, allowed: str) -> None:
    with pytest.raises(CompileError, match=rf"cannot be joined; allowed: {allowed}$"):
        find_target(name)


@pytest.mark.parametrize("name", ["", "x2", "cpux", "cpux0", "cpux02", "cuda-sm75", "cudax8"])
def test_another_name_is_unknown(name: str) -> None:
    with pytest.raises(CompileError, match="is unknown; expected one of cpu, cuda-sm80"):
        find_target(name)


def test_all_stands_for_every_target_and_each_comes_once() -> None:
    assert expand(["all"]) == NAMES
    assert expand(["cuda-sm90x8", "cpu", "cuda-sm90x8"]) == ("cuda-sm90x8", "cpu")
    assert expand(["trn2", "all"])[:2] == ("trn2", "cpu")
    with pytest.raises(CompileError, match="'abacus' is unknown"):
        expand(["cpu", "abacus"])


def test_what_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, extra in ((cuda, "luma[cuda]"), (tpu, "luma[tpu]")):
        monkeypatch.setattr(module, "_PLUGIN", "no_such_package")
        name = f"{module.__name__.rpartition('.')[2]}"
        target = next(find_target(n) for n in NAMES if n.startswith(name))
        lacking = back_end(target).missing(target)
        assert lacking is not None
        error = lacking.error(target)
        assert f"target '{target.name}': its compiler 'no_such_package'" in error.message
        assert extra in (error.remedy or "")
    monkeypatch.setattr(cuda, "_PLUGIN", "json")
    assert back_end(find_target("cuda-sm90")).missing(find_target("cuda-sm90")) is None
    assert back_end(find_target("cpu")).missing(find_target("cpu")) is None


def test_a_requirement_says_what_to_do() -> None:
    error = Requirement(package="abc", remedy="install abc").error(find_target("tpu-v4"))
    assert error.diagnostics() == (
        "target 'tpu-v4': its compiler 'abc' is not installed\n"
        "  remedy: install abc, or drop the target"
    )


def test_versions_name_the_compilers_and_say_nothing_of_absent_ones() -> None:
    import jaxlib

    for name in NAMES:
        versions = back_end(find_target(name)).versions()
        assert versions["jaxlib"] == jaxlib.__version__
        assert all(isinstance(value, str) for value in versions.values())
