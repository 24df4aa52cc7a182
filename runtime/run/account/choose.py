"""The plan of a run in an account, as its preparation needs it."""

from __future__ import annotations

from runtime.plan.account import AccountPlan, plan_account_run
from runtime.plan.costs import costs_of_payloads
from runtime.run.account.prepare import AccountChoice
from runtime.run.account.stack import Stack
from runtime.run.build import Built
from runtime.spec import JobSpec

__all__ = ["choice_of", "choose_fleets"]


def choose_fleets(stack: Stack, spec: JobSpec, built: Built, steps: int) -> AccountChoice:
    """Choose the stack's fleets for a job.

    Args:
        stack: where.
        spec: the job.
        built: what it was made into; with its programs the plan predicts time and memory.
        steps: its optimizer steps.

    Raises:
        SpecError: the job does not want to run in the stack's region.
        CapacityError: no fleet can run it within its limits.
    """
    plan = plan_account_run(
        spec,
        costs_of_payloads(built.payloads),
        tuple(stack.fleets.values()),
        region=stack.region,
        steps=steps,
    )
    return choice_of(plan, stack)


def choice_of(plan: AccountPlan, stack: Stack) -> AccountChoice:
    """Give the choice of a plan."""
    prices = dict(plan.usd_per_hour_by_fleet)
    if plan.coordinator_usd_per_hour is not None:
        prices[stack.config.coordinator_fleet] = plan.coordinator_usd_per_hour
    return AccountChoice(
        fleets=plan.fleets,
        slot_fleets=plan.slot_fleets,
        target=stack.fleets[plan.slot_fleets[0]].target,
        step_seconds=plan.step_seconds,
        prices=prices,
        document=plan.to_json(),
        lines=tuple(plan.lines()),
    )
