"""The integer program finds what a search through all choices finds, and keeps every limit."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from runtime.plan.choice import Limits, Pool, binding_limits, solve, weighted_cost


def allowed(counts, pools, limits) -> bool:
    """Whether a choice keeps the limits, by their own words."""
    islands = sum(counts)
    price = limits.fixed_usd_per_hour + sum(
        n * pool.usd_per_hour for n, pool in zip(counts, pools, strict=True)
    )
    speed = sum(n * pool.speed for n, pool in zip(counts, pools, strict=True))
    if not limits.min_islands <= islands <= limits.max_islands or not speed:
        return False
    if limits.max_price is not None and price > limits.max_price + 1e-9:
        return False
    if limits.tokens is not None:
        seconds = limits.tokens / speed + limits.start_s
        if limits.deadline_s is not None and seconds > limits.deadline_s * (1 + 1e-9):
            return False
        if limits.max_cost is not None and price * seconds / 3600 > limits.max_cost * (1 + 1e-9):
            return False
    on_demand = sum(n for n, pool in zip(counts, pools, strict=True) if not pool.spot)
    most = math.ceil(limits.pool_share * islands - 1e-9)
    return on_demand >= limits.min_on_demand and all(
        n <= most for n, pool in zip(counts, pools, strict=True) if pool.spot
    )


def cost(counts, pools, limits) -> float:
    """What is to be least of a choice: the weighted price of the job."""
    weight = limits.fixed_usd_per_hour + sum(
        n * pool.weight for n, pool in zip(counts, pools, strict=True)
    )
    speed = sum(n * pool.speed for n, pool in zip(counts, pools, strict=True))
    return weight * ((limits.tokens or 1.0) / speed + limits.start_s)


def search(pools, limits) -> float | None:
    """The least cost of all choices that keep the limits."""
    ranges = [
        range(1 + min(limits.max_islands, limits.max_islands if p.most is None else p.most))
        for p in pools
    ]
    found = [
        cost(counts, pools, limits)
        for counts in itertools.product(*ranges)
        if allowed(counts, pools, limits)
    ]
    return min(found, default=None)


def clear(pools, limits) -> bool:
    """Whether no choice lies within a rounding error of a limit, where either answer is right."""
    ways = [
        dataclasses.replace(
            limits,
            max_price=None if limits.max_price is None else limits.max_price * factor,
            max_cost=None if limits.max_cost is None else limits.max_cost * factor,
            deadline_s=None if limits.deadline_s is None else limits.deadline_s * factor,
        )
        for factor in (1 - 1e-4, 1 + 1e-4)
    ]
    return search(pools, ways[0]) == search(pools, ways[1])


prices = st.integers(1, 2000).map(lambda cents: cents / 100)


@st.composite
def pool_lists(draw):
    """One to four pools."""
    return [
        Pool(
            usd_per_hour=(price := draw(prices)),
            weight=price * draw(st.sampled_from([1.0, 0.5])),
            speed=float(draw(st.integers(1, 500)) * draw(st.sampled_from([1, 1000]))),
            spot=draw(st.booleans()),
            most=draw(st.sampled_from([None, 1, 3])),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]


@st.composite
def limit_sets(draw, *, start_s: float = 0.0):
    """Limits of up to five islands."""
    least = draw(st.integers(1, 3))
    return Limits(
        min_islands=least,
        max_islands=draw(st.integers(least, 5)),
        fixed_usd_per_hour=draw(st.sampled_from([0.0, 0.1])),
        tokens=draw(st.sampled_from([None, 1e7, 1e9])) if not start_s else 1e7,
        max_price=draw(st.none() | prices),
        max_cost=draw(st.none() | st.integers(1, 1000).map(float)),
        deadline_s=draw(st.none() | st.integers(600, 10**6).map(float)),
        start_s=start_s,
        min_on_demand=draw(st.integers(0, 2)),
        pool_share=draw(st.sampled_from([1.0, 0.5])),
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(pools=pool_lists(), limits=limit_sets())
def test_the_choice_is_the_best_of_all(pools, limits) -> None:
    assume(clear(pools, limits))
    best, found = search(pools, limits), solve(pools, limits)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert allowed(found.counts, pools, limits)
        assert cost(found.counts, pools, limits) == pytest.approx(best, rel=1e-5)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(pools=pool_lists(), limits=limit_sets(start_s=300.0))
def test_with_a_start_it_is_at_most_a_quarter_dearer_and_keeps_the_limits(pools, limits) -> None:
    # A cost that counts the start is kept by a stricter one, so a choice may be missed there.
    limits = dataclasses.replace(limits, max_cost=None)
    assume(clear(pools, limits))
    best, found = search(pools, limits), solve(pools, limits)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert allowed(found.counts, pools, limits)
        assert cost(found.counts, pools, limits) <= 1.25 * best * (1 + 1e-6)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(pools=pool_lists(), limits=limit_sets(start_s=300.0))
def test_no_choice_ever_passes_a_limit(pools, limits) -> None:
    found = solve(pools, limits)
    if found is not None:
        assert allowed(found.counts, pools, dataclasses.replace(limits, **_rounded(limits)))
        assert found.usd_per_hour <= (limits.max_price or math.inf) + 1e-9


def _rounded(limits: Limits) -> dict[str, float | None]:
    """Limits of time and cost with the solver's tolerance; a price an hour has none."""
    names = ("max_cost", "deadline_s")
    values = {name: getattr(limits, name) for name in names}
    return {name: None if v is None else v * (1 + 1e-5) for name, v in values.items()}


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    pools=pool_lists(),
    limits=limit_sets(),
    name=st.sampled_from(["max_price", "max_cost", "deadline_s", "min_on_demand", "pool_share"]),
)
def test_without_a_limit_it_never_costs_more(pools, limits, name) -> None:
    strict, loose = solve(pools, limits), solve(pools, limits.without(name))
    if strict is not None:
        assert loose is not None
        assert weighted_cost(pools, limits, loose) <= weighted_cost(pools, limits, strict) * (
            1 + 1e-5
        )


@settings(max_examples=50, deadline=None, derandomize=True)
@given(pools=pool_lists(), limits=limit_sets())
def test_a_limit_that_is_named_as_binding_is_enough_at_the_value_that_is_named(
    pools, limits
) -> None:
    if solve(pools, limits) is not None:
        return
    for name, enough in binding_limits(pools, limits):
        value = round(enough) if name.startswith("min_") else enough * (1 + 1e-4)
        loosened = dataclasses.replace(limits, **{name: value})
        assert solve(pools, loosened) is not None, (name, enough)


def pool(price: float, speed: float = 1.0, **fields) -> Pool:
    return Pool(usd_per_hour=price, weight=fields.pop("weight", price), speed=speed, **fields)


def test_a_price_exactly_at_the_limit_is_kept_and_one_above_is_not() -> None:
    pools = [pool(12.0, 1.0), pool(12.000001, 2.0)]
    found = solve(pools, Limits(max_price=12.0))
    assert found is not None
    assert found.counts == (1, 0)


def test_the_fixed_price_makes_more_islands_cheaper_and_the_limit_ends_that() -> None:
    limits = Limits(max_islands=10, fixed_usd_per_hour=1.0, tokens=3600.0)
    found = solve([pool(1.0, 1.0)], limits)
    assert found is not None
    assert (found.islands, found.hours, found.cost_usd) == (10, 0.1, 1.1)
    less = solve([pool(1.0, 1.0)], dataclasses.replace(limits, max_price=5.0))
    assert less is not None
    assert less.islands == 4


def test_a_deadline_buys_speed_that_is_dearer_a_token() -> None:
    pools = [pool(1.0, 10.0), pool(30.0, 100.0)]
    limits = Limits(tokens=36_000.0)
    assert solve(pools, limits).counts == (1, 0)
    assert solve(pools, dataclasses.replace(limits, deadline_s=400.0)).counts == (0, 1)
    assert solve(pools, dataclasses.replace(limits, deadline_s=300.0)) is None


def test_short_jobs_are_not_given_large_instances_whose_start_costs_more() -> None:
    pools = [pool(1.0, 10.0), pool(40.0, 480.0)]
    long = Limits(tokens=1e8, start_s=300.0)
    assert solve(pools, long).counts == (0, 1)
    short = solve(pools, dataclasses.replace(long, tokens=1e4))
    assert short.counts == (1, 0)
    assert short.cost_usd == pytest.approx(1.0 * (1000 + 300) / 3600)


def test_spot_islands_are_spread_over_pools() -> None:
    pools = [pool(1.0, spot=True), pool(1.1, spot=True), pool(3.0)]
    limits = Limits(min_islands=4, max_islands=4, pool_share=0.5)
    assert solve(pools, limits).counts == (2, 2, 0)
    assert solve(pools, limits.without("pool_share")).counts == (4, 0, 0)
    assert solve(pools, dataclasses.replace(limits, min_on_demand=1)).counts == (2, 1, 1)


def test_nothing_is_chosen_of_nothing() -> None:
    assert solve([], Limits()) is None
    assert list(binding_limits([], Limits(max_price=1.0))) == []


def test_a_deadline_shorter_than_the_start_is_the_binding_limit() -> None:
    limits = Limits(tokens=3600.0, deadline_s=200.0, start_s=300.0)
    assert solve([pool(1.0, 1.0)], limits) is None
    assert dict(binding_limits([pool(1.0, 1.0)], limits)) == {"deadline_s": pytest.approx(3900.0)}
