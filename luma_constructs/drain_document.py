"""`DrainDocument`: the one command that a state machine may run on nodes.

It stops the node's service: SIGTERM, on which the island leaves at the next commit, and SIGKILL where
that takes too long. It has no parameters, so nothing can be passed to a shell. Checked on the
template, never executed by SSM.
"""

from __future__ import annotations

from aws_cdk import Duration, Stack, Tags
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from luma_constructs import _names
from luma_constructs._validation import Problems
from luma_constructs.agent_bootstrap import SERVICE

__all__ = ["DrainDocument"]

_DEFAULT_TIMEOUT = Duration.minutes(2)


class DrainDocument(Construct):
    """An SSM document that asks a node to leave its run.

    Args:
        deployment_name: tag of the document. Default: - the stack's name.
        timeout: how long the node may take; a spot instance is gone two minutes after its notice.
            Default: Duration.minutes(2).

    Raises:
        PropError: `timeout` is below 10 seconds or above an hour.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        deployment_name: str | None = None,
        timeout: Duration = _DEFAULT_TIMEOUT,
    ) -> None:
        super().__init__(scope, id)
        problems = Problems("DrainDocument", self)
        problems.whole("timeout", int(timeout.to_seconds()), 10, 3600)
        problems.raise_all()
        self.document = ssm.CfnDocument(
            self,
            "Resource",
            document_type="Command",
            document_format="JSON",
            # A changed document becomes a new version: its name, which is nobody's choice, stays.
            update_method="NewVersion",
            target_type="/AWS::EC2::Instance",
            content=_content(int(timeout.to_seconds())),
        )
        """The document itself."""
        name = deployment_name or Stack.of(self).stack_name
        Tags.of(self).add(_names.DEPLOYMENT_TAG, name)

    @property
    def drain_document_name(self) -> str:
        """Name of the document, as SendCommand takes it."""
        return self.document.ref

    @property
    def drain_document_arn(self) -> str:
        """ARN of the document."""
        return Stack.of(self).format_arn(
            service="ssm", resource="document", resource_name=self.document.ref
        )


def _content(timeout_s: int) -> dict[str, object]:
    """Give the document: stop the service and wait for its end."""
    return {
        "schemaVersion": "2.2",
        "description": "Ask a Luma node to leave its run: SIGTERM, then wait for its end.",
        "mainSteps": [
            {
                "action": "aws:runShellScript",
                "name": "drain",
                "inputs": {
                    "timeoutSeconds": str(timeout_s),
                    "runCommand": [f"systemctl stop {SERVICE}"],
                },
            }
        ],
    }
