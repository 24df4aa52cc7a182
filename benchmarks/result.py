"""What a benchmark gives: both sides' runs, their ratio, the goal, and whether it is met."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Measure = Literal["ratio", "luma_max"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What a figure must reach.

    Attributes:
        limit: the bound, itself allowed.
        at_most: whether the figure may not be above the bound; else not below it.
        measure: `ratio` judges the ratio, `luma_max` the largest of Luma's own runs.
    """

    limit: float
    at_most: bool = True
    measure: Measure = "ratio"

    def met(self, value: float) -> bool:
        """Tell whether a figure reaches the goal; one that is not a number never does."""
        return value <= self.limit if self.at_most else value >= self.limit

    def text(self) -> str:
        """Give the goal in words, such as `ratio <= 1.1`."""
        what = "ratio" if self.measure == "ratio" else "slowest run"
        return f"{what} {'<=' if self.at_most else '>='} {self.limit:g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One benchmark's outcome.

    Attributes:
        name: unique among the results, such as `step/qwen3-512x6`.
        unit: of every run, such as `s`.
        luma: Luma's runs, in the order they were made.
        baselines: the other sides' runs by name; empty where nothing compares.
        smaller_is_better: False for rates; it decides which baseline is the best one.
        goal: what is to be reached, or None for a figure that is only recorded.
        missing: baselines that the goal names and that could not be measured, with the reason.
        notes: sizes, and whatever a reader must know.
    """

    name: str
    unit: str
    luma: Sequence[float]
    baselines: Mapping[str, Sequence[float]]
    smaller_is_better: bool = True
    goal: Goal | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def best_baseline(self) -> str | None:
        """Give the name of the baseline with the best median, None where there is none."""
        medians = {name: statistics.median(runs) for name, runs in self.baselines.items()}
        if not medians:
            return None
        choose = min if self.smaller_is_better else max
        return choose(medians, key=lambda name: medians[name])

    def ratio(self) -> float | None:
        """Give Luma's median over the best baseline's median."""
        best = self.best_baseline()
        if best is None:
            return None
        return statistics.median(self.luma) / statistics.median(self.baselines[best])

    def met(self) -> bool | None:
        """Tell whether the goal is reached; None without a goal, or without all that it judges."""
        if self.goal is None or self.missing:
            return None
        value = max(self.luma) if self.goal.measure == "luma_max" else self.ratio()
        return None if value is None else self.goal.met(value)

    def to_json(self) -> dict[str, Any]:
        """Give the entry of `latest.json`, without machine and versions."""
        ratio = self.ratio()
        sides = {"luma": self.luma, **self.baselines}
        return {
            "name": self.name,
            "luma": _rounded(statistics.median(self.luma)),
            "baselines": {
                name: _rounded(statistics.median(runs)) for name, runs in self.baselines.items()
            },
            "ratio": None if ratio is None else _rounded(ratio),
            "best_baseline": self.best_baseline(),
            "goal": None if self.goal is None else self.goal.text(),
            "met": self.met(),
            "unit": self.unit,
            "runs": {name: summary(runs) for name, runs in sides.items()},
            "missing": dict(self.missing),
            "notes": dict(self.notes),
        }


def summary(runs: Sequence[float]) -> dict[str, Any]:
    """Give count, min, median, max and the runs themselves.

    Raises:
        ValueError: there is no run.
    """
    if not runs:
        raise ValueError("a side of a benchmark has no run")
    return {
        "count": len(runs),
        "min": _rounded(min(runs)),
        "median": _rounded(statistics.median(runs)),
        "max": _rounded(max(runs)),
        "values": [_rounded(value) for value in runs],
    }


def table_row(result: Result) -> str:
    """Give a result as one line of text."""
    entry = result.to_json()
    others = ", ".join(f"{name} {value:g}" for name, value in entry["baselines"].items())
    ratio = "" if entry["ratio"] is None else f"  ratio {entry['ratio']:.3f}"
    verdict = {True: "met", False: "MISSED", None: ""}[entry["met"]]
    goal = "" if entry["goal"] is None else f"  ({entry['goal']}: {verdict})"
    return f"{result.name}: luma {entry['luma']:g} {result.unit}; {others}{ratio}{goal}"


def _rounded(value: float) -> float:
    """Keep five significant digits: more is noise."""
    return float(f"{value:.5g}")
