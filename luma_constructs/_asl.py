"""Small parts of state machines: tasks, items of the table, what is tried again.

Tasks are written as ASL rather than through `aws_stepfunctions_tasks`, whose classes each add a
policy statement of their own: here permissions come from the grants facades alone, with their
conditions. All data flow is JSONPath. Variables, JSONata, activities and Lambda functions are not
used.

Forms of resources and errors: the Step Functions developer guide, "Integrating services" (optimized
`dynamodb`, `sqs`, `sns`, `events`) and "AWS SDK service integrations" (`aws-sdk:...`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aws_cdk import Aws, Duration
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from luma_constructs import _names

__all__ = [
    "ANY_ERROR",
    "CONDITION_FAILED",
    "DISCARD",
    "NOW",
    "NO_ANSWER",
    "Items",
    "count",
    "equals",
    "exact_seconds",
    "execution",
    "has_no",
    "number",
    "of_group",
    "seconds",
    "task",
    "text",
]

DISCARD = sfn.JsonPath.DISCARD
"""Result path that throws the result away."""

ANY_ERROR = ("States.ALL",)
"""Every error that can be caught."""

NO_ANSWER = ("States.Timeout", "States.HeartbeatTimeout")
"""A node that says nothing: AWS names a missed heartbeat by the second, emulators by the first."""

CONDITION_FAILED = (
    "DynamoDB.ConditionalCheckFailedException",
    "DynamoDb.ConditionalCheckFailedException",
)
"""A refused conditional write, as the optimized and the SDK integration name it."""

NOW = "$$.State.EnteredTime"
"""ISO 8601 time at which the current state began."""

execution = "$$.Execution.Id"
"""ARN of the running execution."""

_AGAIN = {
    "dynamodb": (
        "DynamoDB.InternalServerErrorException",
        "DynamoDB.ProvisionedThroughputExceededException",
        "DynamoDB.RequestLimitExceededException",
        "DynamoDB.ThrottlingException",
        "DynamoDB.TransactionConflictException",
    ),
    "aws-sdk:dynamodb": (
        "DynamoDb.InternalServerErrorException",
        "DynamoDb.ProvisionedThroughputExceededException",
        "DynamoDb.RequestLimitExceededException",
        "DynamoDb.TransactionConflictException",
        "DynamoDb.TransactionInProgressException",
    ),
    # The SDK integration gives all errors that have no class of their own, throttling among them,
    # the name of the service.
    "aws-sdk:autoscaling": (
        "AutoScaling.AutoScalingException",
        "AutoScaling.ResourceContentionException",
        "AutoScaling.ScalingActivityInProgressException",
    ),
    "aws-sdk:ssm": (
        "Ssm.InternalServerErrorException",
        "Ssm.InvocationDoesNotExistException",
        "Ssm.SsmException",
    ),
    "aws-sdk:ec2": ("Ec2.Ec2Exception",),
    "sqs": ("SQS.AmazonSQSException", "SQS.SdkClientException"),
    "sns": ("SNS.InternalErrorException", "SNS.ThrottledException"),
    "events": ("EventBridge.InternalException", "EventBridge.ThrottlingException"),
    "aws-sdk:sfn": ("Sfn.ExecutionLimitExceededException", "Sfn.SfnException"),
}
"""Errors that go away by themselves, by integration."""


def task(
    scope: Construct,
    name: str,
    resource: str,
    parameters: Mapping[str, Any],
    *,
    select: Mapping[str, Any] | None = None,
    keep: str = DISCARD,
    heartbeat: Duration | None = None,
    timeout: Duration | None = None,
) -> sfn.CustomState:
    """Give a Task state.

    Args:
        scope: where its node goes.
        name: as the console shows it.
        resource: integration and action, such as "dynamodb:getItem".
        parameters: of the call; a key ending in ".$" holds a path or an intrinsic function.
        select: ResultSelector. Default: - the whole result.
        keep: ResultPath. Default: - the result is thrown away.
        heartbeat: longest silence of whoever holds the task's token. Default: - no limit.
        timeout: longest duration. Default: - that of the machine.
    """
    state: dict[str, Any] = {
        "Type": "Task",
        "Resource": f"arn:{Aws.PARTITION}:states:::{resource}",
        "Parameters": dict(parameters),
        "ResultPath": keep,
    }
    if select is not None:
        state["ResultSelector"] = dict(select)
    if heartbeat is not None:
        state["HeartbeatSeconds"] = seconds(heartbeat)
    if timeout is not None:
        state["TimeoutSeconds"] = seconds(timeout)
    custom = sfn.CustomState(scope, name, state_json=state)
    errors = _AGAIN[resource.rpartition(":")[0]]
    return custom.add_retry(
        errors=list(errors),
        interval=Duration.seconds(1),
        max_attempts=3,
        backoff_rate=2,
        jitter_strategy=sfn.JitterType.FULL,
    )


def equals(variable: str, value: str) -> sfn.Condition:
    """Give the condition that a variable is there and equals a text."""
    return sfn.Condition.and_(
        sfn.Condition.is_present(variable), sfn.Condition.string_equals(variable, value)
    )


def has_no(variable: str) -> sfn.Condition:
    """Give the condition that a field is absent or null; CDK's JSON leaves null fields out."""
    when = sfn.Condition
    return when.or_(when.not_(when.is_present(variable)), when.is_null(variable))


def count(scope: Construct, name: str, counter: str) -> sfn.Pass:
    """Give a Pass that adds one to a counter at the top of the data, such as "polls"."""
    return sfn.Pass(
        scope,
        name,
        parameters={"value.$": f"States.MathAdd($.{counter}.value, 1)"},
        result_path=f"$.{counter}",
    )


def seconds(duration: Duration) -> int:
    """Give a duration as whole seconds, at least 1."""
    return max(1, int(duration.to_seconds()))


def exact_seconds(duration: Duration) -> float:
    """Give a duration in seconds, an int where it is whole."""
    value = float(duration.to_seconds(integral=False))
    return int(value) if value.is_integer() else value


def text(path: str) -> dict[str, str]:
    """Give a string attribute whose value is read from a path."""
    return {"S.$": path}


def number(path: str) -> dict[str, str]:
    """Give a number attribute whose value is read from a path; DynamoDB's JSON has numbers as text."""
    return {"N.$": f"States.Format('{{}}', {path})"}


def of_group(field: str) -> str:
    """Give the intrinsic for a field of the one group in DescribeAutoScalingGroups' answer.

    Not `$.AutoScalingGroups[0].Field`, which is the same on AWS: moto gives a list for it.
    """
    return f"States.ArrayGetItem($.AutoScalingGroups[*].{field}, 0)"


@dataclass(frozen=True, slots=True)
class Items:
    """Reads and writes of the table of run state.

    Partition and sort keys are given as attribute values, such as `text("$.key")` or `{"S": "RUN"}`.

    Attributes:
        scope: where the states' nodes go.
        table: the table's name.
    """

    scope: Construct
    table: str

    def get(
        self,
        name: str,
        pk: Mapping[str, str],
        sk: Mapping[str, str],
        *,
        keep: str,
        select: Mapping[str, Any] | None = None,
    ) -> sfn.CustomState:
        """Give a consistent read of one item; `keep` gets {"Item": ...}, or {} where there is none."""
        return task(
            self.scope,
            name,
            "dynamodb:getItem",
            {"TableName": self.table, "Key": self._key(pk, sk), "ConsistentRead": True},
            select=select,
            keep=keep,
        )

    def get_together(
        self,
        name: str,
        keys: Sequence[tuple[Mapping[str, str], Mapping[str, str]]],
        *,
        select: Mapping[str, Any],
        keep: str,
    ) -> sfn.CustomState:
        """Give one consistent read of several items; `select` picks from `$.Responses`."""
        gets = [{"Get": {"TableName": self.table, "Key": self._key(pk, sk)}} for pk, sk in keys]
        return task(
            self.scope,
            name,
            "aws-sdk:dynamodb:transactGetItems",
            {"TransactItems": gets},
            select=select,
            keep=keep,
        )

    def update(
        self,
        name: str,
        pk: Mapping[str, str],
        sk: Mapping[str, str],
        expression: str,
        values: Mapping[str, Any],
        *,
        condition: str | None = None,
        names: Sequence[str] = (),
    ) -> sfn.CustomState:
        """Give an update of one item; reserved words stand as `#word` and are listed in `names`."""
        parameters = self.change(pk, sk, expression, values, condition=condition, names=names)
        return task(self.scope, name, "dynamodb:updateItem", parameters)

    def write_together(self, name: str, writes: Sequence[Mapping[str, Any]]) -> sfn.CustomState:
        """Give one transaction: all of it happens, or nothing."""
        return task(
            self.scope,
            name,
            "aws-sdk:dynamodb:transactWriteItems",
            {"TransactItems": list(writes)},
        ).add_retry(
            # A conflict with another transaction has the same name as a refused condition. A refused
            # one is refused again, which costs two seconds.
            errors=["DynamoDb.TransactionCanceledException"],
            interval=Duration.seconds(1),
            max_attempts=2,
            backoff_rate=1,
        )

    def change(
        self,
        pk: Mapping[str, str],
        sk: Mapping[str, str],
        expression: str,
        values: Mapping[str, Any],
        *,
        condition: str | None = None,
        names: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Give the parameters of an update, as UpdateItem and a transaction's `Update` take them."""
        parameters: dict[str, Any] = {
            "TableName": self.table,
            "Key": self._key(pk, sk),
            "UpdateExpression": expression,
            "ExpressionAttributeValues": dict(values),
        }
        if condition is not None:
            parameters["ConditionExpression"] = condition
        if names:
            parameters["ExpressionAttributeNames"] = {f"#{word}": word for word in names}
        return parameters

    def check(
        self,
        pk: Mapping[str, str],
        sk: Mapping[str, str],
        condition: str,
        values: Mapping[str, Any],
        *,
        names: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Give a transaction's `ConditionCheck`."""
        parameters: dict[str, Any] = {
            "TableName": self.table,
            "Key": self._key(pk, sk),
            "ConditionExpression": condition,
            "ExpressionAttributeValues": dict(values),
        }
        if names:
            parameters["ExpressionAttributeNames"] = {f"#{word}": word for word in names}
        return {"ConditionCheck": parameters}

    @staticmethod
    def _key(pk: Mapping[str, str], sk: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
        """Give the key of an item."""
        return {_names.PARTITION_KEY: pk, _names.SORT_KEY: sk}
