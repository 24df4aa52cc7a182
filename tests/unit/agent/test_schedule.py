"""The scalars of a step against values made by hand and exact arithmetic."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.agent.schedule import learning_rate, step_scalars
from runtime.coordinator.plan import OptimizerPlan, RunPlan, SchedulePlan
from tests.unit.plans import make_plan


def _plan(
    *,
    kind: Literal["cosine", "constant"] = "cosine",
    warmup: int = 4,
    total: int = 13,
    low: float = 0.1,
    lr: float = 1.0,
    betas: tuple[float, float] = (0.9, 0.95),
) -> RunPlan:
    return make_plan(
        total_steps=total,
        optimizer=OptimizerPlan(lr=lr, betas=betas, eps=1e-8, weight_decay=0.1, grad_clip=1.0),
        schedule=SchedulePlan(kind=kind, warmup_steps=warmup, min_lr_ratio=low),
    )


def test_warm_up_rises_to_the_peak_in_its_last_step() -> None:
    plan = _plan(lr=2.0)
    assert [learning_rate(plan, t) for t in range(4)] == [0.5, 1.0, 1.5, 2.0]


def test_the_cosine_starts_at_the_peak_has_its_middle_and_ends_at_the_ratio() -> None:
    """Warm-up 4 of 13 steps: the half cosine runs over steps 4 to 12."""
    plan = _plan()
    assert learning_rate(plan, 4) == 1.0
    assert learning_rate(plan, 8) == pytest.approx(0.55, rel=1e-15)
    assert learning_rate(plan, 12) == pytest.approx(0.1, rel=1e-15)
    assert learning_rate(plan, 6) == pytest.approx(0.1 + 0.45 * (1 + 2**-0.5), rel=1e-15)


def test_a_constant_schedule_stays_at_the_peak_after_warm_up() -> None:
    plan = _plan(kind="constant", warmup=2)
    assert [learning_rate(plan, t) for t in (0, 1, 2, 7, 12)] == [0.5, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (1, 1), (5, 5), (4, 5), (0, 2), (9, 3)])
def test_short_jobs_have_a_positive_finite_rate_in_every_step(warmup: int, total: int) -> None:
    plan = _plan(warmup=warmup, total=total)
    rates = [learning_rate(plan, t) for t in range(total)]
    assert all(0 < rate <= 1.0 for rate in rates)


@given(
    step=st.integers(0, 200_000),
    beta=st.sampled_from([0.0, 0.9, 0.95, 0.99, 0.999, 0.9999]),
)
def test_bias_corrections_are_right_to_half_a_float32_unit(step: int, beta: float) -> None:
    """In float32, 1 - 0.999^1 would be off by 5e-5 of itself: exact arithmetic is the judge."""
    beta = float(np.float32(beta))  # the program's own beta
    exact = 1 - Fraction(beta) ** (step + 1) if step < 3000 else None
    got = step_scalars(_plan(betas=(beta, beta), total=200_001), step)
    assert got.dtype == np.float32
    assert got.shape == (8,)
    for value in got[6:]:
        if exact is None:
            assert value == pytest.approx(1.0 - beta ** (step + 1), rel=1e-7)
        else:
            assert abs(Fraction(float(value)) - exact) <= exact * Fraction(1, 2**24) * Fraction(
                1001, 1000
            )


def test_the_order_of_the_scalars_is_the_compiled_step_s() -> None:
    got = step_scalars(_plan(lr=0.25, kind="constant", warmup=0), 1)
    beta1, beta2 = (float(np.float32(beta)) for beta in (0.9, 0.95))
    expected = [0.25, beta1, beta2, 1e-8, 0.1, 1.0, 1 - beta1**2, 1 - beta2**2]
    np.testing.assert_array_equal(got, np.array(expected, np.float32))


def test_the_schedule_survives_a_resume_because_it_holds_nothing() -> None:
    """Case the_well#77: scheduler state is lost in a resume. Here there is none to lose."""
    plan = _plan()
    straight = [step_scalars(plan, t) for t in range(13)]
    resumed = [step_scalars(dataclasses.replace(plan), t) for t in (7, 8, 12)]
    for got, step in zip(resumed, (7, 8, 12), strict=True):
        np.testing.assert_array_equal(got, straight[step])


@pytest.mark.parametrize("islands", [1, 2, 7])
def test_the_rate_does_not_know_how_many_islands_there_are(islands: int) -> None:
    """Case litgpt#1927, verl-SpeCo#29: the learning rate changed with the worker count."""
    plan = _plan()
    wide = dataclasses.replace(plan, islands=islands, min_islands=1)
    for step in range(13):
        np.testing.assert_array_equal(step_scalars(wide, step), step_scalars(plan, step))
