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

from runtime.plan.account_plan import AccountPlan, FleetRow
from runtime.plan.catalogue_file import current_catalogue
from runtime.plan.choose import SPOT_GUESS, Choice, choose, job_tokens, limits_of
from runtime.plan.costs import TargetCosts
from runtime.plan.fleets import coordinator_price, fleet_offer, island_fleets
from runtime.plan.offer import Offer
from runtime.plan.priced import catalogue_words
from runtime.plan.requests import known_regions, requests_of
from runtime.spec import CapacityError, Catalogue, JobSpec, SpecError
from runtime.spec.account import Fleet

__all__ = ["AccountPlan", "plan_account_run"]


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
    """Put the fleets in the order in which slots use them.

    Those that islands start in come first, then those of the same target, which keep the bits exact.
    """
    pairs = list(zip(fleets, offers, strict=True))
    targets = {o.target for o, count in zip(offers, choice.counts, strict=True) if count}
    rows = []
    for number, (fleet, offer) in enumerate(pairs):
        slots, reason, usable = choice.counts[number], choice.reasons[number], offer.refused is None
        whole = fixed + choice.solution.islands * (offer.total_usd_per_hour or 0.0)
        if usable and not slots and max_price is not None and whole > max_price + 1e-9:
            usable = False
            reason = (
                f"with all islands there ({choice.solution.islands}) the run would cost {whole:.4g} "
                f"$/h, above resources.max_price {max_price:g}/h"
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
        place = not usable, not slots, offer.target not in targets, *_worth(offer)
        rows.append((place, fleet.order, fleet.name, row))
    return tuple(row for *_, row in sorted(rows, key=lambda item: item[:-1]))


def _worth(offer: Offer) -> tuple[int, float]:
    """Order fleets by the price of a token; without one by the job's order, then by the hour.

    A price that is only a bound counts as what spot capacity mostly costs.
    """
    by_token, by_hour = offer.usd_per_mtok, offer.total_usd_per_hour
    price = by_hour if by_token is None else by_token
    guess = SPOT_GUESS if offer.price_is_limit else 1.0
    return (
        offer.rank if by_token is None else 0,
        float("inf") if price is None else price * guess,
    )


def _purchase(fleet: Fleet) -> str:
    return "external" if fleet.asg is None else fleet.purchase
