"""The islands of a run: a loop for each slot, and the way to another fleet.

A slot ends when its island says so, or when the run is over. It goes to the run's next fleet when a
node refuses the work (the island does not fit there) and when nobody has taken it for long: no
capacity must never mean that a run just waits.
"""

from __future__ import annotations

from typing import Any

from aws_cdk import aws_stepfunctions as sfn

from luma_constructs._asl import DISCARD, NO_ANSWER, Items, count, has_no, task
from luma_constructs._claims import CANCELED, move_claim
from luma_constructs._group_sizes import PLACE, match_groups
from luma_constructs._run_items import place_key
from luma_constructs.training_jobs._work import (
    REFUSED,
    RUN_ITEM,
    WorkLimits,
    Works,
    counters,
)

__all__ = ["islands", "look_up_fleet", "without_group"]

WHERE = " (island)"


def islands(items: Items, fleets_path: str, limits: WorkLimits) -> sfn.Map:
    """Give the Map over the run's slots.

    Args:
        items: the table.
        fleets_path: start of the names of the fleets' parameters.
        limits: how long and how often work is tried.
    """
    running = sfn.Condition.string_equals(f"{RUN_ITEM}.state.S", "running")
    works = Works.of(
        items,
        WHERE,
        name="Train an island",
        kind="island",
        limits=limits,
        unwanted=sfn.Condition.not_(running),
        answer_unwanted={"ended": "stopped"},
    )
    _next_fleet(items, works, fleets_path, limits)
    each = sfn.Map(
        items.scope,
        "For each island",
        items_path="$.numbers.slots",
        item_selector=_data(),
        result_path=DISCARD,
    )
    each.item_processor(sfn.Chain.start(works.look))
    return each


def _data() -> dict[str, Any]:
    """Give what one slot's loop works on."""
    return {
        "run.$": "$.run",
        "key.$": place_key("$$.Map.Item.Value"),
        "slot.$": "States.MathAdd($$.Map.Item.Value, -2)",
        **counters(),
        "silences": {"value": 0},
        "refusals": {"value": 0},
        "search": {
            "fleets.$": "$.plan.fleets",
            "count.$": "States.ArrayLength($.plan.fleets)",
            "n": 0,
        },
    }


def _next_fleet(items: Items, works: Works, fleets_path: str, limits: WorkLimits) -> None:
    """Add the way to another fleet: after refusals, and after a long silence."""
    scope = items.scope
    patient = sfn.Condition.number_less_than("$.silences.value", limits.patience)
    search = _search(items, works, fleets_path)
    silence = count(scope, "Nobody answered", "silences")
    silence.next(
        sfn.Choice(scope, "Wait on?").when(patient, works.again).otherwise(_afresh(items, search))
    )
    refusal = count(scope, "Count the refusal", "refusals")
    any_left = sfn.Condition.number_less_than_json_path("$.refusals.value", "$.search.count")
    refused = sfn.Fail(
        scope,
        "Refused by every fleet",
        error=REFUSED,
        cause="no fleet of the run can run the island; `luma check JOB --target T` says why",
    )
    refusal.next(sfn.Choice(scope, "Any other fleet?").when(any_left, search).otherwise(refused))
    works.give.add_catch(silence, errors=list(NO_ANSWER), result_path="$.error")
    works.give.add_catch(refusal, errors=[REFUSED], result_path="$.error")


def _afresh(items: Items, search: sfn.Choice) -> sfn.Chain:
    """Give the state that starts counting silences anew, on the way to another fleet."""
    return sfn.Pass(
        items.scope, "No node came", parameters={"value": 0}, result_path="$.silences"
    ).next(search)


def _search(items: Items, works: Works, fleets_path: str) -> sfn.Choice:
    """Give the choice that begins the search for the run's next fleet."""
    scope = items.scope
    when = sfn.Condition
    begin = sfn.Choice(scope, f"Any fleet left?{WHERE}")
    take = sfn.Pass(
        scope,
        f"Take the next fleet{WHERE}",
        parameters={
            "fleets.$": "$.search.fleets",
            "count.$": "$.search.count",
            "fleet.$": "States.ArrayGetItem($.search.fleets, $.search.n)",
            "n.$": "States.MathAdd($.search.n, 1)",
        },
        result_path="$.search",
    )
    rewind = sfn.Pass(
        scope,
        "Stay, then begin with the first",
        parameters={
            "fleets.$": "$.search.fleets",
            "count.$": "$.search.count",
            "n": 0,
        },
        result_path="$.search",
    )
    look_up = look_up_fleet(items, f"Look up the fleet{WHERE}", fleets_path, "$.search.fleet")
    move = move_claim(items, f"Move the claim{WHERE}")
    both = match_groups(items, WHERE)
    begin.when(
        when.number_less_than_json_path("$.search.n", "$.search.count"),
        take.next(
            sfn.Choice(scope, f"Is it another one?{WHERE}")
            .when(when.string_equals_json_path("$.search.fleet", f"{PLACE}.fleet.S"), begin)
            .otherwise(look_up)
        ),
    ).otherwise(rewind.next(works.again))
    no_group = without_group(items, f"It has no group{WHERE}").next(move)
    look_up.next(
        sfn.Choice(scope, f"Is it in EC2?{WHERE}")
        .when(has_no("$.next.facts.asg"), no_group)
        .otherwise(move)
    )
    move.add_catch(works.again, errors=list(CANCELED), result_path="$.error")
    move.next(both.start)
    both.end.next(works.again)
    return begin


def without_group(items: Items, name: str) -> sfn.Pass:
    """Give the state that notes "" as the group of a fleet outside EC2."""
    return sfn.Pass(
        items.scope, name, result=sfn.Result.from_string(""), result_path="$.next.facts.asg"
    )


def look_up_fleet(items: Items, name: str, fleets_path: str, fleet: str) -> sfn.CustomState:
    """Give the read of a fleet's parameter; `$.next.facts` gets its fields.

    Args:
        items: the table.
        name: as the console shows it.
        fleets_path: start of the parameters' names.
        fleet: path of the fleet's name.
    """
    return task(
        items.scope,
        name,
        "aws-sdk:ssm:getParameter",
        {"Name.$": f"States.Format('{fleets_path}{{}}', {fleet})"},
        select={"facts.$": "States.StringToJson($.Parameter.Value)"},
        keep="$.next",
    )
