"""Packages of the hand-made graphs."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.compiler.graph import GraphPackage
from tests.unit.packages import linear_graph, square_graph


@pytest.fixture(scope="session")
def linear_package() -> GraphPackage:
    """A package whose parameters and batch two chips can share."""
    return GraphPackage(
        {"grad": linear_graph()}, config_digest="0" * 64, micro_batch=4, seq_len=512
    )


@pytest.fixture(scope="session")
def square_package() -> GraphPackage:
    """A package with a grad graph only."""
    return GraphPackage({"grad": square_graph()}, config_digest="0" * 64, seq_len=4)


@pytest.fixture
def rng() -> np.random.Generator:
    """Give a seeded generator."""
    return np.random.default_rng(7)
