"""What all state machines of this package have: a log of every step, traces, a role, narrow data.

Logs hold names, times and errors of states, never their data: data holds task tokens, and whoever has
a token can answer for a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aws_cdk import Aws, Duration
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from luma_constructs._principals import new_role

if TYPE_CHECKING:
    from luma_constructs.run_store import RunStore

__all__ = ["allow_items", "definition_of", "new_machine_role", "new_state_machine"]

_LOG_DELIVERY = (
    "logs:CreateLogDelivery",
    "logs:DeleteLogDelivery",
    "logs:DescribeLogGroups",
    "logs:DescribeResourcePolicies",
    "logs:GetLogDelivery",
    "logs:ListLogDeliveries",
    "logs:PutResourcePolicy",
    "logs:UpdateLogDelivery",
)
"""What Step Functions needs to write a machine's log ("Logging using CloudWatch Logs")."""

_TRACING = (
    "xray:GetSamplingRules",
    "xray:GetSamplingTargets",
    "xray:PutTelemetryRecords",
    "xray:PutTraceSegments",
)
"""What it needs to trace ("Tracing Step Functions requests in AWS X-Ray")."""


def new_machine_role(scope: Construct, role: iam.IRole | None) -> iam.IRole:
    """Give the role of a machine: the caller's, or a new one that only Step Functions may take on."""
    return role or new_role(
        scope,
        "Role",
        assumed_by=iam.ServicePrincipal("states.amazonaws.com"),
        description="A state machine of a Luma deployment",
    )


def new_state_machine(
    scope: Construct,
    *,
    role: iam.IRole,
    body: sfn.DefinitionBody,
    timeout: Duration,
    comment: str,
) -> sfn.StateMachine:
    """Make a machine, with a log group of its own.

    Args:
        scope: its construct; the machine's id is "Resource".
        role: what it may do.
        body: its definition, by `definition_of`.
        timeout: of one execution.
        comment: what the console shows under its name.
    """
    log = logs.LogGroup(scope, "Log", retention=logs.RetentionDays.THREE_MONTHS)
    machine = sfn.StateMachine(
        scope,
        "Resource",
        role=_as_it_is(role),
        definition_body=body,
        timeout=timeout,
        comment=comment,
        tracing_enabled=True,
        logs=sfn.LogOptions(destination=log, level=sfn.LogLevel.ALL, include_execution_data=False),
    )
    _allow_in_region(role, (*_LOG_DELIVERY, *_TRACING))
    # Step Functions tries the log's permissions when it makes the machine.
    machine.node.add_dependency(role)
    return machine


def _as_it_is(role: iam.IRole) -> iam.IRole:
    """Give a role to which CDK adds nothing: its statements for logs and traces have no condition."""
    return role.without_policy_updates() if isinstance(role, iam.Role) else role


def _allow_in_region(role: iam.IRole, actions: Sequence[str]) -> None:
    """Allow actions that know no resources, in this region alone."""
    iam.Grant.add_to_principal(
        grantee=role,
        actions=list(actions),
        resource_arns=["*"],
        conditions={"StringEquals": {"aws:RequestedRegion": Aws.REGION}},
    )


def definition_of(states: sfn.IChainable) -> sfn.DefinitionBody:
    """Give a definition that stands in the template, from the first of its states.

    moto, which runs these machines in tests, reads neither a file nor an object.
    """
    return sfn.DefinitionBody.from_chainable(states)


def allow_items(role: iam.IRole, store: RunStore, keys: Sequence[str]) -> iam.Grant:
    """Let a machine read and change the items whose partition keys have one of some forms."""
    grant = iam.Grant.add_to_principal(
        grantee=role,
        actions=["dynamodb:GetItem", "dynamodb:UpdateItem", "dynamodb:ConditionCheckItem"],
        resource_arns=[store.table.table_arn],
        conditions={"ForAllValues:StringLike": {"dynamodb:LeadingKeys": list(keys)}},
    )
    key = store.encryption_key
    if key is None:
        return grant
    return grant.combine(key.grant(role, "kms:Decrypt", "kms:GenerateDataKey"))
