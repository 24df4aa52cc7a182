"""Finds where a sequence of tokens repeats with a fixed period.

A period p repeats wherever `tokens[i] == tokens[i + p]` for long stretches. Candidates for p are
distances between equal neighbours: the most frequent distances from a token, or from 4 or 16 tokens
in a row, to the same ones before. Each candidate costs one comparison of arrays.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

_GRAMS = (1, 2, 4, 8, 16)
_CANDIDATES = 48


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of tokens in which each equals the one a period later.

    Attributes:
        start: its first position.
        period: tokens in an iteration.
        length: tokens in all of it, the last iteration perhaps cut.
    """

    start: int
    period: int
    length: int

    @property
    def iterations(self) -> int:
        """Whole iterations in it."""
        return self.length // self.period


def find_runs(tokens: Sequence[Hashable], least: int) -> list[Run]:
    """Give the runs of at least so many iterations: most iterations first, then short periods."""
    numbers: dict[Hashable, int] = {}
    ids = np.array([numbers.setdefault(item, len(numbers)) for item in tokens], np.int64)
    runs = [run for period in _periods(ids, least) for run in _runs_of(ids, period, least)]
    return sorted(runs, key=lambda run: (-run.iterations, run.period, run.start))


def _periods(ids: np.ndarray, least: int) -> list[int]:
    """Give the candidate periods, short ones first."""
    found: set[int] = set()
    grams, width = ids, 1
    for wanted in _GRAMS:
        while width < wanted and grams.size > width:
            pairs = grams[:-width] * ids.size + grams[width:]
            grams, width = np.unique(pairs, return_inverse=True)[1].reshape(-1), 2 * width
        order = np.argsort(grams, kind="stable")
        gaps = np.diff(order)[np.diff(grams[order]) == 0]
        distances, counts = np.unique(gaps, return_counts=True)
        weight = np.where(counts >= least - 1, counts * distances, 0)
        best = np.argsort(-weight, kind="stable")[:_CANDIDATES]
        found.update(int(distances[i]) for i in best if weight[i])
    return sorted(found)


def _runs_of(ids: np.ndarray, period: int, least: int) -> list[Run]:
    """Give the stretches that repeat with this period."""
    if period >= ids.size:
        return []
    same = np.concatenate([[False], ids[:-period] == ids[period:], [False]])
    edges = np.flatnonzero(same[1:] != same[:-1])
    return [
        Run(int(first), period, int(last - first) + period)
        for first, last in zip(edges[::2], edges[1::2], strict=True)
        if last - first + period >= least * period
    ]
