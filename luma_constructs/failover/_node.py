"""The failover of one node, from finding it to the mark that it was dealt with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_cdk import aws_sns as sns
from aws_cdk import aws_stepfunctions as sfn

from luma_constructs import _names
from luma_constructs._asl import ANY_ERROR, Items, equals, task
from luma_constructs._group_sizes import PLACE, match_every_group
from luma_constructs._run_items import NODE, place_key
from luma_constructs.failover._capacity import Capacity, is_alive, look_at_place
from luma_constructs.failover._drain import GROUP, Polls, drain, note
from luma_constructs.failover._record import NODE_KEY, begin, finish, finish_with_node
from luma_constructs.failover._region import ask_regions

if TYPE_CHECKING:
    from luma_constructs.fleet_interface import IAcceleratorFleet

__all__ = ["NodeParts", "node_states"]

_NODE = "$.node.Item"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeParts:
    """What a node's failover refers to.

    Attributes:
        items: the table.
        fleets: all fleets, the hosts among them.
        fleets_path: start of the names of the fleets' parameters.
        floors: names of the fleets that are bought on demand.
        regions: names of other regions that may be asked.
        document: name of the drain document.
        topic: who is told; None for nobody.
        polls: how often and how long.
        duplicate: where to go with an event that was dealt with.
        foreign: where to go with an instance that is not ours.
    """

    items: Items
    fleets: Sequence[IAcceleratorFleet]
    fleets_path: str
    floors: Sequence[str]
    regions: Sequence[str]
    document: str
    topic: sns.ITopic | None
    polls: Polls
    duplicate: sfn.IChainable
    foreign: sfn.IChainable


def node_states(parts: NodeParts) -> sfn.CustomState:
    """Give the states for one node {id, instance, kind}; their output says `path`."""
    items, when = parts.items, sfn.Condition
    find = task(
        items.scope,
        "Find its group",
        "aws-sdk:autoscaling:describeAutoScalingInstances",
        {"InstanceIds.$": "States.Array($.instance)"},
        select={"names.$": "$.AutoScalingInstances[*].AutoScalingGroupName"},
        keep="$.group",
    )
    read = items.get("Read the node", NODE_KEY, NODE, keep="$.node")
    groups = [
        fleet.auto_scaling_group.auto_scaling_group_name
        for fleet in parts.fleets
        if fleet.auto_scaling_group is not None
    ]
    ours = when.or_(
        when.is_present(f"{_NODE}.fleet.S"), *(equals(GROUP, group) for group in groups)
    )
    record = begin(items, "Record the event", parts.duplicate)
    find.next(read).next(
        sfn.Choice(items.scope, "Is it ours?").when(ours, record).otherwise(parts.foreign)
    )
    record.next(_at_work(parts))
    return find


def _at_work(parts: NodeParts) -> sfn.Choice:
    """Go on with a node that a run needs; with another one there is nothing to do."""
    items, scope, when = parts.items, parts.items.scope, sfn.Condition
    over = _outcome(items, "Nothing was to be done")
    ended = finish(items, "Mark the event done", "$.notes").next(over)
    handled = _path(items, "Handled by another event", "handled").next(ended)
    idle = _path(items, "No run needs it", "idle").next(ended)
    look = look_at_place(items, "Look at the run and its place")
    host = _turn(items, "Turn to the host's place", f"States.Format('HOST#{{}}', {_NODE}.fleet.S)")
    slot = _turn(
        items,
        "Turn to the slot",
        place_key(f"States.MathAdd(States.StringToJson({_NODE}.slot.N), 2)"),
    )
    host.next(look)
    slot.next(look)
    hosts = (_names.COORDINATOR_FLEET, _names.COMPILER_FLEET)
    which = (
        sfn.Choice(scope, "Is it a host?")
        .when(when.or_(*(when.string_equals(f"{_NODE}.fleet.S", one) for one in hosts)), host)
        .otherwise(slot)
    )
    on_run = when.and_(
        when.is_present(f"{_NODE}.run.S"), when.not_(when.string_equals(f"{_NODE}.run.S", ""))
    )
    moved = sfn.Pass(
        scope,
        "It moved before",
        result=sfn.Result.from_string("moved"),
        result_path="$.path",
    )
    out = drain(items, parts.document, parts.polls)
    # The failover that moved it may have died before it set the groups' sizes.
    sizes = match_every_group(items, " (moved)", parts.fleets)
    moved.next(sizes.start)
    sizes.end.next(out.start)
    has_moved = when.not_(when.string_equals_json_path(f"{PLACE}.fleet.S", f"{_NODE}.fleet.S"))
    look.next(
        sfn.Choice(scope, "Does the run need it?")
        .when(when.and_(is_alive(), has_moved), moved)
        .when(is_alive(), out.start)
        .otherwise(idle)
    )
    out.end.next(_capacity(parts, idle))
    return (
        sfn.Choice(scope, "Is it at work?")
        .when(when.is_present(f"{_NODE}.handled.S"), handled)
        .when(on_run, which)
        .otherwise(idle)
    )


def _turn(items: Items, name: str, key: str) -> sfn.Pass:
    """Give the Pass that names the node's place, and sets the counters."""
    counter = {"value": 0}
    return sfn.Pass(
        items.scope,
        name,
        parameters={
            "id.$": "$.id",
            "instance.$": "$.instance",
            "kind.$": "$.kind",
            "detail.$": "$.detail",
            "group.$": "$.group",
            "node.$": "$.node",
            "run.$": f"{_NODE}.run.S",
            "key.$": key,
            "path": "replaced",
            "notes": {},
            "command": {},
            "hearings": counter,
            "glances": counter,
            "looks": counter,
        },
    )


def _capacity(parts: NodeParts, idle: sfn.IChainable) -> sfn.Pass:
    """Find capacity for the place, end the old instance, tell, and mark the event."""
    items, scope = parts.items, parts.items.scope
    end = _end(parts)
    none = _path(items, "No capacity anywhere", "no-capacity").next(end)
    if parts.regions:
        asked = ask_regions(items, parts.regions, none)
        asked.end.next(end)
        none = asked.start
    start = sfn.Pass(
        scope,
        "List the run's fleets",
        parameters={
            "fleets.$": "$.place.run.Item.fleets.L[*].S",
            "count.$": "States.ArrayLength($.place.run.Item.fleets.L)",
            "n": 0,
            "path": "moved",
        },
        result_path="$.search",
    )
    capacity = Capacity(
        items=items,
        fleets_path=parts.fleets_path,
        floors=parts.floors,
        polls=parts.polls,
        found=end,
        none=none,
        over=idle,
    )
    start.next(capacity.states())
    return start


def _end(parts: NodeParts) -> sfn.CustomState:
    """End the old instance, tell somebody, and mark node and event."""
    items, scope = parts.items, parts.items.scope
    done = finish_with_node(items, "Mark node and event done", "$.notes")
    done.next(_outcome(items, "Failed over"))
    terminate = task(
        scope,
        "End the old instance",
        "aws-sdk:ec2:terminateInstances",
        {"InstanceIds.$": "States.Array($.instance)"},
    )
    tell: sfn.IChainable = done
    if parts.topic is not None:
        tell = _tell(items, parts.topic, done)
    gone = note(items, "It is gone already", "instance", "the instance could not be terminated")
    terminate.add_catch(gone.next(tell), errors=list(ANY_ERROR), result_path="$.error")
    terminate.next(tell)
    return terminate


def _tell(items: Items, topic: sns.ITopic, then: sfn.IChainable) -> sfn.CustomState:
    """Tell somebody how the node's place went on."""
    tell = task(
        items.scope,
        "Tell how it went",
        "sns:publish",
        {
            "TopicArn": topic.topic_arn,
            "Subject.$": "States.Format('Luma failover of {}: {}', $.instance, $.path)",
            "Message": {
                "event.$": "$.id",
                "kind.$": "$.kind",
                "instance.$": "$.instance",
                "run.$": "$.run",
                "place.$": "$.key",
                "path.$": "$.path",
                "notes.$": "$.notes",
            },
        },
    )
    untold = note(items, "Nobody was told", "topic", "the notification could not be sent")
    tell.add_catch(untold.next(then), errors=list(ANY_ERROR), result_path="$.error")
    tell.next(then)
    return tell


def _outcome(items: Items, name: str) -> sfn.Pass:
    """Give the last state of a node's failover."""
    return sfn.Pass(items.scope, name, parameters={"instance.$": "$.instance", "path.$": "$.path"})


def _path(items: Items, name: str, path: str) -> sfn.Pass:
    """Give the state that says how the failover ends."""
    return sfn.Pass(items.scope, name, result=sfn.Result.from_string(path), result_path="$.path")
