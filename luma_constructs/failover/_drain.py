"""Getting a node out: asked to leave, its replacement ordered, its last commit waited for.

The replacement is ordered as soon as the node was asked, not after it has left: instances take
minutes to come, and a spot node is gone two minutes after its notice. What fails here is noted and
passed by, because the node may be dead already; a run loses nothing by a node that leaves without a
word, it only redoes a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_stepfunctions as sfn

from luma_constructs._asl import ANY_ERROR, Items, count, equals, seconds, task, text
from luma_constructs._group_sizes import Piece
from luma_constructs._run_items import NODE, RUN_KEY
from luma_constructs.failover._record import NODE_KEY

__all__ = ["GROUP", "Polls", "drain", "is_gone", "note"]

GROUP = "$.group.names[0]"
"""Path of the name of the instance's group, where it is in one."""

_NODE = "$.now.node.Item"
_ON_ITS_WAY = ("Pending", "InProgress", "Delayed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Polls:
    """How often something is looked at, and how long.

    Attributes:
        every: time between two looks.
        drain: how often the answer to the drain command is looked for.
        commit: how often it is looked whether the node has left.
        capacity: how often it is looked whether a fleet has got its instances.
    """

    every: Duration
    drain: int
    commit: int
    capacity: int

    def wait(self, items: Items, name: str) -> sfn.Wait:
        """Give the state that waits for the next look."""
        return sfn.Wait(
            items.scope,
            name,
            time=sfn.WaitTime.duration(Duration.seconds(seconds(self.every))),
        )

    def loop(
        self, items: Items, looks: int, counter: str, wait: str, back: sfn.IChainable
    ) -> tuple[sfn.Condition, sfn.Pass]:
        """Give the condition that another look is due, and the states that go back to it."""
        again = count(items.scope, f"Count the looks{wait}", counter)
        again.next(self.wait(items, f"Wait{wait}")).next(back)
        return sfn.Condition.number_less_than(f"$.{counter}.value", looks), again


def note(items: Items, name: str, about: str, what: str) -> sfn.Pass:
    """Give the state that notes what did not go as it should."""
    return sfn.Pass(
        items.scope,
        name,
        result=sfn.Result.from_string(what),
        result_path=f"$.notes.{about}",
    )


def drain(items: Items, document: str, polls: Polls) -> Piece:
    """Give the states from a node at work to one that has left, or will not say so any more."""
    scope, when = items.scope, sfn.Condition
    done = sfn.Pass(scope, "It is out")
    commit = _wait_for_commit(items, polls, done)
    hear = _hear(items, polls, commit)
    asked = when.is_present("$.command.id")
    heard = sfn.Choice(scope, "Was it asked?").when(asked, hear).otherwise(commit)
    order = _order(items, heard)
    in_group = (
        sfn.Choice(scope, "Is it in its group?")
        .when(when.is_present(GROUP), order)
        .otherwise(heard)
    )
    ask = task(
        scope,
        "Ask the node to leave",
        "aws-sdk:ssm:sendCommand",
        {
            "DocumentName": document,
            "InstanceIds.$": "States.Array($.instance)",
            "TimeoutSeconds": 30,
        },
        select={"id.$": "$.Command.CommandId"},
        keep="$.command",
    )
    silent = note(items, "Could not ask it", "drain", "the node could not be asked to leave")
    ask.add_catch(silent.next(in_group), errors=list(ANY_ERROR), result_path="$.error")
    ask.next(in_group)
    start = sfn.Choice(scope, "Is it gone already?").when(is_gone(), in_group).otherwise(ask)
    return Piece(start, done)


def is_gone() -> sfn.Condition:
    """Tell whether the event says that the instance exists no more: nobody is left to ask."""
    return equals("$.detail.state", "terminated")


def _order(items: Items, then: sfn.IChainable) -> sfn.CustomState:
    """Take the instance out of its group, which then starts another one."""
    detach = task(
        items.scope,
        "Order a replacement",
        "aws-sdk:autoscaling:detachInstances",
        {
            "AutoScalingGroupName.$": GROUP,
            "InstanceIds.$": "States.Array($.instance)",
            "ShouldDecrementDesiredCapacity": False,
        },
    )
    what = "the instance could not be taken out of its group, which replaces it once it is gone"
    failed = note(items, "Could not detach it", "detach", what)
    detach.add_catch(failed.next(then), errors=list(ANY_ERROR), result_path="$.error")
    detach.next(then)
    return detach


def _hear(items: Items, polls: Polls, then: sfn.IChainable) -> sfn.CustomState:
    """Wait for the answer to the command."""
    scope, when = items.scope, sfn.Condition
    hear = task(
        scope,
        "Hear its answer",
        "aws-sdk:ssm:getCommandInvocation",
        {"CommandId.$": "$.command.id", "InstanceId.$": "$.instance"},
        select={"status.$": "$.Status"},
        keep="$.answer",
    )
    silent = note(items, "No answer", "drain", "the node did not answer")
    bad = note(items, "It did not leave", "drain", "the node could not leave in time")
    hear.add_catch(silent.next(then), errors=list(ANY_ERROR), result_path="$.error")
    due, again = polls.loop(items, polls.drain, "hearings", " for its answer", hear)
    on_its_way = when.or_(*(when.string_equals("$.answer.status", one) for one in _ON_ITS_WAY))
    hear.next(
        sfn.Choice(scope, "Did it leave?")
        .when(when.string_equals("$.answer.status", "Success"), then)
        .when(when.and_(on_its_way, due), again)
        .otherwise(bad.next(then))
    )
    return hear


def _wait_for_commit(items: Items, polls: Polls, then: sfn.IChainable) -> sfn.CustomState:
    """Wait until the run does without the node: it says so, or its slot has another node."""
    scope, when = items.scope, sfn.Condition
    look = items.get_together(
        "Look whether it has left",
        [(NODE_KEY, NODE), (RUN_KEY, text("$.key"))],
        select={"node.$": "$.Responses[0]", "at.$": "$.Responses[1]"},
        keep="$.now",
    )
    holder = "$.now.at.Item.node.S"
    left = when.or_(
        is_gone(),
        equals(f"{_NODE}.state.S", "left"),
        when.and_(
            when.is_present(holder),
            when.not_(when.string_equals_json_path(holder, "$.instance")),
        ),
    )
    due, again = polls.loop(items, polls.commit, "glances", " for the commit", look)
    late = note(items, "Gave up waiting", "commit", "the node never said that it had left")
    look.next(
        sfn.Choice(scope, "Is its part committed?")
        .when(left, then)
        .when(due, again)
        .otherwise(late.next(then))
    )
    return look
