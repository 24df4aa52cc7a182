"""Why each offer was chosen or not: the reasons that a plan shows, and those of a plan that fails."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence

from runtime.plan.choice import Limits, Pool, Solution, binding_limits, solve
from runtime.plan.offer import Offer
from runtime.spec import CapacityError

__all__ = ["explain", "no_plan"]

_FIELDS = {
    "max_price": "resources.max_price",
    "max_cost": "resources.max_cost",
    "deadline_s": "resources.deadline",
    "min_on_demand": "resources.min_on_demand",
    "min_islands": "resources.min_workers",
    "pool_share": "diversity",
    "start_s": "its start",
}
_REASONS = {
    "pool_share": "one spot pool may not hold most of the islands",
    "min_on_demand": "that many islands must be on demand",
    "max_price": "with it the price an hour would be passed",
    "max_cost": "with it the price of the job would be passed",
    "deadline_s": "with it the job would end too late",
    "start_s": "the job is so short that its start costs more than it saves",
}
"""What each limit keeps an offer from."""

_MOST_OFFERS = 60
"""An error carries so many offers; a table of the whole catalogue hides what matters."""


def explain(
    offers: Sequence[Offer], pools: Sequence[Pool], limits: Limits, solution: Solution
) -> list[str]:
    """Give the reason of each offer.

    Args:
        offers: all offers; those that cannot be taken carry their own reason.
        pools: one of each offer that can be taken, in their order.
        limits: what the choice kept to.
        solution: the choice.
    """
    without = functools.cache(lambda name: solve(pools, limits.without(name)))
    numbers = iter(range(len(pools)))
    return [
        offer.refused
        if offer.refused is not None
        else _of_candidate(next(numbers), offer, pools, limits, solution, without)
        for offer in offers
    ]


def no_plan(
    offers: Sequence[Offer], pools: Sequence[Pool], limits: Limits, *, what: str
) -> CapacityError:
    """Give the error of a job that nothing can run: the limits in the way, each offer's reason.

    Args:
        offers: all offers.
        pools: one of each offer that can be taken.
        limits: what the choice had to keep to.
        what: what was looked through, such as "offers".
    """
    rows = [_line(offer) for offer in offers if offer.refused is not None]
    rows += [_line(offer) for offer in offers if offer.refused is None]
    shown = rows[:_MOST_OFFERS]
    if len(rows) > len(shown):
        shown.append(f"... and {len(rows) - len(shown)} more")
    binding = list(binding_limits(pools, limits))
    remedy = "; or ".join(_loosen(name, value) for name, value in binding)
    if not pools:
        head = f"no {what} can run the job"
        remedy = "see the reasons above; `luma check JOB` judges the job itself"
    elif binding:
        names = " and ".join(f"{_FIELDS[name]}" for name, _ in binding)
        head = f"{names}: no choice of {what} keeps it"
    else:
        head = f"no choice of {what} keeps all limits together: {', '.join(_given(limits))}"
        remedy = "loosen two of them"
    return CapacityError("\n  ".join([head, *shown]), remedy=remedy)


def _of_candidate(
    number: int,
    offer: Offer,
    pools: Sequence[Pool],
    limits: Limits,
    solution: Solution,
    without: Callable[[str], Solution | None],
) -> str:
    """Say why an offer that could be taken was, or was not."""
    count, pool = solution.counts[number], pools[number]
    if count:
        return f"chosen: {count} of {solution.islands} islands, {_value(pool, limits)}"
    least = limits.fixed_usd_per_hour + pool.usd_per_hour
    if limits.max_price is not None and least > limits.max_price + 1e-9:
        return f"one island costs {least:.4g} $/h, above resources.max_price {limits.max_price:g}/h"
    if _ratio(pool) >= _chosen_ratio(pools, solution) * (1 - 1e-6):
        if offer.price_is_limit:
            return "its spot price is not known, only that it is at most the on-demand price"
        return (
            f"dominated: {_value(pool, limits)}, the chosen ones {_chosen(pools, solution, limits)}"
        )
    for name, reason in _REASONS.items():
        if limits.without(name) == limits:
            continue
        other = without(name)
        if other is not None and other.counts[number]:
            return f"left out by {_FIELDS[name]}: {_value(pool, limits)}, but {reason}"
    return f"{_value(pool, limits)}; the chosen islands together cost less within the limits"


def _ratio(pool: Pool) -> float:
    return pool.weight / pool.speed if pool.speed else math.inf


def _chosen_ratio(pools: Sequence[Pool], solution: Solution) -> float:
    taken = [pool for pool, count in zip(pools, solution.counts, strict=True) if count]
    return max(_ratio(pool) for pool in taken)


def _chosen(pools: Sequence[Pool], solution: Solution, limits: Limits) -> str:
    taken = [pool for pool, count in zip(pools, solution.counts, strict=True) if count]
    return _value(max(taken, key=_ratio), limits)


def _value(pool: Pool, limits: Limits) -> str:
    """Give what an offer costs: a token where speeds are known, else an hour."""
    if limits.tokens is None:
        return f"{pool.usd_per_hour:.4g} $/h"
    return f"{pool.usd_per_hour / (pool.speed * 3600) * 1e6:.4g} $/Mtok"


def _line(offer: Offer) -> str:
    price = "price not known" if offer.usd_per_hour is None else f"{offer.usd_per_hour:.4g} $/h"
    place = offer.zone or offer.infra
    reason = offer.refused or "can run it, but not within the limits"
    return f"{offer.instance} {offer.purchase} in {place}, {price}: {reason}"


def _loosen(name: str, value: float) -> str:
    """Say what value of a limit would be enough."""
    if name == "max_price":
        return f"resources.max_price: {_round_up(value)}/h"
    if name == "max_cost":
        return f"resources.max_cost: {_round_up(value)}"
    if name == "deadline_s":
        return f"resources.deadline: {math.ceil(value / 60)}m"
    if name == "min_on_demand":
        return f"resources.min_on_demand: {value:.0f}"
    return f"resources.min_workers: {value:.0f}"


def _round_up(value: float) -> str:
    """Write dollars with three digits behind the point, never below the value."""
    return f"{math.ceil(value * 1000 - 1e-6) / 1000:g}"


def _given(limits: Limits) -> Iterator[str]:
    """Yield the limits that are set, as the job has them."""
    forms = {
        "max_price": "{:g}/h",
        "max_cost": "{:g} $",
        "deadline_s": "{:g} s",
        "min_on_demand": "{:g}",
        "min_islands": "{:g}",
    }
    for name, form in forms.items():
        value = getattr(limits, name)
        if value not in {None, 0}:
            yield f"{_FIELDS[name]} {form.format(value)}"
