"""What is asked of a run, and whether it may start: the first states of a job.

The input names a prepared run; what it does not say comes from the run's item, as `luma launch` wrote
it. An input that cannot work ends here, before anything is rented, in a state whose name and cause
say why. The run is then taken by a conditional write: of two executions for one run, one goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import aws_stepfunctions as sfn

from luma_constructs._asl import CONDITION_FAILED, NOW, Items, execution, number, text
from luma_constructs._run_items import MOST_SLOTS, RUN, RUN_KEY

__all__ = ["Plan"]

_ITEM = "$.read.Item"


@dataclass(frozen=True, slots=True)
class Plan:
    """The states up to a run that is ours.

    Attributes:
        start: the way in.
        taken: the way out: the run is ours, and `$.run`, `$.plan` and `$.read` say what it is.
    """

    start: sfn.Pass
    taken: sfn.CustomState

    @classmethod
    def of(cls, items: Items) -> Plan:
        """Make the states."""
        scope = items.scope
        start = sfn.Pass(scope, "Normalize", parameters={"given.$": "$"})
        read = items.get(
            "Read the run",
            {"S.$": "States.Format('RUN#{}', $.given.run)"},
            RUN,
            keep="$.read",
        )
        start.next(
            sfn.Choice(scope, "Is a run named?").when(_is_named(), read).otherwise(_no_run(items))
        )
        settle = _settle(items)
        taken = _take(items)
        read.next(_prepared(items, settle))
        check = (
            sfn.Choice(scope, "Can it work?")
            .when(_is_sound(), _typed_fleets(items).next(taken))
            .otherwise(_bad_plan(items))
        )
        settle.next(
            sfn.Pass(
                scope,
                "Let the input win",
                parameters={
                    "run.$": "$.run",
                    "given.$": "$.given",
                    "read.$": "$.read",
                    "plan.$": "States.JsonMerge($.prepared, $.given, false)",
                },
            )
        ).next(check)
        return cls(start, taken)


def _is_named() -> sfn.Condition:
    """Tell whether the input names a run."""
    when, run = sfn.Condition, "$.given.run"
    return when.and_(
        when.is_present(run), when.is_string(run), when.not_(when.string_equals(run, ""))
    )


def _no_run(items: Items) -> sfn.Fail:
    """End without a run."""
    return sfn.Fail(
        items.scope,
        "No run named",
        error="Luma.NoRun",
        cause='the input has no `run`; expected {"run": "<name of a prepared run>"}',
    )


def _prepared(items: Items, settle: sfn.Pass) -> sfn.Choice:
    """Go on only with a run that is prepared and not done."""
    scope, when = items.scope, sfn.Condition
    missing = sfn.Fail(
        scope,
        "Not prepared",
        error="Luma.NotPrepared",
        cause="no such run was prepared here; `luma launch JOB` prepares and starts it",
    )
    done = sfn.Succeed(scope, "Done before")
    whole = when.and_(
        when.is_present(f"{_ITEM}.state.S"),
        when.is_present(f"{_ITEM}.slots.N"),
        when.is_present(f"{_ITEM}.fleets.L[0].S"),
    )
    return (
        sfn.Choice(scope, "Is it prepared?")
        .when(when.not_(whole), missing)
        .when(when.string_equals(f"{_ITEM}.state.S", "done"), done)
        .otherwise(settle)
    )


def _settle(items: Items) -> sfn.Pass:
    """Read the plan from the run's item."""
    return sfn.Pass(
        items.scope,
        "Read the plan",
        parameters={
            "run.$": "$.given.run",
            "given.$": "$.given",
            "read.$": "$.read",
            "prepared": {
                "slots.$": f"States.StringToJson({_ITEM}.slots.N)",
                "fleets.$": f"{_ITEM}.fleets.L[*].S",
            },
        },
    )


def _is_sound() -> sfn.Condition:
    """Tell whether slots and fleets can work."""
    when, slots = sfn.Condition, "$.plan.slots"
    return when.and_(
        when.is_numeric(slots),
        when.number_greater_than_equals(slots, 1),
        when.number_less_than_equals(slots, MOST_SLOTS),
        when.is_present("$.plan.fleets[0]"),
        when.is_string("$.plan.fleets[0]"),
    )


def _bad_plan(items: Items) -> sfn.Fail:
    """End with a plan that cannot work."""
    return sfn.Fail(
        items.scope,
        "Plan cannot work",
        error="Luma.BadPlan",
        cause=f"`slots` must be a number from 1 to {MOST_SLOTS}, and `fleets` a list of at least one "
        "fleet's name",
    )


def _typed_fleets(items: Items) -> sfn.Map:
    """Give the names of the fleets as DynamoDB's list."""
    each = sfn.Map(
        items.scope,
        "Name the fleets",
        items_path="$.plan.fleets",
        item_selector={"S.$": "$$.Map.Item.Value"},
        result_path="$.typed",
    )
    each.item_processor(sfn.Pass(items.scope, "As a string"))
    return each


def _take(items: Items) -> sfn.CustomState:
    """Take the run, unless another execution has it."""
    states = {f":{name}": {"S": name} for name in ("pending", "failed", "terminated")}
    taken = items.update(
        "Take the run",
        RUN_KEY,
        RUN,
        "SET #state = :provisioning, execution = :me, cancel = :no, reason = :none, slots = :slots, "
        "fleets = :fleets, updated_at = :now",
        {
            **states,
            ":provisioning": {"S": "provisioning"},
            ":me": text(execution),
            ":no": {"BOOL": False},
            ":none": {"S": ""},
            ":slots": number("$.plan.slots"),
            ":fleets": {"L.$": "$.typed"},
            ":now": text(NOW),
        },
        condition="#state IN (:pending, :failed, :terminated) OR execution = :me",
        names=["state"],
    )
    busy = sfn.Fail(
        items.scope,
        "Already running",
        error="Luma.AlreadyRunning",
        cause="another execution has this run, or has not given its instances back yet; "
        "`luma status` shows it",
    )
    return taken.add_catch(busy, errors=list(CONDITION_FAILED), result_path="$.error")
