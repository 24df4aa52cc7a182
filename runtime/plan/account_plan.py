"""What a plan of a run in an account says: fleets in order, slots, price, prediction, reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runtime.plan.offer import Offer

__all__ = ["AccountPlan", "FleetRow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """One fleet in the plan.

    Attributes:
        fleet: its name.
        purchase: "spot", "on-demand", "mixed" or "external".
        offer: what an island there costs and takes, at its worst.
        slots: islands that start there.
        usable: whether a slot may move there.
        reason: why it was chosen, or not.
    """

    fleet: str
    purchase: str
    offer: Offer
    slots: int
    usable: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Give it as plain values."""
        return {
            **self.offer.to_json(),
            "fleet": self.fleet,
            "purchase": self.purchase,
            "slots": self.slots,
            "usable": self.usable,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountPlan:
    """What the user accepts before anything is started in the account.

    Attributes:
        region: the stack's region.
        rows: every fleet, usable ones first and in order.
        slots: islands at the start.
        usd_per_hour: the most that the run costs an hour at the start, coordinator included; None
            where a price is not known.
        coordinator_usd_per_hour: the coordinator's part; None where it is not known.
        steps: optimizer steps; None where only the data say.
        tokens_per_step: positions of a global batch.
        step_seconds: predicted seconds of a step; None where not known.
        total_seconds: predicted seconds of the job; None likewise.
        cost_usd: predicted price of the job; None likewise.
        catalogue: where prices are from.
        notes: what is assumed or not known.
    """

    region: str
    rows: tuple[FleetRow, ...]
    slots: int
    usd_per_hour: float | None
    coordinator_usd_per_hour: float | None
    steps: int | None
    tokens_per_step: int
    step_seconds: float | None
    total_seconds: float | None
    cost_usd: float | None
    catalogue: str
    notes: tuple[str, ...]

    @property
    def fleets(self) -> tuple[str, ...]:
        """Names of the fleets that slots may use, best first."""
        return tuple(row.fleet for row in self.rows if row.usable)

    @property
    def slots_by_fleet(self) -> dict[str, int]:
        """Islands that start in each fleet that is used at the start."""
        return {row.fleet: row.slots for row in self.rows if row.slots}

    @property
    def slot_fleets(self) -> tuple[str, ...]:
        """The fleet of each slot, by its number."""
        return tuple(row.fleet for row in self.rows for _ in range(row.slots))

    @property
    def usd_per_hour_by_fleet(self) -> dict[str, float]:
        """The most that one island costs an hour in each fleet whose price is known."""
        prices = {row.fleet: row.offer.total_usd_per_hour for row in self.rows if row.usable}
        return {fleet: price for fleet, price in prices.items() if price is not None}

    def to_json(self) -> dict[str, Any]:
        """Give the plan as plain values."""
        return {
            "region": self.region,
            "slots": self.slots,
            "fleets": list(self.fleets),
            "slots_by_fleet": self.slots_by_fleet,
            "usd_per_hour": self.usd_per_hour,
            "usd_per_hour_by_fleet": self.usd_per_hour_by_fleet,
            "coordinator_usd_per_hour": self.coordinator_usd_per_hour,
            "steps": self.steps,
            "tokens_per_step": self.tokens_per_step,
            "step_seconds": self.step_seconds,
            "total_seconds": self.total_seconds,
            "cost_usd": self.cost_usd,
            "catalogue": self.catalogue,
            "notes": list(self.notes),
            "rows": [row.to_json() for row in self.rows],
        }

    def lines(self) -> list[tuple[str, str]]:
        """Give the plan as (label, text) rows for the terminal."""
        start = ", ".join(
            f"{row.slots} x {row.offer.target} in {_named(row)}" for row in self.rows if row.slots
        )
        later = [row.fleet for row in self.rows if row.usable and not row.slots]
        rows = [
            ("account", f"the stack's region {self.region}"),
            ("islands", start + (f"; without capacity there: {', '.join(later)}" if later else "")),
            ("work", f"{_steps(self.steps)} of {self.tokens_per_step:,} tokens"),
        ]
        fits = [row.offer.fit.text() for row in self.rows if row.slots and row.offer.fit]
        rows.extend(("memory", text) for text in fits)
        rows += [("predicted", self._prediction()), ("price", self._price())]
        rows.extend(("note", note) for note in self.notes)
        rows.extend(
            ("not used", f"{row.fleet}: {row.reason}") for row in self.rows if not row.usable
        )
        return rows

    def _prediction(self) -> str:
        if self.step_seconds is None:
            return "not known before the job is compiled"
        total = "" if self.total_seconds is None else f", {_clock(self.total_seconds)} in all"
        return f"{self.step_seconds:.2g} s a step{total}"

    def _price(self) -> str:
        if self.usd_per_hour is None:
            return "not known"
        cost = "" if self.cost_usd is None else f", {self.cost_usd:.2f} $ in all"
        return f"at most {self.usd_per_hour:.4g} $/h with the coordinator{cost} ({self.catalogue})"


def _named(row: FleetRow) -> str:
    return f"fleet {row.fleet} ({row.purchase})"


def _steps(steps: int | None) -> str:
    return "steps" if steps is None else f"{steps} steps"


def _clock(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
