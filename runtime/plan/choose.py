"""Which offers a job takes: its limits, what gives way where they cannot all be kept, the reasons.

In this order, until something is possible: the islands that the job names, of several spot pools; the
same without that diversity; any number between `min_workers` and `max_workers`, with and without it.
Each time islands of one target come before a mixture, since only they give exact bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runtime.plan.choice import Limits, Pool, Solution, solve, weighted_cost
from runtime.plan.offer import Offer
from runtime.plan.predict import START_S, fleet_step_seconds, goodput
from runtime.plan.reasons import explain, no_plan
from runtime.spec import JobSpec

__all__ = ["SPOT_GUESS", "Choice", "choose", "job_tokens", "limits_of"]

_POOL_SHARE = 0.5
"""One spot pool may have half of the islands, rounded up: what AWS takes back, it takes back by pool
(the recorded groups mostly come and go as a whole)."""

SPOT_GUESS = 0.5
"""Part of the on-demand price that spot capacity is taken to cost where only that bound is known, and
only to order offers: limits and shown prices keep to the bound."""

_RANK_WEIGHT = 1e4
"""Dollars an hour that a later request of the job seems dearer where no speed is known: more than
any instance costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is taken of some offers.

    Attributes:
        counts: islands of each offer.
        reasons: of each offer.
        solution: the figures of all together, with speeds that add up.
        step_seconds: predicted seconds of a step, with whole shards; None where not known.
        total_seconds: predicted seconds of the job, start and interruptions included; None likewise.
        cost_usd: predicted price of the job; None likewise.
        notes: what was given up, and what is assumed.
    """

    counts: tuple[int, ...]
    reasons: tuple[str, ...]
    solution: Solution
    step_seconds: float | None
    total_seconds: float | None
    cost_usd: float | None
    notes: tuple[str, ...]


def choose(
    spec: JobSpec,
    offers: Sequence[Offer],
    limits: Limits,
    *,
    known_speeds: bool,
    what: str = "offers",
    prefer_spot: bool = False,
    unknown_price: float | None = None,
) -> Choice:
    """Choose among offers.

    Args:
        spec: the job.
        offers: all offers; those that are refused are never taken.
        limits: what to keep to.
        known_speeds: whether the job is compiled. Without speeds the best request of the job is
            taken, at the lowest price an hour, and no time or cost is predicted.
        what: what is chosen among, for errors.
        prefer_spot: whether spot capacity of which only the most that it can cost is known comes
            before on-demand capacity at that price: it is mostly far cheaper.
        unknown_price: what an offer without a price that is not refused counts as, dollars an hour.

    Raises:
        CapacityError: nothing keeps the limits; it names those in the way, and each offer's reason.
    """
    usable = [offer for offer in offers if offer.refused is None]
    notes: list[str] = []
    if known_speeds and usable and not any(offer.tokens_per_s for offer in usable):
        known_speeds = False
        notes.append("no speed is known of these chips, so the price an hour decides")
    if not known_speeds:
        limits = limits.without("tokens")
        notes.extend(_unpredicted(spec))
    pools = [
        _pool(offer, unknown_price, known_speeds=known_speeds, prefer_spot=prefer_spot)
        for offer in usable
    ]
    found = _first_possible(spec, pools, [offer.target for offer in usable], limits)
    if found is None:
        raise no_plan(offers, pools, limits, what=what)
    solution, kept, given_up = found
    step = _step_seconds(spec, usable, solution)
    total = _total_seconds(spec, usable, solution, kept, step)
    counts = iter(solution.counts)
    return Choice(
        counts=tuple(0 if offer.refused is not None else next(counts) for offer in offers),
        reasons=tuple(explain(offers, pools, kept, solution)),
        solution=solution,
        step_seconds=step,
        total_seconds=total,
        cost_usd=None if total is None else total / 3600 * solution.usd_per_hour,
        notes=(*notes, *given_up, *_late(kept, total), *_assumptions(usable, solution)),
    )


def _first_possible(
    spec: JobSpec, pools: Sequence[Pool], targets: Sequence[str | None], limits: Limits
) -> tuple[Solution, Limits, list[str]] | None:
    """Give (choice, limits that it keeps, what was given up), None where nothing is possible."""
    for kept, given_up in _attempts(spec, limits):
        solution = _of_one_target(pools, targets, kept) or solve(pools, kept)
        if solution is not None:
            return solution, kept, given_up
    return None


def _of_one_target(
    pools: Sequence[Pool], targets: Sequence[str | None], limits: Limits
) -> Solution | None:
    """Give the best choice whose islands all run one target, for only those have equal bits."""
    kinds = dict.fromkeys(targets)
    if len(kinds) < 2:
        return None
    found = []
    for kind in kinds:
        alone = [
            pool if target == kind else dataclasses.replace(pool, most=0)
            for pool, target in zip(pools, targets, strict=True)
        ]
        solution = solve(alone, limits)
        if solution is not None:
            found.append(solution)
    return min(found, key=lambda solution: weighted_cost(pools, limits, solution), default=None)


def _attempts(spec: JobSpec, limits: Limits) -> Iterator[tuple[Limits, list[str]]]:
    """Yield limits, the strictest first, each with what was given up for it."""
    ranges: list[tuple[Limits, list[str]]] = [(limits, [])]
    wanted = min(spec.resources.islands, limits.max_islands)
    if "islands" in spec.resources.model_fields_set:
        exact = dataclasses.replace(limits, min_islands=wanted, max_islands=wanted)
        ranges = [(exact, []), (limits, [f"resources.islands: {wanted} do not keep the limits"])]
    for kept, given_up in ranges:
        yield kept, given_up
        if kept.pool_share < 1:
            note = "diversity was given up: the limits leave too few spot pools for it"
            yield kept.without("pool_share"), [*given_up, note]


def limits_of(
    spec: JobSpec,
    *,
    tokens: float | None,
    fixed_usd_per_hour: float,
    start_s: float = START_S,
) -> Limits:
    """Give the limits of a job.

    Args:
        spec: the job.
        tokens: tokens of the whole job; None where its length is not known.
        fixed_usd_per_hour: what it costs an hour beside its islands.
        start_s: seconds that instances are paid before the job makes progress.
    """
    resources = spec.resources
    most = min(resources.max_workers, spec.train.micro_shards)
    return Limits(
        min_islands=min(resources.min_workers, most),
        max_islands=most,
        fixed_usd_per_hour=fixed_usd_per_hour,
        tokens=tokens,
        max_price=resources.max_price,
        max_cost=resources.max_cost,
        deadline_s=resources.deadline_s,
        start_s=start_s,
        min_on_demand=min(resources.min_on_demand, most),
        pool_share=_POOL_SHARE,
    )


def job_tokens(spec: JobSpec, steps: int | None) -> float | None:
    """Give the tokens of a job; None where only the data say how long it is."""
    train = spec.train
    per_step = train.samples_per_step * train.seq_len
    if steps is None:
        steps = train.steps
    if steps is None and train.tokens is not None:
        steps = -(-train.tokens // per_step)
    return None if steps is None else float(steps * per_step)


def _pool(
    offer: Offer, unknown_price: float | None, *, known_speeds: bool, prefer_spot: bool
) -> Pool:
    """Give an offer as the choice sees it."""
    price = offer.total_usd_per_hour if offer.usd_per_hour is not None else unknown_price
    assert price is not None  # noqa: S101 - an offer without a price is refused
    wanted = prefer_spot and offer.price_is_limit
    weight = price * SPOT_GUESS if wanted else price
    if not known_speeds:
        # The job's order decides, then the price.
        weight += _RANK_WEIGHT * offer.rank
    return Pool(
        usd_per_hour=price,
        weight=weight,
        speed=(offer.tokens_per_s or 0.0) if known_speeds else 1.0,
        spot=offer.purchase == "spot",
        most=offer.most,
    )


def _step_seconds(spec: JobSpec, usable: Sequence[Offer], solution: Solution) -> float | None:
    """Predict a step of the chosen islands together."""
    islands = [
        offer.times
        for offer, count in zip(usable, solution.counts, strict=True)
        for _ in range(count)
    ]
    known = [times for times in islands if times is not None]
    if not known or len(known) < len(islands):
        return None
    return fleet_step_seconds(known, spec.train.micro_shards)


def _total_seconds(
    spec: JobSpec,
    usable: Sequence[Offer],
    solution: Solution,
    limits: Limits,
    step_seconds: float | None,
) -> float | None:
    """Predict the job: its start, and its steps with what interruptions cost."""
    if limits.tokens is None or step_seconds is None:
        return None
    steps = limits.tokens / (spec.train.samples_per_step * spec.train.seq_len)
    useful = sum(
        count * goodput(offer.interruptions_per_hour or 0.0)
        for offer, count in zip(usable, solution.counts, strict=True)
    )
    return limits.start_s + steps * step_seconds * solution.islands / useful


def _late(limits: Limits, total_seconds: float | None) -> list[str]:
    """Say where whole shards on islands of several kinds take longer than speeds that add up."""
    if total_seconds is None or limits.deadline_s is None or total_seconds <= limits.deadline_s:
        return []
    return [f"shards are whole, so it may take {total_seconds / 3600:.2f} h, past the deadline"]


def _unpredicted(spec: JobSpec) -> list[str]:
    """Say which limits cannot be judged without speeds."""
    resources = spec.resources
    named = {"resources.deadline": resources.deadline_s, "resources.max_cost": resources.max_cost}
    lost = [name for name, value in named.items() if value is not None]
    text = ["neither fit nor time nor cost is predicted: the job is not compiled"]
    return text + [f"{name} is not judged without a prediction" for name in lost]


def _assumptions(usable: Sequence[Offer], solution: Solution) -> list[str]:
    """Say what of the chosen offers is not known."""
    taken = [offer for offer, count in zip(usable, solution.counts, strict=True) if count]
    notes: list[str] = []
    if any(offer.price_is_limit for offer in taken):
        notes.append("spot prices are not known: planned at the on-demand price, the most they are")
    if any(offer.fit is not None and not offer.fit.stated for offer in taken):
        notes.append("its compiler states no memory, so that it fits is not certain")
    if any(offer.times is not None and offer.times.sums_bytes is None for offer in taken):
        notes.append("the exchange between islands is not in the prediction")
    if len({offer.target for offer in taken}) > 1:
        notes.append(
            "islands of several chip classes: the certificate can say 'equivalent' at most"
        )
    return notes
