"""What AWS sends about instances, in its documented forms."""

from typing import Any

from tests.emulator.server import ACCOUNT, EmulatedServer


def interruption(server: EmulatedServer, instance: str, event_id: str | None = None) -> str:
    """Send "EC2 Spot Instance Interruption Warning"; returns the event's id.

    A second call with the id of the first is a duplicate delivery, as EventBridge allows itself.
    """
    detail = {"instance-id": instance, "instance-action": "terminate"}
    return _send(server, instance, "EC2 Spot Instance Interruption Warning", detail, event_id)


def rebalance(server: EmulatedServer, instance: str, event_id: str | None = None) -> str:
    """Send "EC2 Instance Rebalance Recommendation"; returns the event's id."""
    detail = {"instance-id": instance}
    return _send(server, instance, "EC2 Instance Rebalance Recommendation", detail, event_id)


def state_change(
    server: EmulatedServer, instance: str, state: str, event_id: str | None = None
) -> str:
    """Send "EC2 Instance State-change Notification"; returns the event's id."""
    detail = {"instance-id": instance, "state": state}
    return _send(server, instance, "EC2 Instance State-change Notification", detail, event_id)


def _send(
    server: EmulatedServer,
    instance: str,
    kind: str,
    detail: dict[str, Any],
    event_id: str | None,
) -> str:
    order: dict[str, Any] = {
        "source": "aws.ec2",
        "detail-type": kind,
        "resources": [f"arn:aws:ec2:{server.region}:{ACCOUNT}:instance/{instance}"],
        "detail": detail,
    }
    if event_id is not None:
        order["id"] = event_id
    return server.control("emit", **order)["id"]
