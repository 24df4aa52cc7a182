"""A job that does not fit says so, and what it proposes fits by its own figures."""

from __future__ import annotations

import re

import pytest

from runtime.plan import Chip, Shape, check_chip, judge
from runtime.run.target_report import check_fits, fits_of, fits_text
from runtime.spec import CapacityError, load_catalogue

MIB = 1 << 20


def chip(mib: float) -> Chip:
    return Chip(
        name="Small", memory_bytes=int(mib * MIB), flops_per_s={"fp32": 1e12, "bf16": 1e12},
        bytes_per_s=1e11, efficiency=0.5, checked="doc",
    )  # fmt: skip


def ways(payload, memory: float, **shape) -> dict[str, float]:
    """Give the proposed changes and the MiB that each says it needs."""
    fit = judge(payload, chip(memory), Shape(**({"micro_batch": 8} | shape)))
    assert not fit.fits
    found = {}
    for way in fit.ways:
        match = re.fullmatch(r"(.*?) \(needs about ([0-9.]+) (MiB|GiB)( a chip)?\)", way)
        if match is None:
            match = re.fullmatch(r"(an adapter) \(LoRA; needs about ([0-9.]+) (MiB|GiB)\)", way)
        assert match is not None, way
        found[match[1]] = float(match[2]) * (1024 if match[3] == "GiB" else 1)
    return found


def test_a_job_that_fits_needs_no_way_out(payload) -> None:
    fit = judge(payload(activations=80 * MIB), chip(106), Shape(micro_batch=8))
    assert (fit.fits, fit.ways, fit.needed_bytes) == (True, (), 100 * MIB)
    check_chip(fit)
    assert not judge(payload(activations=80 * MIB), chip(104), Shape(micro_batch=8)).fits


def test_each_way_is_named_with_what_it_needs(payload) -> None:
    # 20 MiB of arrays and 80 of activations, 10 a sequence; the chip can take 60 * 0.95.
    found = ways(payload(activations=80 * MIB), 60)
    assert found == {
        "train.micro_batch: 3": 50,
        "train.checkpointing: layer": 44,
        "target cuda-sm90x2": 50,
    }


def test_lora_is_proposed_where_the_state_is_what_is_too_large(payload) -> None:
    assert ways(payload(activations=1 * MIB), 10) == {
        "target cuda-sm90x4": pytest.approx(5.2, abs=0.1),
        "an adapter": pytest.approx(5.2, abs=0.1),
    }


def test_what_is_done_already_is_not_proposed_again(payload) -> None:
    found = ways(payload(activations=80 * MIB), 60, checkpointing=True, adapter=True)
    assert set(found) == {"train.micro_batch: 3", "target cuda-sm90x2"}


def test_an_odd_batch_is_whole_on_every_chip_so_more_chips_share_the_state_only(payload) -> None:
    found = ways(payload(activations=30 * MIB), 40, micro_batch=3)
    assert found["target cuda-sm90x4"] == 35
    assert "target cuda-sm90x2" not in found


def test_a_smaller_batch_on_an_island_stays_a_multiple_of_its_chips(payload) -> None:
    found = ways(payload("cuda-sm90x2", chips=2, activations=80 * MIB), 60)
    assert found["train.micro_batch: 4"] == 50


def test_chips_of_a_tensor_parallel_group_share_their_sequences(payload) -> None:
    # 10 MiB of arrays a chip and 10 a sequence; two chips are one group, which divides no batch.
    found = ways(payload("cuda-sm90x2-tp2", chips=2, activations=80 * MIB), 50)
    assert found["train.micro_batch: 3"] == 40
    assert found["target cuda-sm90x4-tp2"] == 45


def test_where_no_change_is_enough_all_are_proposed_together(payload) -> None:
    found = ways(payload(activations=800 * MIB), 36, micro_batch=2, adapter=True)
    assert set(found) == set()
    found = ways(payload(activations=800 * MIB), 140, micro_batch=2, adapter=True)
    assert list(found) == [
        "target cuda-sm90x2 with train.micro_batch: 2 and train.checkpointing: layer"
    ]
    assert found.popitem()[1] <= 0.95 * 140


def test_families_without_islands_are_not_given_any(payload) -> None:
    for target in ("cpu", "rocm-gfx942", "trn2"):
        assert not any("x2" in way for way in ways(payload(target, activations=80 * MIB), 60))
    assert "target tpu-v5ex4" in ways(payload("tpu-v5e", activations=80 * MIB), 60)


def test_the_error_carries_sizes_and_ways(payload) -> None:
    fit = judge(payload(activations=80 * MIB), chip(60), Shape(micro_batch=8))
    with pytest.raises(CapacityError) as caught:
        check_chip(fit)
    assert caught.value.message == (
        "cuda-sm90 on Small: does not fit, needs 100.0 MiB of 60.0 MiB a chip"
    )
    assert "train.micro_batch: 3" in (caught.value.remedy or "")


def test_without_a_stated_peak_the_least_is_told_as_such(payload) -> None:
    import dataclasses

    known = payload()
    programs = {
        name: dataclasses.replace(program, peak_memory_bytes=0)
        for name, program in known.programs.items()
    }
    unstated = dataclasses.replace(known, programs=programs)
    fit = judge(unstated, chip(60), Shape(micro_batch=8))
    assert fit.text() == "cuda-sm90 on Small: may fit, needs at least 20.0 MiB of 60.0 MiB a chip"
    assert not judge(unstated, chip(20), Shape(micro_batch=8)).fits


def test_a_job_for_an_account_is_judged_by_its_hosts_and_not_by_this_machine(
    payload, job, monkeypatch
) -> None:
    def measured() -> None:
        raise AssertionError("this machine was measured")

    monkeypatch.setattr("runtime.run.target_report.measure_machine", measured)
    spec = job(resources__infra="aws/us-east-1", resources__accelerators=["cpu:1"])
    large = payload("cpu", activations=20 << 30)
    fits = fits_of(large, spec)
    hosts = [row for row in load_catalogue().accelerators if row.is_cpu]
    assert len(fits) == len(hosts) > 20
    assert 0 < sum(fit.fits for fit in fits) < len(fits)
    check_fits(fits)
    smallest = min((fit for fit in fits if fit.fits), key=lambda fit: fit.memory_bytes)
    count = sum(fit.fits for fit in fits)
    assert fits_text(fits) == f"{smallest.text()}; in all on {count} of {len(hosts)} kinds of host"
    with pytest.raises(CapacityError, match="cpu on CPU of"):
        check_fits(fits_of(payload("cpu", activations=40 << 40), spec))
