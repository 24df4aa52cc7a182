"""What is told of a target's fit: it is refused only where none of its chips can run the job."""

from __future__ import annotations

import pytest

from runtime.plan import Fit
from runtime.run.target_report import TargetReport, check_fits, fits_text, statistics
from runtime.spec import CapacityError


def fit(chip: str, memory: int, *, fits: bool) -> Fit:
    return Fit(
        target="cuda-sm89", chip=chip, needed_bytes=3 << 30, memory_bytes=memory << 30, fits=fits,
        stated=True, ways=() if fits else (f"a way on {chip}",),
    )  # fmt: skip


def test_one_chip_that_fits_is_enough() -> None:
    check_fits([fit("L4", 2, fits=False), fit("L40S", 4, fits=True)])
    check_fits([])


def test_where_none_fits_the_largest_chips_ways_are_told() -> None:
    with pytest.raises(CapacityError, match="cuda-sm89 on B: does not fit") as caught:
        check_fits([fit("A", 1, fits=False), fit("B", 2, fits=False)])
    assert caught.value.remedy == "a way on B"


def test_few_kinds_of_chip_are_named_one_by_one() -> None:
    fits = [fit("L4", 2, fits=False), fit("L40S", 4, fits=True)]
    assert fits_text(fits) == f"{fits[0].text()}; {fits[1].text()}"


def test_statistics_hold_what_is_known() -> None:
    known = TargetReport(
        target="cpu", state="compiled", seconds=1.0, cached=False, peak_memory_bytes=7, flops=2.0,
        bytes_moved=3.0,
    )  # fmt: skip
    failed = TargetReport(target="trn2", state="failed", seconds=0.1, cached=False, error="no")
    assert statistics([known, failed]) == {
        "cpu.peak_memory_bytes": 7,
        "cpu.flops": 2.0,
        "cpu.bytes_moved": 3.0,
    }
