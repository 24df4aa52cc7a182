"""How events reach state machines: tried again for a while, then kept in a dead-letter queue."""

from __future__ import annotations

from aws_cdk import Duration
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

__all__ = ["dead_letters", "start_machine"]

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


def start_machine(machine: sfn.IStateMachine, dead: sqs.IQueue) -> targets.SfnStateMachine:
    """Give the target that starts a machine with the event as it is."""
    return targets.SfnStateMachine(
        machine, dead_letter_queue=dead, retry_attempts=_RETRIES, max_event_age=_MAX_AGE
    )
