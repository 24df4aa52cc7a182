"""Where events and alarms go: state machines, other buses, topics.

A delivery that fails is tried again for a while and then kept in a dead-letter queue. The casts stand
here alone: CDK's Python classes name some parameters of a method `_id` where the interface has `id`
(aws-cdk issue 15651).
"""

from __future__ import annotations

from typing import cast

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

__all__ = ["dead_letters", "other_bus", "start_machine", "tell"]

_KEPT = Duration.days(14)
_MAX_AGE = Duration.hours(1)
_RETRIES = 20


def dead_letters(scope: Construct, key: kms.IKey | None = None) -> sqs.Queue:
    """Give a queue for events that no target took; they are kept as long as SQS can."""
    return sqs.Queue(
        scope,
        "DeadLetters",
        retention_period=_KEPT,
        enforce_ssl=True,
        encryption=sqs.QueueEncryption.KMS if key else sqs.QueueEncryption.SQS_MANAGED,
        encryption_master_key=key,
    )


def start_machine(machine: sfn.IStateMachine, dead: sqs.IQueue) -> events.IRuleTarget:
    """Give the target that starts a machine with the event as it is."""
    target = targets.SfnStateMachine(
        machine, dead_letter_queue=dead, retry_attempts=_RETRIES, max_event_age=_MAX_AGE
    )
    return cast("events.IRuleTarget", target)


def other_bus(bus: events.IEventBus, dead: sqs.IQueue) -> events.IRuleTarget:
    """Give the target that hands an event on to another bus."""
    return cast("events.IRuleTarget", targets.EventBus(bus, dead_letter_queue=dead))


def tell(topic: sns.ITopic) -> cloudwatch.IAlarmAction:
    """Give the action of an alarm that tells a topic."""
    return cast("cloudwatch.IAlarmAction", actions.SnsAction(topic))
