"""Cost, budget and figures of a run, against sums by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.agent.node.cost import STOP_RESERVE_S, Meter, budget_reason, usd_per_hour
from runtime.agent.node.metrics import RunFigures

SLOTS = [
    {"fleet": "spot", "node": "i-1", "usd_per_hour": 2.0},
    {"fleet": "spot", "node": "i-2"},
    {"fleet": "spot"},
    {"fleet": "unknown", "node": "i-3"},
]


def test_slots_with_a_node_cost_their_own_price_else_the_plans():
    assert usd_per_hour(SLOTS, {"spot": 1.5}, 0.25) == pytest.approx(2.0 + 1.5 + 0.25)
    assert usd_per_hour([], {}, None) == 0.0


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 500)), max_size=20))
def test_a_meter_adds_up_rate_times_time(readings):
    meter, now, expected, total, rate = Meter(since=0.0), 0.0, 0.0, 0.0, 0.0
    for seconds, new_rate in readings:
        now += seconds
        expected += rate * seconds / 3600
        total += meter.read(now, new_rate)
        rate = new_rate
    assert total == pytest.approx(expected)


def test_a_clock_that_jumps_back_earns_nothing():
    meter = Meter(since=100.0, rate=3600.0)
    assert meter.read(50.0, 0.0) == 0.0


@given(cost=st.floats(0, 100), rate=st.floats(0, 100), limit=st.floats(0.01, 100))
def test_a_stop_is_asked_for_while_the_budget_pays_for_it(cost, rate, limit):
    reserve = rate * STOP_RESERVE_S / 3600
    reason = budget_reason(cost, rate, limit)
    assert (reason is None) == (cost + reserve < limit)
    assert budget_reason(cost, rate, None) is None


def commit(step: int, time: float, digest: str = "a") -> dict:
    return {"kind": "commit", "step": step, "time": time, "sum_hash": digest}


def test_goodput_is_the_share_of_time_at_the_usual_pace():
    figures = RunFigures(0.0)
    for step in range(11):
        figures.take(commit(step, float(step)))
    # Ten steps a second apart, one before them, then 40 s of nothing.
    found = figures.read(50.0, 7.5)
    assert found["StepsCommitted"] == 11
    assert found["Goodput"] == pytest.approx(11 / 50)
    assert found["UsdPerHour"] == 7.5
    assert figures.read(60.0, 7.5) == {
        "StepsCommitted": 0,
        "Interruptions": 0,
        "StepsLost": 0,
        "UsdPerHour": 7.5,
        "Goodput": 0.0,
    }


def test_interruptions_and_lost_steps_are_counted():
    figures = RunFigures(0.0)
    figures.take({"kind": "left", "reason": "notice"})
    figures.take({"kind": "left", "reason": "connection closed"})
    figures.take({"kind": "left", "reason": "done"})
    figures.take(commit(0, 1.0, "a"))
    figures.take(commit(0, 2.0, "a"))
    figures.take(commit(0, 3.0, "b"))
    found = figures.read(10.0, 0.0)
    assert (found["Interruptions"], found["StepsLost"]) == (2, 1)
    assert "Goodput" in found


def test_goodput_is_not_told_before_there_is_a_pace():
    assert "Goodput" not in RunFigures(0.0).read(60.0, 0.0)
