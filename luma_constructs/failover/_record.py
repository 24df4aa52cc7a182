"""The record of an event: it is begun once, and a half-done failover is done again.

An event that is recorded as done ends at once: EventBridge delivers at least once. One that was begun
and not done is redone from its start, since every step of a failover sees what was done before. A
node that one event has dealt with is marked, so that the next event of the same reclaim (a warning,
then a state change) does nothing.
"""

from __future__ import annotations

from typing import Any

from aws_cdk import aws_stepfunctions as sfn

from luma_constructs._asl import CONDITION_FAILED, NOW, Items, execution, text
from luma_constructs._run_items import EVENT, NODE

__all__ = ["EVENT_KEY", "NODE_KEY", "begin", "finish", "finish_with_node"]

EVENT_KEY = {"S.$": "States.Format('EVENT#{}', $.id)"}
"""Partition key of the event's item."""

NODE_KEY = {"S.$": "States.Format('NODE#{}', $.instance)"}
"""Partition key of the node's item."""

_NOT_DONE = "attribute_not_exists(#status) OR #status <> :done"


def begin(items: Items, name: str, duplicate: sfn.IChainable) -> sfn.CustomState:
    """Give the record of an event that begins; a done one goes to `duplicate`."""
    return items.update(
        name,
        EVENT_KEY,
        EVENT,
        "SET #status = :started, kind = :kind, instance = :instance, started_at = :now, "
        "#execution = :me",
        {
            ":started": {"S": "started"},
            ":done": {"S": "done"},
            ":kind": text("$.kind"),
            ":instance": text("$.instance"),
            ":now": text(NOW),
            ":me": text(execution),
        },
        condition=_NOT_DONE,
        names=["status", "execution"],
    ).add_catch(duplicate, errors=list(CONDITION_FAILED), result_path="$.error")


def finish(items: Items, name: str, notes: str) -> sfn.CustomState:
    """Give the record of an event that is done.

    Args:
        items: the table.
        name: as the console shows it.
        notes: path of what did not go as it should, an object.
    """
    expression, values = _done(notes)
    return items.update(name, EVENT_KEY, EVENT, expression, values, names=["status", "path"])


def finish_with_node(items: Items, name: str, notes: str) -> sfn.CustomState:
    """Give the same, with the node marked as dealt with."""
    expression, values = _done(notes)
    event = items.change(EVENT_KEY, EVENT, expression, values, names=["status", "path"])
    node = items.change(NODE_KEY, NODE, "SET handled = :event", {":event": text("$.id")})
    return items.write_together(name, [{"Update": event}, {"Update": node}])


def _done(notes: str) -> tuple[str, dict[str, Any]]:
    """Give the change that marks an event as done."""
    return (
        "SET #status = :done, #path = :path, notes = :notes, finished_at = :now",
        {
            ":done": {"S": "done"},
            ":path": text("$.path"),
            ":notes": {"S.$": f"States.JsonToString({notes})"},
            ":now": text(NOW),
        },
    )
