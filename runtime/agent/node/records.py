"""The node's own item, for the failover machine and for `luma status`."""

from __future__ import annotations

from typing import Any

from runtime.agent.node.core import NodeState
from runtime.agent.node.place import Place
from runtime.agent.node.work import last_commit
from runtime.agent.node.work_coordinate import now_text
from runtime.spec.account import DRAIN_HOOK, NODE_ITEM, Work, node_key
from runtime.spec.aws import AwsError, aws_client, aws_errors

__all__ = ["NodeRecord", "complete_lifecycle"]


class NodeRecord:
    """Writes the item NODE of this node.

    Args:
        place: the node's.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def write(self, state: NodeState, work: Work | None, island: str | None) -> None:
        """Write what the node does. The work's token is no part of it: whoever has it may answer.

        Raises:
            AwsError: the table cannot be written.
        """
        place = self._place
        item: dict[str, Any] = {
            "pk": node_key(place.identity.instance),
            "sk": NODE_ITEM,
            "fleet": place.fleet,
            "instance_type": place.identity.instance_type,
            "zone": place.identity.zone,
            "address": place.identity.address,
            "state": state,
            "updated_at": now_text(),
        }
        if work is not None:
            item |= {"run": work.run, "slot": work.slot, "kind": work.kind, "island": island or ""}
            item["last_commit_seen"] = last_commit(place, work.run)
        place.table.put(item)


def complete_lifecycle(place: Place) -> None:
    """Let the Auto Scaling group terminate this instance now, rather than at the hook's time-out.

    A group without the hook, or one that does not wait, answers with an error that means nothing
    to do.

    Raises:
        AwsError: the group cannot be asked.
    """
    if place.asg is None:
        return
    try:
        with aws_errors("autoscaling CompleteLifecycleAction"):
            aws_client("autoscaling", region=place.config.region).complete_lifecycle_action(
                LifecycleHookName=DRAIN_HOOK,
                AutoScalingGroupName=place.asg,
                LifecycleActionResult="CONTINUE",
                InstanceId=place.identity.instance,
            )
    except AwsError as error:
        if error.reason != "request":  # ValidationError: nobody waits for it
            raise
