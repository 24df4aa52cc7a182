"""Permissions on `TrainingJobs`, for engineers, pipelines and nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Stack
from aws_cdk import aws_iam as iam

from luma_constructs import _names

if TYPE_CHECKING:
    from luma_constructs.training_jobs.construct import TrainingJobs

__all__ = ["TrainingJobsGrants"]


class TrainingJobsGrants:
    """What can be granted on jobs; each method gives the `iam.Grant`."""

    def __init__(self, jobs: TrainingJobs) -> None:
        self._jobs = jobs

    @classmethod
    def from_jobs(cls, jobs: TrainingJobs) -> TrainingJobsGrants:
        """Give the grants of jobs."""
        return cls(jobs)

    def start(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let someone prepare runs, start them and follow them.

        This holds the keys of runs that are sealed by a key file: parameters below `keys/`, which
        may be written.
        """
        machine = self._jobs.state_machine
        started = machine.grants.start_execution(grantee)
        followed = machine.grants.execution(
            grantee, "states:DescribeExecution", "states:GetExecutionHistory"
        )
        root = _names.parameter_root(self._jobs.store.deployment_name).strip("/")
        keys = iam.Grant.add_to_principal(
            grantee=grantee,
            actions=["ssm:PutParameter", "ssm:DeleteParameter"],
            resource_arns=[
                Stack.of(self._jobs).format_arn(
                    service="ssm", resource="parameter", resource_name=f"{root}/keys/*"
                )
            ],
        )
        submitted = self._jobs.store.grants.submit(grantee)
        return started.combine(followed).combine(keys).combine(submitted)

    def cancel(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let someone ask for a run's end, and stop an execution that does not come to it."""
        machine = self._jobs.state_machine
        stopped = machine.grants.execution(
            grantee, "states:DescribeExecution", "states:StopExecution"
        )
        return stopped.combine(self._jobs.store.grants.submit(grantee))

    def answer(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let a node answer for the work that it took."""
        return self._jobs.state_machine.grants.task_response(grantee)
