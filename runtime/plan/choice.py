"""The choice among offers: how many islands to take of each, as a small integer program.

A job of T tokens on x_i islands of offer i, each of speed v_i (tokens a second) and price p_i (dollars
an hour), beside a fixed price f (the coordinator's host), works T / V seconds with V = sum(v_i x_i)
and costs P = f + sum(p_i x_i) an hour. The least cost is so a least ratio P / V of two linear functions
over integers, under linear limits:

    min_islands <= sum(x) <= max_islands        P <= max_price
    V >= T / deadline                           P T <= max_cost V
    sum of on-demand x >= min_on_demand         x of a spot pool <= ceil(share of all islands)

Dinkelbach's method (Dinkelbach 1967, "On nonlinear fractional programming") turns the ratio into a few
programs that HiGHS solves (`scipy.optimize.milp`): with the best ratio r so far, minimise P - r V until
that is zero. Each is solved without a gap, so the ratio is the least.

Instances are paid while they start, too: s seconds, P (T / V + s) in all. That matters to short jobs,
for which many large instances would mostly be paid for starting. So the least ratio is sought under
several ceilings of P, from the cheapest possible fleet on, and the one with the least cost is taken:
never more than `_STEP` times the least possible.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Limits", "Pool", "Solution", "binding_limits", "solve", "weighted_cost"]

_MAX_ROUNDS: Final = 50
_TIE: Final = 1e-7
"""Among equals earlier offers are taken, and the job ends earlier: relative weight of both."""

_STEP: Final = 1.25
"""Ratio of neighbouring ceilings of the price an hour."""

_FINEST: Final = 1e-3
"""The second ceiling over the last one, at least: a start that costs less than that is nothing."""

_SCALE: Final = 1e5
"""Largest coefficient of an objective: HiGHS stops at an absolute gap of 1e-6."""

_MILLI: Final = 1000.0
"""Prices have six decimals at most and HiGHS a tolerance of 1e-6, so a limit in dollars could be
passed by one unit of the last place; in thousandths of a dollar it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """An offer as the program sees it.

    Attributes:
        usd_per_hour: the most that one island costs an hour; what limits count.
        weight: what the objective counts, dollars an hour; the price, or more where an offer is less
            wanted.
        speed: useful tokens a second of one island.
        spot: whether it can be taken back.
        most: islands that can be had; None for any number.
    """

    usd_per_hour: float
    weight: float
    speed: float
    spot: bool = False
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the choice must keep to.

    Attributes:
        min_islands: least number of islands.
        max_islands: most islands.
        fixed_usd_per_hour: what the job costs an hour beside its islands.
        tokens: tokens of the whole job; None where speeds are not known, then neither a deadline
            nor a cost can be kept.
        max_price: most dollars an hour.
        max_cost: most dollars for the job.
        deadline_s: most seconds for the job.
        start_s: seconds that instances are paid before the job makes progress.
        min_on_demand: islands that must not be spot.
        pool_share: the part of all islands that one spot pool may have, at least one island.
    """

    min_islands: int = 1
    max_islands: int = 1
    fixed_usd_per_hour: float = 0.0
    tokens: float | None = None
    max_price: float | None = None
    max_cost: float | None = None
    deadline_s: float | None = None
    start_s: float = 0.0
    min_on_demand: int = 0
    pool_share: float = 1.0

    def without(self, name: str) -> Limits:
        """Give the limits without one of them."""
        loose = {"min_islands": 1, "min_on_demand": 0, "pool_share": 1.0, "start_s": 0.0}
        return dataclasses.replace(self, **{name: loose.get(name)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A choice.

    Attributes:
        counts: islands of each pool.
        usd_per_hour: price of all, the fixed one included.
        speed: tokens a second of all.
        hours: hours of the job, its start included; None where its tokens are not known.
        cost_usd: price of the job; None likewise.
    """

    counts: tuple[int, ...]
    usd_per_hour: float
    speed: float
    hours: float | None
    cost_usd: float | None

    @property
    def islands(self) -> int:
        """All islands."""
        return sum(self.counts)


def solve(pools: Sequence[Pool], limits: Limits) -> Solution | None:
    """Choose the islands that do the job for the least money; None where nothing keeps the limits.

    Args:
        pools: the offers, the better first among equals.
        limits: what to keep to.
    """
    if not pools:
        return None
    cheapest_token = _least_ratio(_Program(pools, limits))
    if cheapest_token is None:
        return None
    found = _solution(pools, limits, cheapest_token)
    if limits.tokens is None or limits.start_s == 0:
        return found
    return _with_a_start(pools, limits, found)


def _least_ratio(program: _Program, start: np.ndarray | None = None) -> np.ndarray | None:
    """Give the counts with the least ratio of price and speed (Dinkelbach).

    Args:
        program: the limits.
        start: counts that keep them, to begin with; None looks for some.
    """
    counts = program.minimise(program.prices) if start is None else start
    if counts is None:
        return None
    for _ in range(_MAX_ROUNDS):
        ratio = program.ratio(counts)
        better = program.minimise(program.weights - ratio * program.speeds)
        if better is None or program.ratio(better) >= ratio * (1 - 1e-9):
            break
        counts = better
    return counts


def _with_a_start(
    pools: Sequence[Pool], limits: Limits, cheapest_token: Solution
) -> Solution | None:
    """Give the least cost, start included, of the least ratios under rising ceilings of the price.

    Above a ceiling a job costs at least its start at that price, and its tokens at the least ratio of
    all; the search ends where that is more than the best choice so far.
    """
    start_h = limits.start_s / 3600
    tokens = weighted_cost(pools, limits, cheapest_token) * (
        1 - start_h / (cheapest_token.hours or math.inf)
    )
    best = cheapest_token if _affordable(cheapest_token, limits) else None
    before: np.ndarray | None = None
    for ceiling in _ceilings(pools, limits, cheapest_token):
        least = tokens + ceiling / _STEP * start_h
        if best is not None and least >= weighted_cost(pools, limits, best):
            break
        before = _least_ratio(_Program(pools, limits, weight_ceiling=ceiling), before)
        choice = None if before is None else _solution(pools, limits, before)
        if choice is not None and not _affordable(choice, limits):
            choice = _keeping_cost(pools, limits, ceiling)
        if choice is not None and (
            best is None
            or weighted_cost(pools, limits, choice) < weighted_cost(pools, limits, best)
        ):
            best = choice
    return best


def _affordable(choice: Solution, limits: Limits) -> bool:
    return limits.max_cost is None or (choice.cost_usd or 0.0) <= limits.max_cost * (1 + 1e-9)


def _keeping_cost(pools: Sequence[Pool], limits: Limits, ceiling: float) -> Solution | None:
    """Give the least ratio whose cost is kept even with a start at the ceiling's price."""
    assert limits.max_cost is not None  # noqa: S101 - callers found it passed
    left = limits.max_cost - ceiling * limits.start_s / 3600
    if left <= 0:
        return None
    most = min(ceiling, math.inf if limits.max_price is None else limits.max_price)
    strict = dataclasses.replace(limits, max_price=most, max_cost=left)
    found = _least_ratio(_Program(pools, strict))
    return None if found is None else _solution(pools, limits, found)


def _ceilings(pools: Sequence[Pool], limits: Limits, cheapest_token: Solution) -> Iterator[float]:
    """Yield rising ceilings of the price an hour, from the cheapest fleet's to that of the least ratio.

    At the least ratio a job costs at least as much beside its start as at any other, so a dearer fleet
    than that of the least ratio is never better.
    """
    program = _Program(pools, limits)
    cheapest = program.minimise(program.weights)
    if cheapest is None:
        return
    fixed = limits.fixed_usd_per_hour
    least = fixed + float(program.weights @ cheapest)
    most = fixed + float(program.weights @ program.counts_of(cheapest_token))
    yield least * (1 + 1e-9)
    ceiling = max(least, most * _FINEST)
    while ceiling * _STEP < most:
        ceiling *= _STEP
        yield ceiling
    yield most * (1 + 1e-9)


def weighted_cost(pools: Sequence[Pool], limits: Limits, choice: Solution) -> float:
    """Give what is to be least, as the objective counts prices: of the job, or of an island's hour."""
    weight = sum(n * pool.weight for n, pool in zip(choice.counts, pools, strict=True))
    hours = 1 / choice.speed if choice.hours is None else choice.hours
    return (limits.fixed_usd_per_hour + weight) * hours


def binding_limits(pools: Sequence[Pool], limits: Limits) -> Iterator[tuple[str, float]]:
    """Yield each limit that alone stands in the way, with the value that would be enough.

    Call it where `solve` gives None; it yields nothing where several limits must be loosened.
    """
    for name in ("max_price", "max_cost", "deadline_s", "min_on_demand", "min_islands"):
        if pools and limits.without(name) != limits:
            enough = _enough(_Program(pools, limits.without(name)), name)
            if enough is not None:
                yield name, enough


def _enough(program: _Program, name: str) -> float | None:
    """Give the least value of a limit, that the program does not have, with which it is kept."""
    aims = {
        "max_price": program.prices,
        "deadline_s": -program.speeds,
        "min_on_demand": -program.on_demand,
        "min_islands": -program.ones,
    }
    if name == "max_cost":
        best = solve(program.pools, program.limits)
        return None if best is None else best.cost_usd
    counts = program.minimise(aims[name])
    if counts is None:
        return None
    found = _solution(program.pools, program.limits, counts)
    if name == "max_price":
        return found.usd_per_hour
    if name == "deadline_s":
        return None if found.hours is None else found.hours * 3600
    if name == "min_on_demand":
        return float(sum(n for n, pool in zip(counts, program.pools, strict=True) if not pool.spot))
    return float(found.islands)


class _Program:
    """The limits as rows of a matrix, once for all objectives."""

    def __init__(
        self, pools: Sequence[Pool], limits: Limits, *, weight_ceiling: float = math.inf
    ) -> None:
        import numpy as np

        self.pools, self.limits = pools, limits
        self.ones = np.ones(len(pools))
        self.on_demand = np.array([0.0 if pool.spot else 1.0 for pool in pools])
        self.prices = np.array([pool.usd_per_hour for pool in pools])
        # Only ratios of speeds matter, and the solver wants numbers of one size.
        self._unit = max(pool.speed for pool in pools) or 1.0
        self.speeds = np.array([pool.speed / self._unit for pool in pools])
        ties = 1 + _TIE * np.arange(len(pools)) / len(pools)
        self.weights = np.array([pool.weight for pool in pools]) * ties
        # Something must speak for an early end where nothing is paid beside the islands.
        self._fixed = limits.fixed_usd_per_hour + _TIE * float(self.weights.max())
        self._rows = list(self._limit_rows())
        if weight_ceiling < math.inf:
            left = weight_ceiling - limits.fixed_usd_per_hour
            self._rows.append((_MILLI * self.weights, -math.inf, _MILLI * left + 5e-4))

    def ratio(self, counts: np.ndarray) -> float:
        """Give what is to be least: weighted price over speed."""
        return (self._fixed + float(self.weights @ counts)) / float(self.speeds @ counts)

    def counts_of(self, choice: Solution) -> np.ndarray:
        """Give a choice's counts as the program has them."""
        import numpy as np

        return np.array(choice.counts, float)

    def minimise(self, objective: np.ndarray) -> np.ndarray | None:
        """Give the counts with the least value of a linear objective; None where none is allowed."""
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp

        most = [
            self.limits.max_islands
            if pool.most is None
            else min(pool.most, self.limits.max_islands)
            for pool in self.pools
        ]
        scale = float(np.abs(objective).max()) or 1.0
        found = milp(
            objective * (_SCALE / scale),
            integrality=self.ones,
            bounds=Bounds(0, most),
            constraints=[LinearConstraint(row, low, high) for row, low, high in self._rows],
            options={"mip_rel_gap": 0.0},
        )
        return np.rint(found.x) if found.success else None

    def _limit_rows(self) -> Iterator[tuple[np.ndarray, float, float]]:
        """Yield (coefficients, least, most) of each limit."""
        limits, fixed = self.limits, self.limits.fixed_usd_per_hour
        yield self.ones, limits.min_islands, limits.max_islands
        # An island without speed would never end the job.
        yield self.speeds, float(self.speeds[self.speeds > 0].min(initial=1.0)), math.inf
        if limits.min_on_demand:
            yield self.on_demand, limits.min_on_demand, math.inf
        if limits.max_price is not None:
            left = limits.max_price - fixed
            yield _MILLI * self.prices, -math.inf, _MILLI * left + 5e-4
        if limits.tokens is not None:
            yield from self._length_rows(limits.tokens / self._unit)
        if limits.pool_share < 1:
            yield from self._share_rows(limits.pool_share)

    def _length_rows(self, tokens: float) -> Iterator[tuple[np.ndarray, float, float]]:
        """Yield the limits of time and of cost; tokens are in the unit of speeds."""
        limits = self.limits
        if limits.deadline_s is not None:
            left = limits.deadline_s - limits.start_s
            if left <= 0:
                yield self.ones, limits.max_islands + 1, math.inf
                return
            need = tokens / left
            scale = max(need, 1e-12)
            yield self.speeds / scale, 1.0 - 1e-9, math.inf
        if limits.max_cost is not None:
            # (f + p x) tokens / (3600 v x) <= max_cost, times v x.
            hourly = limits.max_cost * 3600 / tokens
            row = self.prices - hourly * self.speeds
            scale = max(hourly, float(self.prices.max()), 1e-12)
            yield row / scale, -math.inf, -limits.fixed_usd_per_hour / scale + 1e-9

    def _share_rows(self, share: float) -> Iterator[tuple[np.ndarray, float, float]]:
        """Yield for each spot pool: x <= ceil(share of all), which is x < share of all + 1."""
        for number, pool in enumerate(self.pools):
            if pool.spot:
                row = -share * self.ones
                row[number] += 1
                yield row, -math.inf, 1 - 1e-4


def _solution(pools: Sequence[Pool], limits: Limits, found: np.ndarray) -> Solution:
    """Tell a choice in figures."""
    counts = tuple(int(count) for count in found)
    pairs = list(zip(counts, pools, strict=True))
    price = limits.fixed_usd_per_hour + sum(count * pool.usd_per_hour for count, pool in pairs)
    speed = sum(count * pool.speed for count, pool in pairs)
    hours = None if limits.tokens is None else (limits.tokens / speed + limits.start_s) / 3600
    return Solution(
        counts=counts,
        usd_per_hour=price,
        speed=speed,
        hours=hours,
        cost_usd=None if hours is None else price * hours,
    )
