"""What an island costs and takes in a deployed fleet, at the worst of the fleet's instance types.

A fleet's Auto Scaling group chooses among its types. So the price is that of the dearest, the speed
that of the slowest, and a job that does not fit the smallest is kept off the fleet.

A price is AWS's own where `luma catalogue update` asked for the region, else the one that the fleet's
entry carries, else the one of the catalogue that comes with Luma.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from runtime.plan.costs import TargetCosts
from runtime.plan.offer import Offer, Purchase
from runtime.plan.offers import offer_of
from runtime.plan.requests import Request
from runtime.spec import Accelerator, Catalogue, JobSpec
from runtime.spec.account import COMPILER_FLEET, COORDINATOR_FLEET, Fleet
from runtime.spec.target_name import TargetName

__all__ = ["coordinator_price", "fleet_offer", "island_fleets"]

_OPPOSITE = {"spot": "never", "on-demand": "only"}
"""The value of `resources.spot` that a fleet's purchase contradicts."""


def island_fleets(fleets: Sequence[Fleet]) -> list[Fleet]:
    """Give the fleets that islands run on: neither the coordinator's host nor the compiler's."""
    others = {COORDINATOR_FLEET, COMPILER_FLEET}
    return [fleet for fleet in fleets if not {fleet.name, fleet.target} & others]


def coordinator_price(fleets: Sequence[Fleet], catalogue: Catalogue, region: str) -> float | None:
    """Give the most that the coordinator's host costs an hour; None where it is not known."""
    for fleet in fleets:
        if COORDINATOR_FLEET in {fleet.name, fleet.target}:
            prices = [_on_demand(catalogue, name, region) for name in fleet.instance_types]
            return _highest(prices) if fleet.usd_per_hour is None else fleet.usd_per_hour
    return None


def fleet_offer(
    spec: JobSpec,
    costs: Mapping[str, TargetCosts],
    fleet: Fleet,
    requests: Sequence[Request],
    catalogue: Catalogue,
    region: str,
) -> Offer:
    """Give the offer of a fleet; `refused` says why the job cannot use it.

    Args:
        spec: the job.
        costs: what it costs on each compiled target.
        fleet: the fleet.
        requests: accelerators that the job accepts.
        catalogue: instance types and prices.
        region: the stack's region.
    """
    rows = _rows(fleet, catalogue)
    request = _request(fleet, rows, requests)
    if request is None:
        wanted = ", ".join(item.text for item in requests)
        return _unknown(fleet, region, rank=0, refused=f"the job accepts {wanted}, and not this")
    if not rows:
        return _unknown(fleet, region, rank=request.rank, refused=_not_compiled(spec, fleet))
    offers = [
        offer_of(
            spec, costs, row, request, region=region, purchase=_purchase(fleet), target=fleet.target
        )
        for row in rows
    ]
    return _worst(spec, fleet, offers, catalogue, region)


def _worst(
    spec: JobSpec, fleet: Fleet, offers: Sequence[Offer], catalogue: Catalogue, region: str
) -> Offer:
    """Join the offers of a fleet's types into one: the dearest price, the slowest speed."""
    price, is_limit, day = _price(fleet, offers, catalogue, region)
    slowest = min(offers, key=lambda offer: offer.tokens_per_s or 0.0)
    smallest = min(offers, key=lambda offer: offer.fit.memory_bytes if offer.fit else 0)
    kinds = dict.fromkeys(offer.accelerator for offer in offers)
    return dataclasses.replace(
        slowest,
        infra="external" if fleet.asg is None else f"aws/{region}",
        instance=fleet.name,
        accelerator=", ".join(kinds),
        memory_gib=min(offer.memory_gib for offer in offers),
        usd_per_hour=price,
        price_is_limit=is_limit,
        price_date=day,
        availability=_availability(fleet),
        most=fleet.most,
        fit=smallest.fit,
        refused=_refusal(spec, fleet, offers),
    )


def _price(
    fleet: Fleet, offers: Sequence[Offer], catalogue: Catalogue, region: str
) -> tuple[float | None, bool, str | None]:
    """Give (the most that an instance costs an hour, whether it is only a bound, its day)."""
    if fleet.asg is None:
        return fleet.usd_per_hour or 0.0, False, None
    asked = all(catalogue.by_name(offer.instance).offer(region) for offer in offers)
    if not asked and fleet.usd_per_hour is not None:
        return fleet.usd_per_hour, fleet.purchase == "spot", None
    is_limit = any(offer.price_is_limit for offer in offers)
    days = [offer.price_date for offer in offers if offer.price_date]
    return _highest([offer.usd_per_hour for offer in offers]), is_limit, min(days, default=None)


def _refusal(spec: JobSpec, fleet: Fleet, offers: Sequence[Offer]) -> str | None:
    """Say why the job cannot use the fleet: its purchase, or the first type that cannot run it."""
    if fleet.purchase == "mixed" and fleet.asg is not None and spec.resources.spot != "auto":
        return f"resources.spot is {spec.resources.spot}, and the fleet is of both kinds"
    if fleet.asg is not None and spec.resources.spot == _OPPOSITE.get(fleet.purchase):
        return f"resources.spot is {spec.resources.spot}, and the fleet is {fleet.purchase}"
    named = len(offers) > 1
    for offer in offers:
        if offer.unfit is not None:
            return f"{offer.instance}: {offer.unfit}" if named else offer.unfit
    return None


def _rows(fleet: Fleet, catalogue: Catalogue) -> list[Accelerator]:
    """Give the catalogue's rows of a fleet's types; an external fleet's chip has one by its target."""
    names = set(fleet.instance_types)
    rows = [row for row in catalogue.accelerators if row.name in names]
    if fleet.asg is not None or rows:
        return rows if len(rows) == len(names) else []
    chip = TargetName.parse(fleet.target).chip
    external = [row for row in catalogue.by_target(chip) if row.where == "external"]
    return sorted(external, key=lambda row: row.memory_gib_per_chip)[:1]


def _request(
    fleet: Fleet, rows: Sequence[Accelerator], requests: Sequence[Request]
) -> Request | None:
    """Give the first of the job's requests that the fleet answers."""
    names = {fleet.target.lower(), TargetName.parse(fleet.target).chip}
    for request in requests:
        fits = all(request.takes(row) for row in rows) if rows else request.name in names
        if fits and request.count == fleet.chips:
            return request
    return None


def _unknown(fleet: Fleet, region: str, *, rank: int, refused: str | None) -> Offer:
    """Give the offer of a fleet of which the catalogue knows nothing, or which nobody asked for."""
    purchase = _purchase(fleet)
    return Offer(
        infra="external" if fleet.asg is None else f"aws/{region}",
        zone=None,
        instance=fleet.name,
        accelerator=", ".join(fleet.instance_types) or fleet.target,
        target=fleet.target,
        memory_gib=0.0,
        purchase=purchase,
        rank=rank,
        usd_per_hour=0.0 if fleet.asg is None else fleet.usd_per_hour,
        price_date=None,
        price_is_limit=purchase == "spot",
        availability=_availability(fleet),
        most=fleet.most,
        refused=refused,
    )


def _availability(fleet: Fleet) -> str:
    return "deployed" if fleet.most is None else f"deployed, at most {fleet.most}"


def _not_compiled(spec: JobSpec, fleet: Fleet) -> str | None:
    if fleet.target in spec.compile.targets:
        return None
    return f"target {fleet.target} is not compiled; add it to compile.targets"


def _purchase(fleet: Fleet) -> Purchase:
    if fleet.asg is None:
        return "external"
    return "spot" if fleet.purchase == "spot" else "on-demand"


def _on_demand(catalogue: Catalogue, name: str, region: str) -> float | None:
    try:
        found = catalogue.by_name(name).on_demand(region)
    except KeyError:
        return None
    return None if found is None else found[0]


def _highest(prices: Sequence[float | None]) -> float | None:
    """Give the highest price; None where one is not known."""
    known = [price for price in prices if price is not None]
    return max(known) if known and len(known) == len(prices) else None
