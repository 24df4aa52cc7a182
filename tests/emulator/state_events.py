"""EC2's own events: "EC2 Instance State-change Notification" whenever an instance changes state.

moto sends none. Its instances are running when they are created and terminated at once; AWS also
sends the states between, and so does this: `pending`, `running`; `shutting-down`, `terminated`;
`stopping`, `stopped`.
"""

from typing import Any

from moto.ec2.models.instances import Instance, InstanceBackend

from tests.emulator.bridge import emit
from tests.emulator.patching import extends


def install() -> None:
    """Send the events in this process; call it before the first request."""
    extends(InstanceBackend, "run_instances")(_run_instances)
    extends(Instance, "terminate")(_terminate)
    extends(Instance, "stop")(_stop)
    extends(Instance, "start")(_start)


def _announce(instance: Instance, *states: str) -> None:
    backend = instance.ec2_backend
    arn = f"arn:aws:ec2:{backend.region_name}:{backend.account_id}:instance/{instance.id}"
    for state in states:
        emit(
            {
                "source": "aws.ec2",
                "detail-type": "EC2 Instance State-change Notification",
                "resources": [arn],
                "detail": {"instance-id": instance.id, "state": state},
            },
            account=backend.account_id,
            region=backend.region_name,
        )


def _run_instances(original: Any, backend: InstanceBackend, *args: Any, **kwargs: Any) -> Any:
    reservation = original(backend, *args, **kwargs)
    for instance in reservation.instances:
        _announce(instance, "pending", "running")
    return reservation


def _terminate(original: Any, instance: Instance, *args: Any) -> Any:
    was = instance.state
    result = original(instance, *args)
    if was != "terminated":
        _announce(instance, "shutting-down", "terminated")
    return result


def _stop(original: Any, instance: Instance, *args: Any) -> Any:
    result = original(instance, *args)
    _announce(instance, "stopping", "stopped")
    return result


def _start(original: Any, instance: Instance, *args: Any) -> Any:
    result = original(instance, *args)
    _announce(instance, "pending", "running")
    return result
