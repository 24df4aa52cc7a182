"""Figures of a run for CloudWatch, once a minute: namespace `Luma`.

| metric | unit | meaning |
|---|---|---|
| StepsCommitted | Count | steps that were committed |
| Interruptions | Count | islands that were lost or left on a notice |
| StepsLost | Count | committed steps that the final history lacks; always 0 unless something broke |
| Goodput | None, 0 to 1 | share of the time in which steps were committed at the run's usual pace |
| UsdPerHour | None | what the run's nodes cost an hour |

Each goes out twice: for the deployment, and for the run in it.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from runtime.spec.account import METRIC_NAMESPACE
from runtime.spec.aws import aws_client, aws_errors

__all__ = ["RunFigures", "send_figures"]

EVERY_S: Final = 60.0
_REMEMBERED: Final = 64
_ENDINGS: Final = frozenset({"done", "stopped"})
"""Why an island leaves at the end of a run; on a notice, or without a word, is an interruption."""


class RunFigures:
    """Takes a run's events in, and gives the figures of the time since the last time.

    Args:
        now: seconds since 1970.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._steps: dict[int, str] = {}
        self._durations: deque[float] = deque(maxlen=_REMEMBERED)
        self._last_commit: float | None = None
        self._committed = self._interruptions = self._lost = 0

    def take(self, event: Mapping[str, Any]) -> None:
        """Take one event in."""
        kind = event["kind"]
        if kind == "commit":
            self._take_commit(event)
        elif kind == "left" and event.get("reason") not in _ENDINGS:
            self._interruptions += 1

    def _take_commit(self, event: Mapping[str, Any]) -> None:
        step, time = int(event["step"]), float(event["time"])
        known = self._steps.setdefault(step, str(event["sum_hash"]))
        if known != event["sum_hash"]:
            self._lost += 1
        if len(self._steps) > _REMEMBERED:
            del self._steps[min(self._steps)]
        self._committed += 1
        if self._last_commit is not None:
            self._durations.append(time - self._last_commit)
        self._last_commit = time

    def read(self, now: float, rate: float) -> dict[str, float]:
        """Give the figures since the last reading, and begin anew.

        Args:
            now: seconds since 1970.
            rate: dollars an hour at this moment.
        """
        span = max(now - self._since, 1e-3)
        figures = {
            "StepsCommitted": float(self._committed),
            "Interruptions": float(self._interruptions),
            "StepsLost": float(self._lost),
            "UsdPerHour": rate,
        }
        if self._durations:
            usual = statistics.median(self._durations)
            figures["Goodput"] = min(1.0, self._committed * usual / span)
        self._since = now
        self._committed = self._interruptions = self._lost = 0
        return figures


def send_figures(figures: Mapping[str, float], *, stack: str, run: str, region: str) -> None:
    """Put figures into CloudWatch.

    Raises:
        AwsError: CloudWatch refuses or cannot be reached.
    """
    deployment = {"Name": "Deployment", "Value": stack}
    both = ([deployment], [deployment, {"Name": "Run", "Value": run}])
    data = [
        {
            "MetricName": name,
            "Dimensions": dimensions,
            "Value": value,
            "Unit": "None" if name in {"Goodput", "UsdPerHour"} else "Count",
        }
        for name, value in figures.items()
        for dimensions in both
    ]
    with aws_errors("cloudwatch PutMetricData"):
        aws_client("cloudwatch", region=region).put_metric_data(
            Namespace=METRIC_NAMESPACE, MetricData=data
        )
