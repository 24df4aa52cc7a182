"""The queue of a fleet: one message of work at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from runtime.spec.account import Work
from runtime.spec.aws import aws_client, aws_errors
from runtime.spec.errors import SpecError

__all__ = ["Received", "WorkQueue"]

_HIDDEN_S: Final = 60
"""A message that was taken is hidden so long. A node that dies before it deleted the message leaves
it to another one after that time, long before most heartbeats are missed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A message that was taken.

    Attributes:
        receipt: what deletes it.
        work: what it asks for; None where it is no work message.
        problem: why it is none.
    """

    receipt: str
    work: Work | None
    problem: str | None = None


class WorkQueue:
    """A fleet's queue.

    Args:
        url: the queue's URL.
        region: its region.
    """

    def __init__(self, url: str, *, region: str) -> None:
        self._url = url
        self._sqs: Any = aws_client("sqs", region=region)

    def receive(self, *, wait_s: int) -> Received | None:
        """Take a message; None where none came in the time.

        Args:
            wait_s: seconds that the queue may wait for one, 0 to 20.

        Raises:
            AwsError: the queue cannot be read.
        """
        with aws_errors("take work from the queue"):
            answer = self._sqs.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=1,
                WaitTimeSeconds=wait_s,
                VisibilityTimeout=_HIDDEN_S,
            )
        for message in answer.get("Messages", ()):
            receipt = message["ReceiptHandle"]
            try:
                return Received(receipt=receipt, work=Work.from_json(message["Body"]))
            except SpecError as error:
                return Received(receipt=receipt, work=None, problem=error.message)
        return None

    def delete(self, received: Received) -> None:
        """Delete a message that was taken; one that is gone already is fine.

        Raises:
            AwsError: the queue cannot be reached.
        """
        with aws_errors("delete a message of work"):
            self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=received.receipt)
