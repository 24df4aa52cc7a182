"""Capacity for a lost node's place: its own fleet's, else another fleet's.

A group has capacity when it holds as many instances as it should, the old one is out and none is on
its way out. An instance that has begun to start counts: EC2 has given it. Where that does not come in
time the place goes, with its claim, to the run's other fleets in their order, then to the on-demand
floor: the fleets that are bought on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import aws_stepfunctions as sfn

from luma_constructs import _names
from luma_constructs._asl import ANY_ERROR, Items, has_no, of_group, task, text
from luma_constructs._claims import CANCELED, move_claim
from luma_constructs._group_sizes import PLACE, match_groups
from luma_constructs._run_items import RUN, RUN_KEY
from luma_constructs.failover._drain import Polls

__all__ = ["RUN_ITEM", "Capacity", "is_alive", "look_at_place"]

WHERE = " (failover)"
RUN_ITEM = "$.place.run.Item"
"""Path of the run's item, once the place was looked at."""

_INSTANCES = "$.capacity.instances"
_LEAVING = {
    "ending": "Terminating",
    "held_back": "Terminating:Wait",
    "let_go": "Terminating:Proceed",
}
"""Lifecycle states of instances on their way out, by the name of their field in the data."""


def look_at_place(items: Items, name: str) -> sfn.CustomState:
    """Give the read of the run and of the node's place in it."""
    return items.get_together(
        name,
        [(RUN_KEY, RUN), (RUN_KEY, text("$.key"))],
        select={"run.$": "$.Responses[0]", "at.$": "$.Responses[1]"},
        keep="$.place",
    )


def is_alive() -> sfn.Condition:
    """Tell whether the run needs its place."""
    when, state = sfn.Condition, f"{RUN_ITEM}.state.S"
    return when.and_(
        when.is_present(state),
        when.or_(when.string_equals(state, "provisioning"), when.string_equals(state, "running")),
        when.is_present(f"{PLACE}.claimed.S"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """The states that find capacity.

    Attributes:
        items: the table.
        fleets_path: start of the names of the fleets' parameters.
        floors: names of the fleets that are bought on demand.
        polls: how often and how long.
        found: where to go with capacity; `$.path` says how it was found.
        none: where to go without.
        over: where to go when the run has ended meanwhile.
    """

    items: Items
    fleets_path: str
    floors: Sequence[str]
    polls: Polls
    found: sfn.IChainable
    none: sfn.IChainable
    over: sfn.IChainable

    def states(self) -> sfn.Choice:
        """Make the states; the way in tells whether the place's fleet has a group at all."""
        items, when = self.items, sfn.Condition
        look = _look(items)
        start = (
            sfn.Choice(items.scope, "Has its fleet a group?")
            .when(when.string_equals(f"{PLACE}.asg.S", ""), self.found)
            .otherwise(look)
        )
        due, again = self.polls.loop(items, self.polls.capacity, "looks", " for capacity", look)
        counted = sfn.Pass(
            items.scope,
            "Count its instances",
            parameters={
                "held.$": f"States.ArrayLength({_INSTANCES})",
                "old.$": f"States.ArrayContains({_INSTANCES}[*].InstanceId, $.instance)",
                **{
                    f"{field}.$": f"States.ArrayContains({_INSTANCES}[*].LifecycleState, '{state}')"
                    for field, state in _LEAVING.items()
                },
            },
            result_path="$.counted",
        )
        leaving = [
            when.boolean_equals(f"$.counted.{name}", value=True) for name in ("old", *_LEAVING)
        ]
        there = when.and_(
            when.number_greater_than_equals_json_path("$.counted.held", "$.capacity.wanted"),
            when.not_(when.or_(*leaving)),
        )
        look.next(counted).next(
            sfn.Choice(items.scope, "Is there capacity?")
            .when(there, self.found)
            .when(due, again)
            .otherwise(self._why(self._other_fleet(start)))
        )
        return start

    def _why(self, then: sfn.IChainable) -> sfn.CustomState:
        """Ask what Auto Scaling says about it, for whoever reads the notification."""
        why = task(
            self.items.scope,
            "Ask why not",
            "aws-sdk:autoscaling:describeScalingActivities",
            {"AutoScalingGroupName.$": f"{PLACE}.asg.S", "MaxRecords": 1},
            select={"said.$": "$.Activities[*].StatusMessage"},
            keep="$.notes.capacity",
        )
        unknown = sfn.Pass(
            self.items.scope,
            "It does not say",
            result=sfn.Result.from_string("no capacity came in time"),
            result_path="$.notes.capacity",
        )
        why.add_catch(unknown.next(then), errors=list(ANY_ERROR), result_path="$.error")
        why.next(then)
        return why

    def _other_fleet(self, look: sfn.Choice) -> sfn.Choice:
        """Move the place to the next fleet that has a group, and look there."""
        scope, when = self.items.scope, sfn.Condition
        left = sfn.Choice(scope, f"Any fleet left?{WHERE}")
        take = sfn.Pass(
            scope,
            f"Take the next fleet{WHERE}",
            parameters={
                "fleets.$": "$.search.fleets",
                "count.$": "$.search.count",
                "path.$": "$.search.path",
                "fleet.$": "States.ArrayGetItem($.search.fleets, $.search.n)",
                "n.$": "States.MathAdd($.search.n, 1)",
            },
            result_path="$.search",
        )
        look_up = task(
            scope,
            f"Look up the fleet{WHERE}",
            "aws-sdk:ssm:getParameter",
            {"Name.$": f"States.Format('{self.fleets_path}{{}}', $.search.fleet)"},
            select={"facts.$": "States.StringToJson($.Parameter.Value)"},
            keep="$.next",
        )
        # A run may name a fleet that is no longer there.
        look_up.add_catch(left, errors=list(ANY_ERROR), result_path="$.error")
        other = (
            sfn.Choice(scope, f"Is it another one?{WHERE}")
            .when(when.string_equals_json_path("$.search.fleet", f"{PLACE}.fleet.S"), left)
            .otherwise(look_up)
        )
        take.next(other)
        look_up.next(
            sfn.Choice(scope, f"Is it in EC2?{WHERE}")
            .when(has_no("$.next.facts.asg"), left)
            .otherwise(self._move(look))
        )
        left.when(when.number_less_than_json_path("$.search.n", "$.search.count"), take)
        if self.floors:
            on_floor = when.string_equals("$.search.path", "on-demand")
            left.when(when.not_(on_floor), self._use_floor(left))
        left.otherwise(self.none)
        return self._can_move(left)

    def _can_move(self, left: sfn.Choice) -> sfn.Choice:
        """Begin the search, unless the place is a host's: no other fleet can do its work."""
        hosts = (_names.COORDINATOR_FLEET, _names.COMPILER_FLEET)
        when = sfn.Condition
        is_host = when.or_(*(when.string_equals(f"{PLACE}.fleet.S", host) for host in hosts))
        return sfn.Choice(self.items.scope, "Can it move?").when(is_host, self.none).otherwise(left)

    def _use_floor(self, then: sfn.Choice) -> sfn.IChainable:
        """Search the on-demand fleets."""
        return sfn.Pass(
            self.items.scope,
            "Use the on-demand floor",
            parameters={
                "fleets": list(self.floors),
                "count": len(self.floors),
                "n": 0,
                "path": "on-demand",
            },
            result_path="$.search",
        ).next(then)

    def _move(self, look: sfn.Choice) -> sfn.CustomState:
        """Move the place and its claim, match both groups, and look for capacity there."""
        items, scope = self.items, self.items.scope
        both = match_groups(items, WHERE, in_ec2=True)
        again = look_at_place(items, "Look at its place again")
        moved = sfn.Pass(
            scope, "It has moved", input_path="$.search.path", result_path="$.path"
        ).next(again)
        other = sfn.Pass(
            scope,
            "Another one moved it",
            result=sfn.Result.from_string("moved"),
            result_path="$.path",
        ).next(again)
        fresh = sfn.Pass(
            scope, "Begin to wait", parameters={"value": 0}, result_path="$.looks"
        ).next(look)
        again.next(
            sfn.Choice(scope, "Does the run go on?").when(is_alive(), fresh).otherwise(self.over)
        )
        move = move_claim(items, f"Move the claim{WHERE}")
        move.add_catch(other, errors=list(CANCELED), result_path="$.error")
        move.next(both.start)
        both.end.next(moved)
        return move


def _look(items: Items) -> sfn.CustomState:
    """Give the look at the group of the place's fleet."""
    return task(
        items.scope,
        "Look for capacity",
        "aws-sdk:autoscaling:describeAutoScalingGroups",
        {"AutoScalingGroupNames.$": f"States.Array({PLACE}.asg.S)"},
        select={
            "wanted.$": of_group("DesiredCapacity"),
            "instances.$": of_group("Instances"),
        },
        keep="$.capacity",
    )
