"""Rates of interruptions are counted from recorded series, and say where they are from."""

from __future__ import annotations

import json

import pytest

from runtime.plan import spot_rates
from runtime.plan.spot_rates import load_spot_rates, rate_of_series
from runtime.spec import SpecError


def series(runs, step_seconds=1800, **fields):
    return {
        "format": "luma-spot-trace/1", "source": {"repository": "r", "commit": "c", "file": "f"},
        "kind": "availability", "zone": "us-west-2b", "instance_type": "p3.2xlarge",
        "accelerator": "V100", "start": "2023-02-15", "step_seconds": step_seconds, "runs": runs,
        **fields,
    }  # fmt: skip


def test_a_rate_is_what_was_lost_over_the_hours_that_were_up() -> None:
    # Four instances for an hour, one for half an hour, none, two for an hour: 4 + 0.5 + 2 hours up.
    found = rate_of_series(series([[4, 2], [1, 1], [0, 3], [2, 2]]))
    assert (found.lost, found.instance_hours) == (3 + 1, 6.5)
    assert found.lost_per_instance_hour == pytest.approx(4 / 6.5, abs=1e-4)


def test_a_rise_is_no_interruption_and_neither_is_the_end() -> None:
    assert rate_of_series(series([[0, 1], [1, 2], [3, 4]])).lost == 0


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (series([[1, 1]], format="other/1"), "is not luma-spot-trace/1"),
        (series([[0, 9]]), "is ever"),
    ],
)
def test_what_is_no_series_is_refused(item, message) -> None:
    with pytest.raises(SpecError, match=message):
        rate_of_series(item)


def test_the_rates_that_come_with_luma_agree_with_their_own_counts_and_name_their_source() -> None:
    rates = load_spot_rates()
    assert len(rates.series) == 6
    for one in rates.series:
        assert one.lost_per_instance_hour == pytest.approx(one.lost / one.instance_hours, rel=1e-3)
    low, high = rates.range
    assert 0 < low < rates.median < high < 5
    assert "spot-traces" in rates.source
    assert rates.label() == "recorded on V100 in 2022 to 2023, not on this type"


def test_the_script_writes_the_file_again(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.json").write_text(json.dumps(series([[2, 4], [0, 1]])))
    (tmp_path / "b.json").write_text(json.dumps(series([[1, 2]])))
    target = tmp_path / "spot_rates.py"
    monkeypatch.setattr(spot_rates, "__file__", str(target))
    assert spot_rates.main([str(tmp_path)]) == 0
    written = json.loads(target.with_name("spot_rates.json").read_text())
    assert [one["lost_per_instance_hour"] for one in written["series"]] == [0.5, 0.0]
    assert spot_rates.main([]) == 2
