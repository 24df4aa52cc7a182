"""The keyed order of samples: a permutation an epoch, the same whoever computes which shard."""

from __future__ import annotations

import functools
import operator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.agent.sampler import permute, sample_indices, shard_key

SEEDS = st.integers(0, 2**63 - 1)
GOLDEN_ORDER = [2, 0, 6, 3, 5, 1, 7, 9, 4, 8]
GOLDEN_KEY = [779670322, 1027833982]


def order(seed: int, epoch: int, count: int) -> np.ndarray:
    return permute(np.arange(count), seed=seed, epoch=epoch, count=count)


def step_samples(step: int, *, seed: int, count: int, shards: int, batch: int) -> list[int]:
    return [
        int(index)
        for shard in range(shards)
        for index in sample_indices(
            seed=seed,
            count=count,
            step=step,
            shard=shard,
            micro_shards=shards,
            micro_batch=batch,
        )
    ]


@given(seed=SEEDS, epoch=st.integers(0, 2**40), count=st.integers(1, 3000))
@settings(max_examples=60, deadline=None)
def test_an_epoch_is_a_true_permutation_of_any_count(seed: int, epoch: int, count: int) -> None:
    assert np.array_equal(np.sort(order(seed, epoch, count)), np.arange(count))


@pytest.mark.parametrize("count", [1, 2, 3, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097, 100_003])
def test_counts_at_the_borders_of_the_network(count: int) -> None:
    assert np.array_equal(np.sort(order(5, 1, count)), np.arange(count))


@given(seed=SEEDS, epoch=st.integers(0, 1000), count=st.integers(50, 3000))
@settings(max_examples=30, deadline=None)
def test_the_order_differs_by_epoch_and_by_seed(seed: int, epoch: int, count: int) -> None:
    first = order(seed, epoch, count)
    assert not np.array_equal(first, order(seed, epoch + 1, count))
    assert not np.array_equal(first, order(seed + 1, epoch, count))


def test_the_order_looks_random() -> None:
    count = 20_000
    places = order(11, 0, count)
    correlation = np.corrcoef(np.arange(count), places)[0, 1]
    neighbours = np.mean(np.abs(np.diff(places)) == 1)
    fixed = np.sum(places == np.arange(count))
    assert abs(correlation) < 4 / np.sqrt(count)
    assert neighbours < 10 / count
    assert fixed < 10


def test_every_order_of_a_short_epoch_is_reached() -> None:
    orders = {tuple(order(seed, 0, 4).tolist()) for seed in range(600)}
    assert len(orders) == 24


def test_the_order_is_part_of_the_format() -> None:
    # Resumed jobs depend on it: if this changes, they read other samples.
    assert order(7, 0, 10).tolist() == GOLDEN_ORDER
    assert shard_key(7, 3, 2).tolist() == GOLDEN_KEY


@given(
    seed=SEEDS,
    count=st.integers(1, 60),
    shards=st.integers(1, 7),
    batch=st.integers(1, 5),
    first=st.integers(0, 10_000),
)
@settings(max_examples=40, deadline=None)
def test_datasets_7447_batches_cross_the_borders_of_epochs_and_each_is_whole(
    seed: int, count: int, shards: int, batch: int, first: int
) -> None:
    """datasets#7447, meta-pytorch/data#1437: every epoch is whole, also after an interrupted one.

    The steps' samples in a row are the epochs' orders in a row, wherever one starts to look.
    """
    per_step = shards * batch
    steps = -(-2 * count // per_step) + 1
    seen = [
        index
        for step in range(first, first + steps)
        for index in step_samples(step, seed=seed, count=count, shards=shards, batch=batch)
    ]
    start = first * per_step
    expected = [
        int(order(seed, position // count, count)[position % count])
        for position in range(start, start + len(seen))
    ]
    assert seen == expected


def read_by(islands: int, step: int, *, count: int, shards: int, batch: int) -> list[list[int]]:
    """What each island reads in a step, when shards go round the islands."""
    return [
        [
            int(index)
            for shard in range(island, shards, islands)
            for index in sample_indices(
                seed=3,
                count=count,
                step=step,
                shard=shard,
                micro_shards=shards,
                micro_batch=batch,
            )
        ]
        for island in range(islands)
    ]


def test_transformers_40245_from_one_island_to_two_every_sample_is_read_once() -> None:
    """transformers#40245: the world's size changes on resume, in the midst of an epoch."""
    sizes = [1, 1, 2, 2]
    parts = [
        part
        for step, islands in enumerate(sizes)
        for part in read_by(islands, step, count=96, shards=8, batch=3)
    ]
    assert sorted(index for part in parts for index in part) == list(range(96))


def test_torchtitan_816_from_four_islands_to_two_no_state_of_data_is_lost() -> None:
    """torchtitan#816: saved at 4, loaded at 2: there is no state of an island's own to lose."""
    for step in range(10):
        four = read_by(4, step, count=50, shards=8, batch=3)
        two = read_by(2, step, count=50, shards=8, batch=3)
        assert sorted(functools.reduce(operator.iadd, four, [])) == sorted(
            functools.reduce(operator.iadd, two, [])
        )


@pytest.mark.parametrize("islands", [1, 2, 3, 5, 8])
def test_litgpt_1927_the_batch_does_not_depend_on_the_number_of_islands(islands: int) -> None:
    """litgpt#1927, verl-SpeCo#29: a step reads micro_shards * micro_batch samples, always."""
    parts = read_by(islands, 4, count=500, shards=8, batch=3)
    assert sum(map(len, parts)) == 24
    assert sorted(functools.reduce(operator.iadd, parts, [])) == sorted(
        step_samples(4, seed=3, count=500, shards=8, batch=3)
    )


def test_accelerate_2016_resume_in_a_later_epoch_uses_that_epochs_order() -> None:
    """accelerate#2016, #4071: after a resume in epoch >= 1 the order is not that of epoch 0."""
    count = 64
    epochs = [
        [
            i
            for step in range(e * 8, e * 8 + 8)
            for i in step_samples(step, seed=1, count=count, shards=4, batch=2)
        ]
        for e in range(4)
    ]
    for earlier, later in pairwise(epochs):
        assert earlier != later
    # A resume is nothing but asking for a step: no step before it needs to have been asked for.
    assert step_samples(20, seed=1, count=count, shards=4, batch=2) == epochs[2][32:40]


def test_accelerate_1451_what_was_skipped_on_resume_is_not_skipped_later() -> None:
    """accelerate#1451, open-instruct#681: resume at a step leaves the later epochs whole."""
    resumed = [
        i for step in range(5, 24) for i in step_samples(step, seed=9, count=64, shards=4, batch=2)
    ]
    assert sorted(resumed[24:88]) == list(range(64))
    assert sorted(resumed[88:152]) == list(range(64))


def test_transformers_17032_draws_are_keyed_by_step_and_shard() -> None:
    """transformers#17032, ms-swift#9935, ace#690: a restore changes no shuffle and no draw."""
    keys = {
        tuple(shard_key(s, t, k).tolist()) for s in range(5) for t in range(20) for k in range(9)
    }
    assert len(keys) == 5 * 20 * 9
    assert shard_key(1, 2, 3).dtype == np.int32
    assert shard_key(1, 2, 3).shape == (2,)


@pytest.mark.parametrize(
    "wrong", [{"count": 0}, {"step": -1}, {"shard": 4}, {"shard": -1}, {"micro_batch": 0}]
)
def test_a_shard_that_does_not_exist_is_refused(wrong: dict[str, int]) -> None:
    right = {"seed": 1, "count": 9, "step": 0, "shard": 0, "micro_shards": 4, "micro_batch": 2}
    with pytest.raises(ValueError, match="no such shard"):
        sample_indices(**{**right, **wrong})
