"""Steps of fleets follow from shards, the ring and the optimizer step."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.plan.predict import (
    START_S,
    IslandTimes,
    fleet_step_seconds,
    goodput,
    island_speed,
)


def times(shard: float, update: float = 0.0, sums: int | None = None, rate=None) -> IslandTimes:
    return IslandTimes(shard_s=shard, update_s=update, sums_bytes=sums, network_bytes_per_s=rate)


def test_one_island_does_all_shards_then_the_optimizer_step() -> None:
    assert fleet_step_seconds([times(2.0, 0.5)], 8) == 16.5


def test_equal_islands_round_up_and_the_slowest_optimizer_step_counts() -> None:
    assert fleet_step_seconds([times(1.0), times(1.0), times(1.0, 0.25)], 8) == 3.25


def test_the_ring_sends_twice_the_sums_less_one_part_at_the_slowest_network() -> None:
    islands = [times(1.0, sums=1000, rate=100.0), times(1.0, sums=1000, rate=50.0)]
    assert fleet_step_seconds(islands, 2) == 1 + 2 * 1 / 2 * 1000 / 50
    assert fleet_step_seconds(islands[:1], 2) == 2


@given(seconds=st.lists(st.integers(1, 9), min_size=1, max_size=3), shards=st.integers(1, 7))
def test_dealing_shards_to_whoever_ends_first_is_the_shortest_step(seconds, shards) -> None:
    splits = (
        split
        for split in itertools.product(range(shards + 1), repeat=len(seconds))
        if sum(split) == shards
    )
    best = min(max(n * s for n, s in zip(split, seconds, strict=True)) for split in splits)
    assert fleet_step_seconds([times(float(s)) for s in seconds], shards) == best


@given(
    shards=st.integers(1, 40), number=st.integers(1, 12), others=st.integers(0, 12),
    update=st.integers(0, 3), sums=st.sampled_from([None, 1000]),
)  # fmt: skip
def test_equal_islands_are_never_slower_than_their_speeds_add_up(
    shards, number, others, update, sums
) -> None:
    island = times(2.0, float(update), sums, 100.0)
    number = min(number, shards)
    allowed = range(max(1, number - others), min(shards, number + others) + 1)
    speed = island_speed(island, shards=shards, islands=allowed, tokens_per_step=100)
    step = fleet_step_seconds([island] * number, shards)
    assert 100 / step >= number * speed * (1 - 1e-9)


def test_an_idle_island_counts_in_the_speed_of_all() -> None:
    # Eight shards take three rounds on three islands, and two on four.
    island = times(1.0)
    assert island_speed(island, shards=8, islands=range(4, 5), tokens_per_step=8) == 1.0
    assert island_speed(island, shards=8, islands=range(3, 5), tokens_per_step=8) == 8 / 9


def test_goodput_falls_with_interruptions() -> None:
    assert goodput(0.0) == 1.0
    assert goodput(1.0) == pytest.approx(3600 / (3600 + START_S))
