"""What a step costs on a chip follows from the programs and the catalogue's figures."""

from __future__ import annotations

import pytest

from runtime.artifact.program import DTYPES, TensorSpec
from runtime.plan import Chip, chips_of, estimate, machine_chip
from runtime.plan.estimate import memory_of, tensor_bytes
from runtime.plan.machine import Machine
from runtime.spec.catalogue import load_catalogue

MIB = 1 << 20
CHIP = Chip(
    name="Example", memory_bytes=1 << 30, flops_per_s={"fp32": 1e12, "bf16": 4e12},
    bytes_per_s=1e11, efficiency=0.5, checked="doc",
)  # fmt: skip


def test_memory_is_the_state_the_sums_and_what_the_compiler_adds(payload) -> None:
    memory = memory_of(payload(activations=100 * MIB))
    assert (memory.state, memory.sums, memory.frozen) == (12 * MIB, 8 * MIB, 0)
    assert memory.activations == 100 * MIB
    assert memory.peak == (12 + 8 + 100) * MIB
    assert memory.apply == 16 * MIB


def test_the_chips_of_an_island_share_the_state(payload) -> None:
    one, four = memory_of(payload()), memory_of(payload("cuda-sm90x4", chips=4))
    assert (four.state, four.sums) == (one.state / 4, one.sums / 4)
    assert four.peak == one.peak / 4


def test_a_compiler_that_states_no_peak_still_needs_its_arrays(payload) -> None:
    import dataclasses

    stated = payload()
    programs = {
        name: dataclasses.replace(program, peak_memory_bytes=0)
        for name, program in stated.programs.items()
    }
    memory = memory_of(dataclasses.replace(stated, programs=programs))
    assert memory.peak == (12 + 8) * MIB  # parameter, moments, sums before and after
    assert memory.apply == 16 * MIB  # taken over, so state once


def test_time_is_the_roofline_of_each_program(payload) -> None:
    arithmetic = estimate(payload(flops=1e12, bytes_moved=1e9), CHIP, micro_shards=8)
    # grad: 1e12 at half of 1e12/s; apply: 1e9 bytes at 0.8 of 1e11/s.
    assert arithmetic.predicted_step_s == pytest.approx(8 * 2.0 + 0.0125)
    assert (arithmetic.flops, arithmetic.bytes_moved) == (8e12, 9e9)
    half = estimate(payload(flops=1e12), CHIP, micro_shards=8, precision="bf16")
    assert half.predicted_step_s == pytest.approx(8 * 0.5 + 0.0125)
    traffic = estimate(payload(flops=1.0, bytes_moved=8e10), CHIP, micro_shards=2)
    assert traffic.predicted_step_s == pytest.approx(3.0)


def test_nothing_is_predicted_where_a_figure_is_not_known(payload) -> None:
    import dataclasses

    no_peak = dataclasses.replace(CHIP, flops_per_s={"fp32": None, "bf16": 1e12})
    assert estimate(payload(), no_peak, micro_shards=1).predicted_step_s is None
    assert estimate(payload(), None, micro_shards=1).predicted_step_s is None
    assert estimate(payload(), None, micro_shards=1).chip is None
    unknown = payload(flops=0.0, bytes_moved=0.0)
    assert estimate(unknown, CHIP, micro_shards=1).predicted_step_s is None


@pytest.mark.parametrize(
    "target",
    ["cuda-sm80", "cuda-sm89", "cuda-sm90", "cuda-sm100", "tpu-v4", "tpu-v5e", "tpu-v5p",
     "tpu-v6e", "rocm-gfx942", "rocm-gfx950", "trn1", "trn2", "trn3", "inf2"],
)  # fmt: skip
def test_every_target_has_chips_with_all_figures(target: str) -> None:
    chips = chips_of(target)
    assert chips
    for chip in chips:
        assert chip.flops_per_s["fp32"]
        assert chip.flops_per_s["bf16"]
        assert chip.flops_per_s["fp32"] < chip.flops_per_s["bf16"]
        assert chip.bytes_per_s
        assert 8 << 30 < chip.memory_bytes < 400 << 30


def test_chips_are_the_catalogues_and_the_slowest_comes_first() -> None:
    l4, l40s = chips_of("cuda-sm89")
    assert (l4.name, l40s.name) == ("L4", "L40S")
    row = load_catalogue().by_name("g6e.xlarge")
    assert l40s.memory_bytes == int(row.memory_gib_per_chip * 2**30)
    assert l40s.bytes_per_s == row.memory_bandwidth_tb_s * 1e12
    assert chips_of("cpu") == ()
    small, large = chips_of("cuda-sm80")
    assert small.memory_bytes < large.memory_bytes


def test_this_machine_is_a_chip_too() -> None:
    machine = Machine(
        cpu="Example", cores=4, memory_available_bytes=MIB, flops_per_core=1e9, bytes_per_second=2e9
    )
    chip = machine_chip(machine)
    assert chip.flops_per_s == {"fp32": 4e9, "bf16": 4e9}
    assert (chip.memory_bytes, chip.bytes_per_s) == (MIB, 2e9)
    half = machine_chip(machine, 2)
    assert (half.memory_bytes, half.bytes_per_s) == (MIB // 2, 1e9)
    assert half.flops_per_s["fp32"] == 2e9


def test_what_stays_in_a_cpus_caches_is_not_counted(payload) -> None:
    import dataclasses

    cached = dataclasses.replace(CHIP, cached=True)
    job = payload(flops=1.0, bytes_moved=8e10)
    arrays = (4 + 4 + 4) * MIB, (16 + 12) * MIB  # of grad and of apply, in and out
    expected = (2 * arrays[0] + arrays[1]) / 8e10
    assert estimate(job, cached, micro_shards=2).predicted_step_s == pytest.approx(expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_arrays_size_is_numpys(dtype: str) -> None:
    import ml_dtypes  # noqa: F401 (registers bfloat16)
    import numpy as np

    spec = TensorSpec(role="param", name="w", shape=(3, 5), dtype=dtype)
    assert tensor_bytes(spec) == np.zeros((3, 5), np.dtype(dtype)).nbytes
