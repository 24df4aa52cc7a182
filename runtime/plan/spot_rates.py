"""How often spot capacity is taken back, from recorded series of it.

`spot_rates.json` holds one rate a series: instances lost over instance-hours that were up. The
series are of V100 instances in three regions in 2022 and 2023, so a rate is a pattern to plan by
and no promise about today's capacity; AWS publishes no rates through an API. `label()` says so
wherever a rate is shown.

    python -m runtime.plan.spot_rates FOLDER

writes the file again from a folder of series in the form `luma-spot-trace/1` (how many instances a
zone gave, in runs of equal counts).
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from runtime.spec import SpecError

__all__ = ["SeriesRate", "SpotRates", "load_spot_rates", "rate_of_series"]

_FILE: Final = "spot_rates.json"
_FORMAT: Final = "luma-spot-trace/1"
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRate:
    """One recorded series.

    Attributes:
        source: the file that it was made from, in the source's repository.
        zone: availability zone.
        instance_type: what was rented.
        accelerator: its chip.
        kind: "availability" (could the zone give it) or "preemption" (was what was held up).
        start: first day, ISO 8601.
        lost: instances that went away, summed over the falls of the count.
        instance_hours: instance-hours that were up.
        lost_per_instance_hour: the quotient of both.
    """

    source: str
    zone: str
    instance_type: str
    accelerator: str
    kind: str
    start: str
    lost: int
    instance_hours: float
    lost_per_instance_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRates:
    """What the recorded series say together.

    Attributes:
        series: each of them.
        source: the repository and its commit.
    """

    series: tuple[SeriesRate, ...]
    source: str

    @property
    def median(self) -> float:
        """The middle rate, interruptions an instance-hour: what a plan counts with."""
        return statistics.median(self._rates())

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest rate."""
        return min(self._rates()), max(self._rates())

    def label(self) -> str:
        """Say where the rates come from, in few words."""
        chips = ", ".join(sorted({series.accelerator for series in self.series}))
        years = sorted({series.start[:4] for series in self.series})
        return f"recorded on {chips} in {years[0]} to {years[-1]}, not on this type"

    def _rates(self) -> list[float]:
        return [series.lost_per_instance_hour for series in self.series]


@cache
def load_spot_rates() -> SpotRates:
    """Read the rates that come with Luma."""
    data = json.loads(files("runtime.plan").joinpath(_FILE).read_text(encoding="utf-8"))
    return SpotRates(
        series=tuple(SeriesRate(**row) for row in data["series"]), source=data["source"]
    )


def rate_of_series(series: dict[str, Any]) -> SeriesRate:
    """Count what one series lost, and how long instances were up in it.

    Args:
        series: an object of the form `luma-spot-trace/1`.

    Raises:
        SpecError: it has another form, or nothing was ever up.
    """
    if series.get("format") != _FORMAT:
        raise SpecError(f"format: {series.get('format')!r} is not {_FORMAT}")
    lost, up = _lost_and_up(series["runs"])
    hours = up * series["step_seconds"] / _HOUR_S
    if hours <= 0:
        raise SpecError(f"runs: no instance is ever up in {series['source']['file']!r}")
    return SeriesRate(
        source=series["source"]["file"],
        zone=series["zone"],
        instance_type=series["instance_type"],
        accelerator=series["accelerator"],
        kind=series["kind"],
        start=series["start"],
        lost=lost,
        instance_hours=round(hours, 2),
        lost_per_instance_hour=round(lost / hours, 4),
    )


def _lost_and_up(runs: Iterable[Sequence[int]]) -> tuple[int, int]:
    """Give the instances lost and the instance-steps up in runs of (instances, steps)."""
    lost = up = before = 0
    for instances, steps in runs:
        lost += max(0, before - instances)
        up += instances * steps
        before = instances
    return lost, up


def main(arguments: Sequence[str]) -> int:
    """Write the rates again from a folder of series; gives the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m runtime.plan.spot_rates FOLDER\n")
        return 2
    found = [json.loads(path.read_text()) for path in sorted(Path(arguments[0]).glob("*.json"))]
    sources = {f"{item['source']['repository']} at {item['source']['commit']}" for item in found}
    document = {
        "about": "Interruptions of spot instances an instance-hour, one row a recorded series.",
        "source": "; ".join(sorted(sources)),
        "series": [asdict(rate_of_series(item)) for item in found],
    }
    target = Path(__file__).with_name(_FILE)
    target.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
