"""Auto Scaling as AWS documents it: families without capacity, activities, lifecycle hooks.

What moto lacks, and is added in the server's process:

- A pool (an Auto Scaling group, or an instance type in all of them) may have no capacity: a launch
  then fails, the scaling activity says so in AWS's words, and the group stays below its desired
  capacity. It tries again when capacity comes back (AWS: every few minutes).
- Launches take the first override that has capacity, in the group's order, over the group's
  subnets in turn; the split between spot and on-demand follows `InstancesDistribution`, on-demand
  base first. moto takes the launch template's type, one subnet, and rounds one half to nothing.
- `DescribeScalingActivities`; moto's list is always empty.
- A termination hook holds an instance in `Terminating:Wait` until `CompleteLifecycleAction`, or
  until its heartbeat time-out; moto creates hooks from no template and never waits.
- `SetDesiredCapacity` beyond the group's bounds is refused, and so is `DetachInstances` of an
  instance that is not in the group.

Bypassed: warm-up, cooldown, health-check delays (a terminated instance is replaced at once),
capacity rebalance, weights of overrides (each counts 1), notification targets of hooks.
"""

import itertools
import threading
import uuid
from datetime import UTC, datetime
from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import (
    ASG_NAME_TAG,
    AutoScalingBackend,
    FakeAutoScalingGroup,
    InstanceState,
    autoscaling_backends,
)
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult, EmptyResult

from tests.emulator.patching import extends

NO_SPOT = (
    "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to your "
    "request configuration. Please adjust your request and try again. Launching EC2 instance failed."
)
NO_ON_DEMAND = (
    "We currently do not have sufficient {type} capacity in the Availability Zone you requested "
    "({zone}). Our system will be working on provisioning additional capacity. "
    "Launching EC2 instance failed."
)

_lock = threading.RLock()
_left: dict[str, int] = {}  # pool (group name or instance type) -> launches still possible
_activities: dict[str, list[dict[str, Any]]] = {}  # group name -> newest first
_waiting: dict[str, threading.Timer] = {}  # instance in Terminating:Wait -> its time-out


def install() -> None:
    """Add to moto's Auto Scaling in this process; call it before the first request."""
    extends(FakeAutoScalingGroup, "set_desired_capacity")(_set_desired_capacity)
    extends(FakeAutoScalingGroup, "replace_autoscaling_group_instances")(_replace)
    extends(AutoScalingBackend, "set_desired_capacity")(_checked_desired_capacity)
    extends(AutoScalingBackend, "detach_instances")(_detach_instances)
    extends(AutoScalingBackend, "delete_auto_scaling_group")(_delete_group)
    extends(AutoScalingBackend, "notify_terminate_instances")(_notify_terminated)
    extends(AutoScalingResponse, "describe_scaling_activities")(_describe_scaling_activities)
    AutoScalingResponse.complete_lifecycle_action = _complete_lifecycle_action


def set_left(pool: str, launches: int | None) -> None:
    """Let a pool launch so many more instances; `None` lifts the limit, and groups try again."""
    with _lock:
        if launches is None:
            _left.pop(pool, None)
        else:
            _left[pool] = launches
        for regions in autoscaling_backends.values():
            for backend in regions.values():
                for group in list(backend.autoscaling_groups.values()):
                    _fill(group)


def _set_desired_capacity(_original: Any, group: FakeAutoScalingGroup, wanted: int | None) -> None:
    with _lock:
        group.desired_capacity = group.min_size if wanted is None else wanted
        _fill(group)
        surplus = len(group.active_instances()) - (group.desired_capacity or 0)
        free = [s for s in group.active_instances() if not s.protected_from_scale_in]
        for state in free[: max(0, surplus)]:
            _take_out(group, state)
    _update_targets(group)


def _update_targets(group: FakeAutoScalingGroup) -> None:
    if group.name in group.autoscaling_backend.autoscaling_groups:
        group.autoscaling_backend.update_attached_elbs(group.name)
        group.autoscaling_backend.update_attached_target_groups(group.name)


def _replace(_original: Any, group: FakeAutoScalingGroup, _count: int, _tags: Any) -> None:
    with _lock:
        _fill(group)


def _checked_desired_capacity(
    original: Any, backend: AutoScalingBackend, group_name: str, desired_capacity: int | None
) -> None:
    group = backend.autoscaling_groups.get(group_name)
    if group is None:
        raise ValidationError("AutoScalingGroup name not found - null")
    for bound, text in ((group.max_size, "above max"), (group.min_size, "below min")):
        too_far = (desired_capacity or 0) - (bound or 0)
        if (text == "above max" and too_far > 0) or (text == "below min" and too_far < 0):
            raise ValidationError(
                f"New SetDesiredCapacity value {desired_capacity} is {text} value {bound} for "
                f"the AutoScalingGroup."
            )
    original(backend, group_name, desired_capacity)


def _detach_instances(
    original: Any, backend: AutoScalingBackend, group_name: str, instance_ids: list[str], *rest: Any
) -> Any:
    group = backend.autoscaling_groups.get(group_name)
    inside = {state.instance.id for state in group.instance_states} if group else set()
    for instance_id in instance_ids:
        if instance_id not in inside:
            raise ValidationError(
                f"The instance {instance_id} is not part of Auto Scaling group {group_name}."
            )
    return original(backend, group_name, instance_ids, *rest)


def _fill(group: FakeAutoScalingGroup) -> None:
    missing = (group.desired_capacity or 0) - len(group.active_instances())
    for _ in range(missing):
        if not _launch_one(group):
            return


def _launch_one(group: FakeAutoScalingGroup) -> bool:
    lifecycle = _next_lifecycle(group)
    zone, subnet = _next_place(group)
    before = len(group.active_instances())
    types = _types(group)
    chosen = next((t for t in types if _left.get(t, 1) > 0 and _left.get(group.name, 1) > 0), None)
    if chosen is None:
        text = NO_SPOT if lifecycle == "spot" else NO_ON_DEMAND.format(type=types[0], zone=zone)
        _record(group, "Launching a new EC2 instance", before, before + 1, failed=text)
        return False
    for pool in (chosen, group.name):
        if pool in _left:
            _left[pool] -= 1
    instance = _run(group, chosen, lifecycle, zone, subnet)
    description = f"Launching a new EC2 instance: {instance.id}"
    _record(group, description, before, before + 1)
    return True


def _run(
    group: FakeAutoScalingGroup, chosen: str, lifecycle: str | None, zone: str, subnet: str | None
) -> Any:
    tags = {**group.get_propagated_tags(), ASG_NAME_TAG: group.name, **group.instance_tags}
    template = group.ec2_launch_template
    reservation = group.autoscaling_backend.ec2_backend.run_instances(
        group.image_id,
        1,
        group.user_data,
        group.security_groups,
        instance_type=chosen,
        lifecycle=lifecycle,
        tags={"instance": tags},
        placement=zone,
        launch_config=group.launch_config,
        launch_template={"LaunchTemplateId": template.id} if template else None,
        is_instance_type_default=False,
        associate_public_ip=None,
        subnet_id=subnet,
    )
    instance = reservation.instances[0]
    instance.autoscaling_group = group
    group.instance_states.append(
        InstanceState(instance, protected_from_scale_in=group.new_instances_protected_from_scale_in)
    )
    return instance


def _types(group: FakeAutoScalingGroup) -> list[str]:
    policy = (group.mixed_instances_policy or {}).get("LaunchTemplate", {})
    named = [o["InstanceType"] for o in policy.get("Overrides", []) if "InstanceType" in o]
    return named or [group.instance_type]


def _next_lifecycle(group: FakeAutoScalingGroup) -> str | None:
    """On-demand base first, then the percentage; CloudFormation hands numbers as text."""
    policy = (group.mixed_instances_policy or {}).get("InstancesDistribution")
    if policy is None:
        return None
    base = int(policy.get("OnDemandBaseCapacity", 0))
    percent = int(policy.get("OnDemandPercentageAboveBaseCapacity", 100))
    active = group.active_instances()
    on_demand = sum(s.instance.lifecycle != "spot" for s in active)
    above = len(active) + 1 - base
    wanted = base + -(-max(0, above) * percent // 100)  # AWS rounds in favour of on-demand
    return None if on_demand < min(wanted, len(active) + 1) else "spot"


def _next_place(group: FakeAutoScalingGroup) -> tuple[str, str | None]:
    """Zones in turn, as AWS balances them: the one with the fewest instances of the group."""
    if not group.vpc_zone_identifier:
        places = [(zone, None) for zone in group.availability_zones]
    else:
        ids = group.vpc_zone_identifier.split(",")
        found = group.autoscaling_backend.ec2_backend.describe_subnets(subnet_ids=ids)
        places = [(subnet.availability_zone, subnet.id) for subnet in found]
    used = [s.instance.placement.zone for s in group.active_instances()]
    return min(places, key=lambda place: (used.count(place[0]), place[0]))


def _take_out(group: FakeAutoScalingGroup, state: InstanceState) -> None:
    """Scale in one instance: at once, or after its termination hook was answered."""
    before = len(group.active_instances())
    hooks = [
        hook
        for hook in group.autoscaling_backend.describe_lifecycle_hooks(group.name)
        if hook.lifecycle_transition == "autoscaling:EC2_INSTANCE_TERMINATING"
    ]
    _record(group, f"Terminating EC2 instance: {state.instance.id}", before, before - 1)
    if not hooks:
        _end(group, state)
        return
    state.lifecycle_state = "Terminating:Wait"
    timer = threading.Timer(int(hooks[0].heartbeat_timeout), _end, (group, state))
    timer.daemon = True
    _waiting[state.instance.id] = timer
    timer.start()


def _end(group: FakeAutoScalingGroup, state: InstanceState) -> None:
    with _lock:
        timer = _waiting.pop(state.instance.id, None)
        if timer is not None:
            timer.cancel()
        group.instance_states = [s for s in group.instance_states if s is not state]
    group.autoscaling_backend.ec2_backend.terminate_instances([state.instance.id])


def _notify_terminated(
    _original: Any, backend: AutoScalingBackend, instance_ids: list[str]
) -> None:
    """EC2 ended instances by itself: the groups drop and replace them."""
    with _lock:
        for group in list(backend.autoscaling_groups.values()):
            kept = [s for s in group.instance_states if s.instance.id not in instance_ids]
            if len(kept) != len(group.instance_states):
                group.instance_states = kept
                _fill(group)
    for group in list(backend.autoscaling_groups.values()):
        _update_targets(group)


def _delete_group(original: Any, backend: AutoScalingBackend, group_name: str) -> None:
    group = backend.autoscaling_groups.get(group_name)
    if group is not None:
        with _lock:
            group.desired_capacity = 0
            for state in list(group.instance_states):
                _end(group, state)
    original(backend, group_name)


def _record(
    group: FakeAutoScalingGroup,
    description: str,
    before: int,
    after: int,
    failed: str | None = None,
) -> None:
    now = datetime.now(UTC)
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    verb = "increasing" if after > before else "shrinking"
    activity = {
        "ActivityId": str(uuid.uuid4()),
        "AutoScalingGroupName": group.name,
        "AutoScalingGroupARN": group.arn,
        "Description": description
        if failed is None
        else f"{description}.  Status Reason: {failed}",
        "Cause": f"At {stamp} an instance was {'started' if after > before else 'taken out of service'}"
        f" in response to a difference between desired and actual capacity, {verb} the capacity "
        f"from {before} to {after}.",
        "StartTime": now,
        "EndTime": now,
        "StatusCode": "Failed" if failed else "Successful",
        "Progress": 100,
        "Details": "{}",
    }
    if failed:
        activity["StatusMessage"] = failed
    _activities.setdefault(group.name, []).insert(0, activity)


def _describe_scaling_activities(_original: Any, response: AutoScalingResponse) -> ActionResult:
    name = response._get_param("AutoScalingGroupName")
    wanted = response._get_param("ActivityIds", [])
    limit = response._get_int_param("MaxRecords") or 100
    with _lock:
        chosen = [_activities.get(name, [])] if name else list(_activities.values())
        found = [a for a in itertools.chain(*chosen) if not wanted or a["ActivityId"] in wanted]
    found.sort(key=lambda activity: activity["StartTime"], reverse=True)
    return ActionResult({"Activities": found[:limit]})


def _complete_lifecycle_action(response: AutoScalingResponse) -> ActionResult:
    instance_id = response._get_param("InstanceId")
    name = response._get_param("AutoScalingGroupName")
    group = response.autoscaling_backend.autoscaling_groups.get(name)
    states = group.instance_states if group else []
    state = next((s for s in states if s.instance.id == instance_id), None)
    if state is None or instance_id not in _waiting:
        raise ValidationError(f"No active Lifecycle Action found with instance ID {instance_id}")
    _end(group, state)
    return EmptyResult()
