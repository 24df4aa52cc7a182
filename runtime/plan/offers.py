"""The offers of a job: what could run it, one row a place, instance type and way of buying."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runtime.artifact import Level
from runtime.plan.chips import chip_of_row
from runtime.plan.costs import TargetCosts
from runtime.plan.fit import Fit, Shape
from runtime.plan.offer import Offer, Purchase
from runtime.plan.predict import IslandTimes, goodput, island_speed, island_times
from runtime.plan.requests import Request, target_for
from runtime.plan.spot_rates import load_spot_rates
from runtime.spec import Accelerator, Catalogue, JobSpec
from runtime.spec.catalogue import RegionOffer

__all__ = ["egress_usd_per_hour", "make_offers", "offer_of", "seal_of"]

_RESERVE = "a capacity block is reserved and paid beforehand, by you; give it to a fleet as its capacity block"
_JOIN = (
    "its provider's price is not known here; join the host to the account as an external fleet, and "
    "the plan takes it"
)

EGRESS_USD_PER_GB = 0.09
"""Data out of AWS to the internet, US dollars per 10^9 bytes: the list price of the first 10 TB a
month in us-east-1. Recalled, not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What of a job every row needs.

    Attributes:
        spec: the job.
        costs: what it costs on each compiled target; empty where nothing is compiled.
        require: seal level that every node must be able to reach.
    """

    spec: JobSpec
    costs: Mapping[str, TargetCosts]
    require: Level | None = None

    @property
    def islands(self) -> range:
        """How many islands there may be: no more than have work."""
        resources = self.spec.resources
        most = min(resources.max_workers, self.spec.train.micro_shards)
        return range(min(resources.min_workers, most), most + 1)


def make_offers(
    spec: JobSpec,
    costs: Mapping[str, TargetCosts],
    catalogue: Catalogue,
    requests: Sequence[Request],
    regions: Sequence[str],
    *,
    require: Level | None = None,
) -> tuple[Offer, ...]:
    """Give the offers that answer a job's requests, the cheapest a token first.

    Args:
        spec: the job.
        costs: what it costs on each compiled target; empty where nothing is compiled.
        catalogue: instance types and prices.
        requests: accelerators that the job accepts.
        regions: regions of AWS.
        require: seal level that every node must be able to reach; None for no demand.
    """
    job = _Job(spec=spec, costs=costs, require=require)
    found: list[Offer] = []
    for row in catalogue.accelerators:
        request = next((request for request in requests if request.takes(row)), None)
        if request is None or (row.where == "ec2" and not row.launchable):
            continue
        if row.where == "external":
            found.append(_external(job, row, request))
            continue
        for region in regions:
            found.extend(_in_region(job, row, request, region))
    return tuple(sorted(found, key=_order))


def offer_of(
    spec: JobSpec,
    costs: Mapping[str, TargetCosts],
    row: Accelerator,
    request: Request,
    *,
    region: str,
    purchase: Purchase,
    target: str | None = None,
) -> Offer:
    """Give one offer of an instance type, at the most that it costs in a region.

    Args:
        spec: the job.
        costs: what it costs on each compiled target.
        row: the instance type, or an external chip.
        request: the accelerator of the job that it answers.
        region: a region of AWS.
        purchase: how it is bought.
        target: what an island there runs; None for what the job is compiled for.
    """
    job = _Job(spec=spec, costs=costs)
    if purchase == "external" or row.where == "external":
        return _external(job, row, request, target)
    offers = [o for o in _in_region(job, row, request, region, target) if o.purchase == purchase]
    return max(offers, key=lambda offer: offer.usd_per_hour or 0.0)


def seal_of(row: Accelerator) -> str:
    """Give the highest seal level that can be reached on an instance type.

    Any node can run what an enclave compiled (L2). An attested runtime (L3) needs an instance with a
    NitroTPM, so it is out of reach outside of EC2.
    """
    if row.where == "ec2" and row.nitro_tpm is None:
        return "L2 or L3"
    return "L3" if row.where == "ec2" and row.nitro_tpm else "L2"


def _in_region(
    job: _Job, row: Accelerator, request: Request, region: str, target: str | None = None
) -> Iterator[Offer]:
    """Yield the ways of buying an instance type in a region."""
    said, listed = row.offer(region), row.on_demand(region)
    there = row.offered(region)
    zones = None if said is None or not said.zones else f"{len(said.zones)} zones"
    base = dataclasses.replace(
        _of_type(job, row, request, target),
        infra=f"aws/{region}",
        usd_per_hour=listed[0] if listed else None,
        price_date=listed[1] if listed else None,
        availability=zones or {True: "offered", False: "not offered", None: "not known"}[there],
    )
    missing = f"{row.name} is not offered in {region}" if there is False else None
    yield _judged(job, base, missing)
    for offer in _spot_offers(row, said, base):
        yield _judged(job, offer, missing)
    for block in () if said is None else said.capacity_blocks:
        offer = dataclasses.replace(
            base,
            zone=block.zone,
            purchase="capacity-block",
            usd_per_hour=block.usd_per_hour,
            price_date=said.date if said else None,
            availability=f"{block.instances} from {block.start} for {block.hours} h",
        )
        yield _judged(job, offer, _RESERVE)


def _spot_offers(row: Accelerator, said: RegionOffer | None, base: Offer) -> Iterator[Offer]:
    """Yield one offer a zone whose spot price is known; without any, one at the most that it is."""
    if said is not None and said.spot:
        for price in said.spot:
            yield dataclasses.replace(
                base,
                zone=price.zone,
                purchase="spot",
                usd_per_hour=price.usd_per_hour,
                price_date=said.date,
                availability="has a spot price",
            )
    elif row.sold("spot"):
        yield dataclasses.replace(
            base, purchase="spot", price_is_limit=base.usd_per_hour is not None
        )


def _external(job: _Job, row: Accelerator, request: Request, target: str | None = None) -> Offer:
    """Give the offer of a chip outside of AWS, whose price its provider knows."""
    base = _of_type(job, row, request, target)
    offer = dataclasses.replace(
        base, infra="external", purchase="external", availability="yours to join"
    )
    return _judged(job, offer, _JOIN)


def _of_type(job: _Job, row: Accelerator, request: Request, target: str | None) -> Offer:
    """Give what does not depend on place and purchase, among it why the type cannot be taken."""
    count = 1 if row.is_cpu else request.count
    name = target or target_for(row, count, job.spec.compile.targets)
    costs = None if name is None else job.costs.get(name)
    chip = chip_of_row(row, threads=job.spec.resources.asked_threads)
    fit = None if costs is None else costs.fit(chip, Shape.of(job.spec))
    times = None
    if costs is not None and fit is not None and fit.fits:
        times = island_times(costs, chip, job.spec.model.dtype, row.network_gbps)
    return Offer(
        infra="",
        zone=None,
        instance=row.name,
        accelerator=f"{row.chip}:{'?' if row.count is None else row.count}",
        target=name,
        memory_gib=row.memory_gib_per_chip * count,
        purchase="on-demand",
        rank=request.rank,
        usd_per_hour=None,
        price_date=None,
        seal=seal_of(row),
        fit=fit,
        times=times,
        unfit=_refusal(job, row, count, name, fit),
    )


def _refusal(
    job: _Job, row: Accelerator, count: int, target: str | None, fit: Fit | None
) -> str | None:
    """Say why an instance type cannot run an island, the first reason."""
    if target is None:
        return row.note or f"Luma cannot compile for {row.chip}"
    if row.count == 0:
        return f"it has a fraction of one {row.chip}, which no island runs on"
    if row.where == "ec2" and row.count is None:
        return "the number of its chips is not known; run `luma catalogue update`"
    if row.where == "ec2" and row.count is not None and row.count < count:
        return f"it has {row.count} of the {count} chips that an island takes"
    if job.require is not None and seal_of(row) < job.require:
        return f"{job.require} cannot be reached there, {_no_attestation(row)}"
    if target not in job.spec.compile.targets:
        return f"target {target} is not compiled; add it to compile.targets"
    if job.costs and target not in job.costs:
        return f"the artifact holds no {target}; compile the job again with it in compile.targets"
    if fit is not None and not fit.fits:
        ways = f"; {' or '.join(fit.ways)}" if fit.ways else ""
        return f"does not fit, needs {_gib(fit.needed_bytes)} of {_gib(fit.memory_bytes)}{ways}"
    return None


def _no_attestation(row: Accelerator) -> str:
    return (
        "nothing attests a host outside of EC2" if row.where == "external" else "it has no NitroTPM"
    )


def _judged(job: _Job, offer: Offer, missing: str | None) -> Offer:
    """Add an offer's speed, which follows from how often it is taken back, and its refusal."""
    rate, source = _interruptions(offer.purchase)
    offer = dataclasses.replace(
        offer,
        interruptions_per_hour=rate,
        interruptions=source,
        refused=offer.unfit or missing or _purchase_refusal(job, offer),
    )
    if offer.times is None:
        return offer
    train = job.spec.train
    tokens = train.samples_per_step * train.seq_len
    speed = island_speed(
        offer.times, shards=train.micro_shards, islands=job.islands, tokens_per_step=tokens
    )
    speed *= 1.0 if rate is None else goodput(rate)
    egress: float | None = 0.0
    if offer.purchase == "external":
        egress = egress_usd_per_hour(offer.times, speed * job.islands[-1] / tokens)
    return dataclasses.replace(
        offer,
        tokens_per_s=speed,
        step_s=train.micro_shards * offer.times.shard_s + offer.times.update_s,
        egress_usd_per_hour=egress,
    )


def _purchase_refusal(job: _Job, offer: Offer) -> str | None:
    """Say why an instance cannot be bought so."""
    if offer.usd_per_hour is None:
        return "no price known; run `luma catalogue update` with credentials of the account"
    unwanted = {"never": "spot", "only": "on-demand"}.get(job.spec.resources.spot)
    if offer.purchase == unwanted:
        return f"resources.spot is {job.spec.resources.spot}"
    return None


def _interruptions(purchase: Purchase) -> tuple[float | None, str | None]:
    """Give the rate that a plan counts with, and where it is from."""
    if purchase != "spot":
        return 0.0 if purchase in {"on-demand", "owned"} else None, None
    rates = load_spot_rates()
    low, high = rates.range
    return rates.median, f"{low:.1f} to {high:.1f} an hour {rates.label()}"


def egress_usd_per_hour(times: IslandTimes, steps_per_s: float) -> float | None:
    """Give the price an hour of the sums that leave AWS: at most twice their size a step."""
    if times.sums_bytes is None:
        return None
    return 2 * times.sums_bytes * steps_per_s * 3600 / 1e9 * EGRESS_USD_PER_GB


def _order(offer: Offer) -> tuple[bool, float, float, str, str]:
    """Sort: what can be taken first, then by price a token, else by price."""
    price = offer.total_usd_per_hour
    by_price = float("inf") if price is None else price
    by_token = float("inf") if offer.usd_per_mtok is None else offer.usd_per_mtok
    return offer.refused is not None, by_token, by_price, offer.instance, offer.purchase


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
