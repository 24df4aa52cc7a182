"""`LumaDashboard`: one page that says how runs do, what it costs and what waits.

    LumaDashboard(self, "Dashboard", fleets=fleets, store=store, jobs=jobs, failover=failover,
                  alarms=LumaAlarms(topic=topic))

Runs report goodput, steps, interruptions and $/h themselves (namespace `Luma`, from the coordinator's
node, once a minute); instances, queues and executions are AWS's own metrics. Without runs the upper
half is empty, and costs nothing. Alarms are made only where they are asked for.

Checked on the template, never executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import Duration, Tags
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sns as sns
from constructs import Construct

from luma_constructs import _names
from luma_constructs._event_targets import tell
from luma_constructs._fleet_cost import cost_per_hour
from luma_constructs._validation import Problems
from luma_constructs.failover import FailoverStateMachine
from luma_constructs.fleet_interface import IAcceleratorFleet
from luma_constructs.run_store import RunStore
from luma_constructs.training_jobs import TrainingJobs

__all__ = ["LumaAlarms", "LumaDashboard"]

_MINUTE = Duration.minutes(1)
_FIVE = Duration.minutes(5)
_WAITING = Duration.minutes(15)
_THIRD, _HALF, _FULL = 8, 12, 24
"""Widths, in the dashboard's columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LumaAlarms:
    """Which alarms a dashboard makes.

    Attributes:
        topic: who is told.
        lost_steps: on any committed step that the final history lacks. Default: True
        failed_jobs: on any execution of the job's machine that failed or timed out. Default: True
        failed_failovers: on any failover that could not be finished. Default: True
        waiting: on work that no node has taken for so long; None for no alarm. Default:
            Duration.minutes(15)
        goodput_below: on goodput below this, 0 to 1, over half an hour. Default: - no alarm.
    """

    topic: sns.ITopic
    lost_steps: bool = True
    failed_jobs: bool = True
    failed_failovers: bool = True
    waiting: Duration | None = _WAITING
    goodput_below: float | None = None


class LumaDashboard(Construct):
    """A CloudWatch dashboard of a deployment, and its alarms.

    Args:
        fleets: all fleets, the hosts among them.
        store: whose deployment it is.
        jobs: Default: - no graph of jobs.
        failover: Default: - no graph of failovers.
        alarms: which alarms to make. Default: - none.
        prices: of one instance, $ an hour, by fleet. Default: - the highest on-demand price of the
            fleet's instance types in the catalogue; a fleet without one is left out.

    Raises:
        PropError: no fleet, or a goodput that is no share.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        fleets: Sequence[IAcceleratorFleet],
        store: RunStore,
        jobs: TrainingJobs | None = None,
        failover: FailoverStateMachine | None = None,
        alarms: LumaAlarms | None = None,
        prices: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(scope, id)
        _check(self, fleets, alarms)
        self._cost = cost_per_hour(fleets, dict(prices or {}), _FIVE)
        self._deployment = store.deployment_name
        self._fleets = tuple(fleets)
        self._jobs, self._failover = jobs, failover
        self.alarms: tuple[cloudwatch.Alarm, ...] = (
            () if alarms is None else tuple(self._new_alarms(alarms))
        )
        """The alarms that were asked for."""
        self.dashboard = cloudwatch.Dashboard(
            self,
            "Resource",
            default_interval=Duration.hours(6),
            period_override=cloudwatch.PeriodOverride.INHERIT,
            widgets=[
                self._status(),
                self._runs(),
                self._money(),
                self._nodes(),
                self._machines(),
            ],
        )
        """The dashboard itself."""
        Tags.of(self).add(_names.DEPLOYMENT_TAG, self._deployment)

    def metric_goodput(self) -> cloudwatch.Metric:
        """Give the share of time in which steps were committed at the usual pace, 0 to 1."""
        return self._metric("Goodput", "Average")

    def metric_steps_committed(self) -> cloudwatch.Metric:
        """Give the steps that were committed, their sum over a minute."""
        return self._metric("StepsCommitted", "Sum")

    def metric_steps_lost(self) -> cloudwatch.Metric:
        """Give the committed steps that the final history lacks; the promise is 0."""
        return self._metric("StepsLost", "Sum")

    def metric_interruptions(self) -> cloudwatch.Metric:
        """Give the islands that were lost or left on a notice, their sum over a minute."""
        return self._metric("Interruptions", "Sum")

    def _metric(self, name: str, statistic: str) -> cloudwatch.Metric:
        """Give a metric that runs report."""
        return cloudwatch.Metric(
            namespace=_names.METRIC_NAMESPACE,
            metric_name=name,
            dimensions_map={"Deployment": self._deployment},
            statistic=statistic,
            period=_MINUTE,
        )

    def _each_run(self, name: str, statistic: str) -> cloudwatch.MathExpression:
        """Give a metric of each run, whichever runs there are."""
        search = (
            f"{{{_names.METRIC_NAMESPACE},Deployment,Run}} "
            f'MetricName="{name}" Deployment="{self._deployment}"'
        )
        return cloudwatch.MathExpression(
            expression=f"SEARCH('{search}', '{statistic}', 60)", label="", period=_MINUTE
        )

    def _status(self) -> list[cloudwatch.IWidget]:
        """Give the states of the alarms."""
        if not self.alarms:
            return []
        return [cloudwatch.AlarmStatusWidget(alarms=list(self.alarms), title="Alarms", width=_FULL)]

    def _runs(self) -> list[cloudwatch.IWidget]:
        """Give how runs do."""
        lost = self.metric_steps_lost()
        return [
            cloudwatch.GraphWidget(
                title="Goodput of each run",
                left=[self._each_run("Goodput", "Average")],
                left_y_axis=cloudwatch.YAxisProps(min=0, max=1, show_units=False),
                width=_HALF,
            ),
            cloudwatch.GraphWidget(
                title="Steps committed",
                left=[self._each_run("StepsCommitted", "Sum")],
                left_y_axis=cloudwatch.YAxisProps(min=0, show_units=False),
                width=_THIRD,
            ),
            cloudwatch.SingleValueWidget(
                title="Steps lost",
                metrics=[lost],
                period=Duration.days(1),
                width=_FULL - _HALF - _THIRD,
            ),
        ]

    def _money(self) -> list[cloudwatch.IWidget]:
        """Give what it costs, and what was interrupted."""
        axis = cloudwatch.YAxisProps(min=0, label="$/h", show_units=False)
        return [
            cloudwatch.GraphWidget(
                title="Cost of each run",
                left=[self._each_run("UsdPerHour", "Maximum")],
                left_y_axis=axis,
                width=_THIRD,
            ),
            cloudwatch.GraphWidget(
                title="Cost of all instances, at on-demand prices",
                left=[] if self._cost is None else [self._cost],
                left_y_axis=axis,
                width=_THIRD,
            ),
            cloudwatch.GraphWidget(
                title="Interruptions",
                left=[self.metric_interruptions()],
                left_y_axis=cloudwatch.YAxisProps(min=0, show_units=False),
                width=_THIRD,
            ),
        ]

    def _nodes(self) -> list[cloudwatch.IWidget]:
        """Give instances and the work that waits for them."""
        held = [fleet.metric_in_service(label=fleet.fleet_name) for fleet in self._fleets]
        wanted = [
            fleet.metric_desired(label=f"{fleet.fleet_name} wanted") for fleet in self._fleets
        ]
        counts = [metric for metric in (*held, *wanted) if metric is not None]
        depth = [fleet.metric_queue_depth(label=fleet.fleet_name) for fleet in self._fleets]
        age = [fleet.metric_oldest_work(label=fleet.fleet_name) for fleet in self._fleets]
        axis = cloudwatch.YAxisProps(min=0, show_units=False)
        return [
            cloudwatch.GraphWidget(
                title="Instances in service and wanted",
                left=list(counts),
                left_y_axis=axis,
                width=_THIRD,
            ),
            cloudwatch.GraphWidget(
                title="Work that waits", left=list(depth), left_y_axis=axis, width=_THIRD
            ),
            cloudwatch.GraphWidget(
                title="Longest wait of work",
                left=list(age),
                left_y_axis=cloudwatch.YAxisProps(min=0, label="seconds", show_units=False),
                width=_THIRD,
            ),
        ]

    def _machines(self) -> list[cloudwatch.IWidget]:
        """Give executions of the state machines."""
        axis = cloudwatch.YAxisProps(min=0, show_units=False)
        widgets: list[cloudwatch.IWidget] = []
        if self._jobs is not None:
            jobs = self._jobs
            widgets.append(
                cloudwatch.GraphWidget(
                    title="Jobs",
                    left=[
                        jobs.metric_started(label="started"),
                        jobs.metric_succeeded(label="ended"),
                        jobs.metric_failed(label="failed"),
                        jobs.metric_aborted(label="stopped by hand"),
                    ],
                    left_y_axis=axis,
                    width=_HALF,
                )
            )
        if self._failover is not None:
            failover = self._failover
            widgets.append(
                cloudwatch.GraphWidget(
                    title="Failovers and their time",
                    left=[
                        failover.metric_started(label="events"),
                        failover.metric_failed(label="failed"),
                        failover.metric_timed_out(label="timed out"),
                    ],
                    right=[failover.metric_time(label="time, ms")],
                    left_y_axis=axis,
                    width=_HALF,
                )
            )
        return widgets

    def _new_alarms(self, wanted: LumaAlarms) -> list[cloudwatch.Alarm]:
        """Make the alarms that were asked for."""
        made: list[cloudwatch.Alarm] = []
        if wanted.lost_steps:
            lost = self.metric_steps_lost()
            made.append(self._any(lost, "LostSteps", "A committed step is missing from a run."))
        if wanted.failed_jobs and self._jobs is not None:
            failed = self._jobs.metric_failed(period=_MINUTE)
            made.append(self._any(failed, "FailedJobs", "A run failed; `luma status` says why."))
            late = self._jobs.metric_timed_out(period=_MINUTE)
            made.append(self._any(late, "LateJobs", "A run took longer than its machine allows."))
        if wanted.failed_failovers and self._failover is not None:
            what = "A failover could not be finished; start it again with the same event."
            failed = self._failover.metric_failed(period=_MINUTE)
            made.append(self._any(failed, "FailedFailovers", what))
        if wanted.waiting is not None:
            made += [self._waiting(fleet, wanted.waiting) for fleet in self._fleets]
        if wanted.goodput_below is not None:
            made.append(self._slow(wanted.goodput_below))
        for alarm in made:
            alarm.add_alarm_action(tell(wanted.topic))
        return made

    def _any(self, metric: cloudwatch.Metric, id: str, what: str) -> cloudwatch.Alarm:
        """Alarm on any such thing."""
        return metric.create_alarm(
            self,
            id,
            threshold=0,
            evaluation_periods=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
            alarm_description=what,
        )

    def _waiting(self, fleet: IAcceleratorFleet, longest: Duration) -> cloudwatch.Alarm:
        """Alarm on work that no node takes."""
        return fleet.metric_oldest_work().create_alarm(
            self,
            f"Waiting{fleet.fleet_name}",
            threshold=longest.to_seconds(),
            evaluation_periods=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
            alarm_description=f"No node of fleet {fleet.fleet_name} has taken work for "
            f"{longest.to_human_string()}: there may be no capacity.",
        )

    def _slow(self, share: float) -> cloudwatch.Alarm:
        """Alarm on goodput that stays low."""
        return self.metric_goodput().create_alarm(
            self,
            "Goodput",
            threshold=share,
            evaluation_periods=30,
            comparison_operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
            alarm_description=f"Goodput has been below {share:g} for half an hour.",
        )


def _check(
    dashboard: LumaDashboard, fleets: Sequence[IAcceleratorFleet], alarms: LumaAlarms | None
) -> None:
    """Refuse props that cannot work."""
    problems = Problems("LumaDashboard", dashboard)
    problems.check(bool(fleets), "fleets", [], "at least one fleet")
    share = alarms.goodput_below if alarms is not None else None
    problems.check(
        share is None or 0 < share < 1, "alarms.goodput_below", share, "a share between 0 and 1"
    )
    problems.raise_all()
