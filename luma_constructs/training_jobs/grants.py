"""Permissions on `TrainingJobs`, for engineers, pipelines and nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_iam as iam

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
        """Let someone prepare runs, start them and follow them."""
        machine = self._jobs.state_machine
        started = machine.grants.start_execution(grantee)
        followed = machine.grants.execution(
            grantee, "states:DescribeExecution", "states:GetExecutionHistory"
        )
        submitted = self._jobs.store.grants.submit(grantee)
        return started.combine(followed).combine(submitted)

    def cancel(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let someone ask for a run's end, and stop an execution that does not come to it."""
        machine = self._jobs.state_machine
        stopped = machine.grants.execution(
            grantee, "states:DescribeExecution", "states:StopExecution"
        )
        return stopped.combine(self._jobs.store.grants.submit(grantee))

    def answer(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let a node answer for the work that it took.

        The grantee of a fleet of the same stack must be an `iam.Policy` of its own, attached to the
        fleet's role: launch templates wait for the role's default policy, the machine names the
        fleets' groups, and the grant names the machine, which would be a circle.
        """
        return self._jobs.state_machine.grants.task_response(grantee)
