"""The plan of a run in an account: which of the deployed fleets it uses, for how much, how long.

A job may only use fleets that are deployed (`runtime.spec.account.Fleet`, one a parameter of the
stack). A fleet's Auto Scaling group picks among its instance types, so the plan
counts with the dearest, the slowest and the smallest of them: neither `resources.max_price` nor the
memory is passed, whatever is launched.

`fleets` of the plan is the order in which a slot that finds no capacity moves on. A fleet in which all
slots together would pass `resources.max_price` is not in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.plan.catalogue_file import current_catalogue
from runtime.plan.choose import SPOT_GUESS, Choice, choose, job_tokens, limits_of
from runtime.plan.costs import TargetCosts
from runtime.plan.fleets import coordinator_price, fleet_offer, island_fleets
from runtime.plan.offer import Offer
from runtime.plan.priced import catalogue_words
from runtime.plan.requests import known_regions, requests_of
from runtime.spec import CapacityError, Catalogue, JobSpec, SpecError
from runtime.spec.account import Fleet

__all__ = ["AccountPlan", "FleetRow", "plan_account_run"]


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


def plan_account_run(
    spec: JobSpec,
    costs: Mapping[str, TargetCosts],
    fleets: Sequence[Fleet],
    *,
    region: str,
    steps: int | None = None,
    catalogue: Catalogue | None = None,
) -> AccountPlan:
    """Plan a run on the fleets of a stack.

    Args:
        spec: the job.
        costs: what it costs on each compiled target; empty where nothing is compiled yet.
        fleets: the entries of the stack's fleets, the coordinator's included.
        region: the stack's region.
        steps: optimizer steps; None for what the job file says, where it does.
        catalogue: prices; None for the user's file, else the one that comes with Luma.

    Raises:
        SpecError: the job's places do not include the region.
        CapacityError: no fleet can run the job within its limits; it names those in the way, and
            each fleet with its reason.
    """
    _check_place(spec, region)
    prices = current_catalogue() if catalogue is None else catalogue
    islands, requests = island_fleets(fleets), requests_of(spec)
    if not islands:
        raise CapacityError(
            "the stack has no fleet for islands", remedy="deploy it again with at least one fleet"
        )
    offers = [fleet_offer(spec, costs, fleet, requests, prices, region) for fleet in islands]
    fixed = coordinator_price(fleets, prices, region)
    limits = limits_of(spec, tokens=job_tokens(spec, steps), fixed_usd_per_hour=fixed or 0.0)
    # A fleet's group spreads over types and zones by itself, and one chip class gives exact bits.
    limits = limits.without("pool_share")
    offers = [_judge_price(spec, offer) for offer in offers]
    highest = max((offer.usd_per_hour or 0.0 for offer in offers), default=0.0)
    choice = choose(
        spec,
        offers,
        limits,
        known_speeds=bool(costs),
        what="fleets",
        prefer_spot=True,
        unknown_price=2 * highest + 1.0,
    )
    rows = _rows(islands, offers, choice, max_price=limits.max_price, fixed=fixed or 0.0)
    return _plan(spec, region, rows, choice, fixed, prices, steps)


def _plan(
    spec: JobSpec,
    region: str,
    rows: tuple[FleetRow, ...],
    choice: Choice,
    fixed: float | None,
    prices: Catalogue,
    steps: int | None,
) -> AccountPlan:
    per_step = spec.train.samples_per_step * spec.train.seq_len
    tokens = job_tokens(spec, steps)
    count = None if tokens is None else round(tokens / per_step)
    known = all(row.offer.usd_per_hour is not None for row in rows if row.slots)
    solution, notes = choice.solution, list(choice.notes)
    if region not in known_regions(prices):
        notes.append(
            f"prices are those of another region; `luma catalogue update --region {region}` asks AWS"
        )
    if fixed is None:
        notes.append("the coordinator's price is not known, and not in the price")
    if not known:
        notes.append(
            "a fleet's price is not known; give its instance types to `luma catalogue update`"
        )
    return AccountPlan(
        region=region,
        rows=rows,
        slots=solution.islands,
        usd_per_hour=solution.usd_per_hour if known else None,
        coordinator_usd_per_hour=fixed,
        steps=count,
        tokens_per_step=per_step,
        step_seconds=choice.step_seconds,
        total_seconds=choice.total_seconds,
        cost_usd=choice.cost_usd if known else None,
        catalogue=catalogue_words(prices),
        notes=tuple(notes),
    )


def _check_place(spec: JobSpec, region: str) -> None:
    """Refuse a job that does not want to run in the stack's region.

    Raises:
        SpecError: none of its places is the region.
    """
    for place in spec.resources.places:
        name = place.removeprefix("aws/")
        if place != "local" and (
            name == region or (name.endswith("*") and region.startswith(name[:-1]))
        ):
            return
    raise SpecError(
        f"resources.infra: {', '.join(spec.resources.places)} is not the stack's region {region}",
        remedy=f"set resources.infra to aws/{region}, or name a stack in another region",
    )


def _judge_price(spec: JobSpec, offer: Offer) -> Offer:
    """Refuse a fleet without a known price where money is limited; else it comes after the others."""
    limited = spec.resources.max_price is not None or spec.resources.max_cost is not None
    if offer.refused is not None or offer.usd_per_hour is not None or not limited:
        return offer
    return dataclasses.replace(
        offer, refused="its price is not known, and resources limits the money"
    )


def _rows(
    fleets: Sequence[Fleet],
    offers: Sequence[Offer],
    choice: Choice,
    *,
    max_price: float | None,
    fixed: float,
) -> tuple[FleetRow, ...]:
    """Put the fleets in the order in which slots use them."""
    rows = []
    for number, (fleet, offer) in enumerate(zip(fleets, offers, strict=True)):
        slots, reason, usable = choice.counts[number], choice.reasons[number], offer.refused is None
        whole = fixed + choice.solution.islands * (offer.total_usd_per_hour or 0.0)
        if usable and not slots and max_price is not None and whole > max_price + 1e-9:
            usable = False
            reason = (
                f"all {choice.solution.islands} islands there would cost {whole:.4g} $/h, above "
                f"resources.max_price {max_price:g}/h"
            )
        if offer.usd_per_hour is None and usable:
            reason = "chosen; its price is not known" if slots else "its price is not known"
        row = FleetRow(
            fleet=fleet.name,
            purchase=_purchase(fleet),
            offer=offer,
            slots=slots,
            usable=usable,
            reason=reason,
        )
        rows.append((not usable, not slots, _worth(offer), fleet.order, fleet.name, row))
    return tuple(row for *_, row in sorted(rows, key=lambda item: item[:-1]))


def _worth(offer: Offer) -> float:
    """Order fleets by the price of a token, else of an hour; an upper bound counts a little less."""
    price = offer.usd_per_mtok if offer.usd_per_mtok is not None else offer.total_usd_per_hour
    if price is None:
        return float("inf")
    return price * (SPOT_GUESS if offer.price_is_limit else 1.0)


def _purchase(fleet: Fleet) -> str:
    return "external" if fleet.asg is None else fleet.purchase


def _named(row: FleetRow) -> str:
    return f"fleet {row.fleet} ({row.purchase})"


def _steps(steps: int | None) -> str:
    return "steps" if steps is None else f"{steps} steps"


def _clock(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
