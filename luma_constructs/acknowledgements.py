"""What cdk-nag's AwsSolutions pack finds in these constructs, and why each finding stays.

    acknowledge(stack)

An app that runs cdk-nag calls it on the stack that holds the constructs; `LumaStack` does so itself.
It needs no cdk-nag. Each acknowledgement is put at the one resource that it is about, and covers one
finding: a wildcard is acknowledged by its full text and, where it is not limited to the deployment's
own names, only in a statement with a condition. What matches no line below stays a finding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import aws_cdk as cdk
import jsii
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs
from constructs import IConstruct

__all__ = ["RULES", "WILDCARDS", "Rule", "Wildcard", "acknowledge"]

_PACK = "AwsSolutions::AwsSolutions-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A finding that stays on a kind of resource.

    Attributes:
        id: the rule, such as "S1".
        applies: whether a resource has the finding.
        reason: why it stays.
    """

    id: str
    applies: Callable[[IConstruct], bool]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Wildcard:
    """A wildcard in a resource's ARN that stays.

    Attributes:
        pattern: of the whole ARN; references are `<LogicalId.Arn>`.
        conditional: only in a statement with a condition.
        reason: why it stays.
    """

    pattern: str
    conditional: bool
    reason: str


def _bucket_without_logs(resource: IConstruct) -> bool:
    return isinstance(resource, s3.CfnBucket) and resource.logging_configuration is None


def _mixed_group(resource: IConstruct) -> bool:
    return (
        isinstance(resource, autoscaling.CfnAutoScalingGroup)
        and resource.mixed_instances_policy is not None
    )


def _events_dead_letters(resource: IConstruct) -> bool:
    """Say whether a queue holds what a rule could not deliver, rather than another queue."""
    if not isinstance(resource, sqs.CfnQueue) or resource.redrive_policy is not None:
        return False
    queue = resource.node.scope
    owner = None if queue is None else queue.node.scope
    return owner is not None and owner.node.try_find_child("Queue") is None


RULES = (
    Rule(
        id="SQS3",
        applies=_events_dead_letters,
        reason="It is a dead-letter queue itself, of rules of EventBridge, which the rule does not "
        "know: it looks for other queues alone.",
    ),
    Rule(
        id="S1",
        applies=_bucket_without_logs,
        reason="Every reader of the bucket is a role of this deployment, whose calls CloudTrail can "
        "record; give RunStore an access_logs_bucket where access logs are asked for.",
    ),
    Rule(
        id="EC26",
        applies=_mixed_group,
        reason="The rule fails on every group with a mixed instances policy, because it reads only "
        "the launch template beside it; each launch template here encrypts its volume.",
    ),
    Rule(
        id="AS3",
        applies=lambda resource: isinstance(resource, autoscaling.CfnAutoScalingGroup),
        reason="EventBridge tells the failover machine of every instance that comes or goes, and it "
        "tells people; notifications of the group would say the same again.",
    ),
)
"""Findings that have nothing to do with permissions."""

_IN_ACCOUNT = r"arn:(?:<AWS::Partition>|aws[a-z-]*):{}:(?:<AWS::Region>|[a-z0-9-]+):(?:<AWS::AccountId>|\d{{12}}):"

WILDCARDS = (
    Wildcard(
        pattern=r"(?:<[A-Za-z0-9]+\.Arn>|arn:(?:<AWS::Partition>|aws[a-z-]*):s3:::[a-z0-9.-]+)/runs/\*.*",
        conditional=False,
        reason="Runs lie below one prefix and are named by people, so their objects are known only "
        "by the prefix; nothing outside of it is allowed.",
    ),
    Wildcard(
        pattern=_IN_ACCOUNT.format("ssm") + r"parameter/luma(?:-keys)?/[A-Za-z0-9-]+(?:/.*)?",
        conditional=False,
        reason="The parameters of one deployment lie below its own path, and nodes read them by "
        "that path, whichever fleets there are.",
    ),
    Wildcard(
        pattern=_IN_ACCOUNT.format("autoscaling")
        + r"autoScalingGroup:\*:autoScalingGroupName/(?:<[A-Za-z0-9]+>|[A-Za-z0-9-]+)",
        conditional=False,
        reason="The ARN of a group has an id that CloudFormation does not tell; the group's name "
        "behind it is unique in the account and region.",
    ),
    Wildcard(
        pattern=_IN_ACCOUNT.format("autoscaling") + r"autoScalingGroup:\*:autoScalingGroupName/\*",
        conditional=True,
        reason="A role that is older than the groups cannot name them; the condition limits it to "
        "groups with the tag of this deployment or fleet.",
    ),
    Wildcard(
        pattern=_IN_ACCOUNT.format("ec2") + r"instance/\*",
        conditional=True,
        reason="Instances do not exist yet when the policy is written; the condition limits it to "
        "those of the fleet, or to the calling instance itself.",
    ),
    Wildcard(
        pattern=_IN_ACCOUNT.format("ssm") + r"managed-instance/\*",
        conditional=True,
        reason="External nodes register later than the policy is written; the condition limits it "
        "to those with the fleet's tag.",
    ),
    Wildcard(
        pattern=r"\*",
        conditional=True,
        reason="AWS knows no resource for these actions; the condition limits them to this region, "
        "namespace or deployment.",
    ),
)
"""Wildcards in resources that stay, in the order in which they are tried. No action has one."""


def acknowledge(scope: IConstruct) -> None:
    """Acknowledge what cdk-nag finds below a construct and what stays, as resources are prepared."""
    cdk.Aspects.of(scope).add(
        _Acknowledging(),
        # After everything that adds permissions.
        priority=cdk.AspectPriority.READONLY,
    )


@jsii.implements(cdk.IAspect)
class _Acknowledging:
    """Visits resources after all permissions have been added."""

    def visit(self, node: IConstruct) -> None:
        """Acknowledge what is found at one resource."""
        if not isinstance(node, cdk.CfnResource):
            return
        found = {rule.id: rule.reason for rule in RULES if rule.applies(node)}
        if isinstance(node, iam.CfnPolicy | iam.CfnManagedPolicy):
            found.update(_wildcards(cdk.Stack.of(node).resolve(node.policy_document)))
        if found:
            cdk.Validations.of(node).acknowledge(
                *(
                    cdk.Acknowledgment(id=f"{_PACK}{rule}", reason=reason)
                    for rule, reason in found.items()
                )
            )


def _wildcards(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Give the findings of a policy that stay, each with its reason.

    A resource is acknowledged only where every statement that names it may have it.
    """
    reasons: dict[str, str | None] = {}
    for statement in document.get("Statement", []):
        if statement["Effect"] != "Allow":
            continue
        resources = statement.get("Resource", [])
        for resource in resources if isinstance(resources, list) else [resources]:
            text = _flat(resource)
            if "*" in text:
                reason = _reason(text, conditional="Condition" in statement)
                reasons[text] = reason if reasons.get(text, "") is not None else None
    for text, reason in reasons.items():
        if reason is not None:
            yield f"IAM5[Resource::{text}]", reason


def _reason(resource: str, *, conditional: bool) -> str | None:
    for wildcard in WILDCARDS:
        if re.fullmatch(wildcard.pattern, resource) and (conditional or not wildcard.conditional):
            return wildcard.reason
    return None


def _flat(value: Any) -> str:
    """Write a resolved ARN as cdk-nag does, since an acknowledgement must match its text."""
    if isinstance(value, str):
        return value
    match next(iter(value.items())):
        case ("Ref", name):
            return f"<{name}>"
        case ("Fn::GetAtt", [name, attribute]):
            return f"<{name}.{attribute}>"
        case ("Fn::Join", [separator, parts]):
            return separator.join(_flat(part) for part in parts)
        case ("Fn::ImportValue", name):
            return _flat(name)
    return json.dumps(value, separators=(",", ":"))
