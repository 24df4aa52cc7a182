"""Permissions on a fleet, for state machines and for whoever works in it.

The fleet's own role gets `take_work` when the fleet is made; the rest is for the constructs that
orchestrate. EC2 and SSM act on instances that do not exist yet, so those actions are limited by the
fleet's tag. The `Describe` actions of Auto Scaling know no resources: they are limited to the region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from aws_cdk import Aws, Stack
from aws_cdk import aws_iam as iam

from luma_constructs import _names

if TYPE_CHECKING:
    from luma_constructs.drain_document import DrainDocument
    from luma_constructs.fleet_interface import IAcceleratorFleet

__all__ = ["FleetGrants"]


class FleetGrants:
    """What can be granted on a fleet; each method gives the `iam.Grant`.

    On a fleet without an Auto Scaling group (external nodes) `scale`, `replace` and `leave` grant
    nothing.
    """

    def __init__(self, fleet: IAcceleratorFleet) -> None:
        self._fleet = fleet

    @classmethod
    def from_fleet(cls, fleet: IAcceleratorFleet) -> FleetGrants:
        """Give the grants of a fleet."""
        return cls(fleet)

    def take_work(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let a node take messages of work."""
        queue = self._fleet.queue
        actions = [
            "sqs:ReceiveMessage",
            "sqs:DeleteMessage",
            "sqs:ChangeMessageVisibility",
            "sqs:GetQueueAttributes",
        ]
        grant = _grant(grantee, actions, [queue.queue_arn])
        key = queue.encryption_master_key
        return grant if key is None else grant.combine(key.grant(grantee, "kms:Decrypt"))

    def give_work(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let a state machine send messages of work."""
        queue = self._fleet.queue
        grant = _grant(grantee, ["sqs:SendMessage"], [queue.queue_arn])
        key = queue.encryption_master_key
        if key is None:
            return grant
        return grant.combine(key.grant(grantee, "kms:GenerateDataKey", "kms:Decrypt"))

    def scale(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let a state machine set the number of instances."""
        return self._on_group(grantee, ["autoscaling:SetDesiredCapacity"])

    def replace(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let a state machine take an instance out, so that another takes its place, and end it."""
        detached = self._on_group(
            grantee,
            [
                "autoscaling:DetachInstances",
                "autoscaling:TerminateInstanceInAutoScalingGroup",
                "autoscaling:CompleteLifecycleAction",
            ],
        )
        if self._fleet.auto_scaling_group is None:
            return detached
        ended = _grant(
            grantee,
            ["ec2:TerminateInstances"],
            [self._instances()],
            {"StringEquals": self._tags("aws:ResourceTag")},
        )
        return detached.combine(ended)

    def leave(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let a node say that it has left, so that its instance need not be held any longer."""
        if self._fleet.auto_scaling_group is None:
            return _no_group(grantee)
        # By the tag, not by the group's name: the group needs its launch template, which waits for
        # the role's policy.
        group = self._arn("autoscaling", "autoScalingGroup:*:autoScalingGroupName/*")
        return _grant(
            grantee,
            ["autoscaling:CompleteLifecycleAction"],
            [group],
            {"StringEquals": self._tags("aws:ResourceTag")},
        )

    def drain(self, grantee: iam.IGrantable, document: DrainDocument) -> iam.Grant:
        """Let a state machine ask a node to leave, by one SSM document and no other command."""
        nodes = [self._instances(), self._arn("ssm", "managed-instance/*")]
        sent = _grant(
            grantee, ["ssm:SendCommand"], nodes, {"StringEquals": self._tags("ssm:resourceTag")}
        )
        used = _grant(grantee, ["ssm:SendCommand"], [document.drain_document_arn])
        # An answer has no resource of its own.
        asked = _in_region(grantee, ["ssm:GetCommandInvocation"])
        return sent.combine(used).combine(asked)

    def watch(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let a state machine see which instances there are and what became of launches."""
        return _in_region(
            grantee,
            [
                "autoscaling:DescribeAutoScalingGroups",
                "autoscaling:DescribeAutoScalingInstances",
                "autoscaling:DescribeScalingActivities",
            ],
        )

    def _on_group(self, grantee: iam.IGrantable, actions: Sequence[str]) -> iam.Grant:
        """Grant actions on the Auto Scaling group."""
        group = self._fleet.auto_scaling_group
        if group is None:
            return _no_group(grantee)
        return _grant(grantee, actions, [group.auto_scaling_group_arn])

    def _tags(self, key: str) -> dict[str, str]:
        """Give the tags of the fleet's instances as a condition's keys."""
        return {
            f"{key}/{_names.DEPLOYMENT_TAG}": self._fleet.deployment_name,
            f"{key}/{_names.FLEET_TAG}": self._fleet.fleet_name,
        }

    def _instances(self) -> str:
        """Give the pattern of the region's instances."""
        return self._arn("ec2", "instance/*")

    def _arn(self, service: str, resource: str) -> str:
        """Give an ARN in the fleet's account and region."""
        kind, _, name = resource.partition("/")
        stack = Stack.of(self._fleet.queue)
        return stack.format_arn(service=service, resource=kind, resource_name=name)


def _no_group(grantee: iam.IGrantable) -> iam.Grant:
    """Grant nothing, on a fleet outside EC2."""
    return iam.Grant.drop(grantee, "no Auto Scaling group")


def _grant(
    grantee: iam.IGrantable,
    actions: Sequence[str],
    arns: Sequence[str],
    conditions: Mapping[str, Mapping[str, object]] | None = None,
) -> iam.Grant:
    """Grant actions on resources."""
    return iam.Grant.add_to_principal(
        grantee=grantee, actions=list(actions), resource_arns=list(arns), conditions=conditions
    )


def _in_region(grantee: iam.IGrantable, actions: Sequence[str]) -> iam.Grant:
    """Grant actions that know no resources, in this region alone."""
    region = {"StringEquals": {"aws:RequestedRegion": Aws.REGION}}
    return _grant(grantee, actions, ["*"], region)
