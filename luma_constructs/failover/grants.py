"""Permissions on `FailoverStateMachine`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_iam as iam

if TYPE_CHECKING:
    from luma_constructs.failover.construct import FailoverStateMachine

__all__ = ["FailoverGrants"]


class FailoverGrants:
    """What can be granted on failovers; each method gives the `iam.Grant`."""

    def __init__(self, failover: FailoverStateMachine) -> None:
        self._failover = failover

    @classmethod
    def from_failover(cls, failover: FailoverStateMachine) -> FailoverGrants:
        """Give the grants of a failover machine."""
        return cls(failover)

    def start(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let someone start a failover by hand, with an event as EventBridge would send it."""
        return self._failover.state_machine.grants.start_execution(grantee)

    def follow(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let someone see failovers and their steps."""
        machine = self._failover.state_machine
        seen = machine.grants.execution(
            grantee, "states:DescribeExecution", "states:GetExecutionHistory"
        )
        listed = iam.Grant.add_to_principal(
            grantee=grantee,
            actions=["states:ListExecutions"],
            resource_arns=[machine.state_machine_arn],
        )
        return seen.combine(listed)
