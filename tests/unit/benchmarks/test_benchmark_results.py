"""What the result file promises to scripts: fields, ratios, goals, and that others' entries stay."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import __main__ as command
from benchmarks.children import ChildError
from benchmarks.machine import describe
from benchmarks.result import Goal, Result, summary

FIELDS = {"name", "luma", "baselines", "ratio", "goal", "met", "unit", "runs", "notes"}

positive = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=9)


def result(luma, goal=None, *, smaller=True, **baselines):
    return Result(
        name="x", unit="s", luma=luma, baselines=baselines, goal=goal, smaller_is_better=smaller
    )


def test_the_ratio_is_taken_against_the_better_baseline():
    entry = result([2.0, 4.0, 3.0], Goal(limit=1.0), slow=[9.0], fast=[2.0, 2.0]).to_json()
    assert set(entry) >= FIELDS
    assert entry["best_baseline"] == "fast"
    assert entry["luma"] == 3.0
    assert entry["baselines"] == {"slow": 9.0, "fast": 2.0}
    assert entry["ratio"] == 1.5
    assert entry["met"] is False
    assert entry["runs"]["luma"] == {
        "count": 3, "min": 2.0, "median": 3.0, "max": 4.0, "values": [2.0, 4.0, 3.0],
    }  # fmt: skip


def test_of_rates_the_largest_baseline_is_the_better_one():
    entry = result([17.0], Goal(limit=1.7, at_most=False), smaller=False, one=[10.0], other=[5.0])
    assert entry.best_baseline() == "one"
    assert entry.met() is True


def test_a_limit_on_the_slowest_run_needs_no_baseline():
    goal = Goal(limit=3.0, measure="luma_max")
    assert result([0.1, 3.1], goal).to_json()["met"] is False
    assert result([0.1, 3.0], goal).to_json()["met"] is True
    assert goal.text() == "slowest run <= 3"


def test_without_what_it_judges_a_goal_is_neither_met_nor_missed():
    assert result([1.0]).to_json()["met"] is None
    assert result([1.0], Goal(limit=1.0)).to_json()["met"] is None


def test_a_figure_that_is_no_number_meets_no_goal():
    assert not Goal(limit=1.0).met(math.nan)
    assert not Goal(limit=1.0, at_most=False).met(math.nan)


def test_a_side_without_a_run_is_refused():
    with pytest.raises(ValueError, match="no run"):
        summary([])


@given(luma=positive, baseline=positive)
def test_the_verdict_agrees_with_the_ratio_and_everything_is_json(luma, baseline):
    outcome = result(luma, Goal(limit=1.1), other=baseline)
    ratio = outcome.ratio()
    assert ratio is not None
    assert outcome.met() == (ratio <= 1.1)
    entry = json.loads(json.dumps(outcome.to_json() | describe(), allow_nan=False))
    assert {"machine", "versions", "date"} <= set(entry)
    assert entry["runs"]["luma"]["min"] <= entry["luma"] <= entry["runs"]["luma"]["max"]


def test_measuring_one_subject_keeps_the_other_entries_of_the_file(tmp_path, monkeypatch):
    class Subject:
        @staticmethod
        def measure(context):
            return [result([1.0], other=[2.0])]

    monkeypatch.setattr(command, "import_module", lambda name: Subject)
    path = tmp_path / "results.json"
    path.write_text(json.dumps([{"name": "kept"}, {"name": "x", "luma": 99.0}]))
    arguments = ["--only", "ring", "--out", str(path), "--work", str(tmp_path / "work")]
    assert command.main(arguments) == 0
    kept, fresh = json.loads(path.read_text())
    assert kept == {"name": "kept"}
    assert fresh["ratio"] == 0.5
    assert {"cpu", "cores", "memory_gib", "load_at_start"} <= set(fresh["machine"])


def test_a_subject_that_fails_is_told_and_the_others_are_still_written(
    tmp_path, monkeypatch, capsys
):
    class Subject:
        @staticmethod
        def measure(context):
            raise ChildError("the child died")

    monkeypatch.setattr(command, "import_module", lambda name: Subject)
    path = tmp_path / "results.json"
    assert command.main(["--out", str(path), "--work", str(tmp_path / "work")]) == 1
    assert json.loads(path.read_text()) == []
    assert "the child died" in capsys.readouterr().err


def test_a_goal_is_not_judged_while_a_baseline_is_missing() -> None:
    result = Result(
        name="step/x",
        unit="s",
        luma=[1.0],
        baselines={"hf_eager": [2.0]},
        goal=Goal(limit=1.0),
        missing={"torch_compile": "no compiler here"},
    )
    assert result.ratio() == 0.5
    assert result.met() is None
    assert result.to_json()["missing"] == {"torch_compile": "no compiler here"}
