"""`FleetBudget`: somebody hears of it before a deployment costs more than it should.

    FleetBudget(self, "Budget", fleets=[*fleets, coordinator], limit_usd_per_hour=40, topic=topic)

It watches all fleets together, whichever run they work for; each run has a budget of its own, which
ends it (`resources.max_cost`). The hourly limit is an alarm within minutes, from the number of
instances and the catalogue's prices. The monthly one is an AWS Budget over the deployment's tag: it
sees everything that has the tag, some hours late, and only once `luma:deployment` was activated as a
cost allocation tag in the billing console of the payer account.

Checked on the template, never executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import Aws, Duration, Tags
from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from constructs import Construct

from luma_constructs import _names
from luma_constructs._event_targets import tell
from luma_constructs._fleet_cost import MOST_FLEETS, cost_per_hour, price_of
from luma_constructs._principals import principal
from luma_constructs._validation import Problems
from luma_constructs.fleet_interface import IAcceleratorFleet
from luma_constructs.run_store import RunStore

__all__ = ["FleetBudget"]

_PERIOD = Duration.minutes(5)
_ALMOST, _ALL = 80, 100
"""Per cent of the month's limit at which people hear of it."""


class FleetBudget(Construct):
    """Alarms over what a deployment costs, by the hour and by the month.

    Args:
        fleets: all fleets, the hosts among them; at most 10, which is what an alarm can join.
        store: whose deployment it is.
        topic: who is told.
        limit_usd_per_hour: Default: - no limit by the hour.
        limit_usd_per_month: Default: - no limit by the month.
        prices: of one instance, $ an hour, by fleet. Default: - the highest on-demand price of the
            fleet's instance types in the catalogue.

    Raises:
        PropError: no limit at all, a limit that is not positive, or a price that is not known.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        fleets: Sequence[IAcceleratorFleet],
        store: RunStore,
        topic: sns.ITopic,
        limit_usd_per_hour: float | None = None,
        limit_usd_per_month: float | None = None,
        prices: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(scope, id)
        known = dict(prices or {})
        _check(self, fleets, limit_usd_per_hour, limit_usd_per_month, known)
        self.alarm: cloudwatch.Alarm | None = None
        """The alarm over the hour; None without such a limit."""
        self.budget: budgets.CfnBudget | None = None
        """The budget of the month; None without such a limit."""
        if limit_usd_per_hour is not None:
            self.alarm = self._alarm(fleets, known, limit_usd_per_hour, topic)
        if limit_usd_per_month is not None:
            self.budget = self._budget(limit_usd_per_month, store, topic)
        _allow(topic)
        Tags.of(self).add(_names.DEPLOYMENT_TAG, store.deployment_name)

    def _alarm(
        self,
        fleets: Sequence[IAcceleratorFleet],
        prices: Mapping[str, float],
        limit: float,
        topic: sns.ITopic,
    ) -> cloudwatch.Alarm | None:
        """Make the alarm over the hour."""
        cost = cost_per_hour(fleets, prices, _PERIOD)
        if cost is None:
            return None
        alarm = cost.create_alarm(
            self,
            "PerHour",
            threshold=limit,
            evaluation_periods=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
            alarm_description=f"Luma's instances cost more than {limit:g} $ an hour. "
            "`luma status` lists them, `luma down RUN` ends them.",
        )
        alarm.add_alarm_action(tell(topic))
        return alarm

    def _budget(self, limit: float, store: RunStore, topic: sns.ITopic) -> budgets.CfnBudget:
        """Make the month's budget."""
        told = [
            budgets.CfnBudget.SubscriberProperty(address=topic.topic_arn, subscription_type="SNS")
        ]
        notifications = [
            budgets.CfnBudget.NotificationWithSubscribersProperty(
                notification=budgets.CfnBudget.NotificationProperty(
                    notification_type=kind,
                    comparison_operator="GREATER_THAN",
                    threshold=threshold,
                    threshold_type="PERCENTAGE",
                ),
                subscribers=told,
            )
            for kind, threshold in (("ACTUAL", _ALMOST), ("ACTUAL", _ALL), ("FORECASTED", _ALL))
        ]
        return budgets.CfnBudget(
            self,
            "PerMonth",
            budget=budgets.CfnBudget.BudgetDataProperty(
                budget_type="COST",
                time_unit="MONTHLY",
                budget_limit=budgets.CfnBudget.SpendProperty(amount=limit, unit="USD"),
                cost_filters={
                    "TagKeyValue": [f"user:{_names.DEPLOYMENT_TAG}${store.deployment_name}"]
                },
            ),
            notifications_with_subscribers=notifications,
        )


def _allow(topic: sns.ITopic) -> None:
    """Let both services publish, for this account alone.

    A topic with a policy of its own has lost the default one, by which CloudWatch could publish.
    """
    for service in ("budgets", "cloudwatch"):
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                actions=["sns:Publish"],
                principals=[principal(iam.ServicePrincipal(f"{service}.amazonaws.com"))],
                resources=[topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            )
        )


def _check(
    budget: FleetBudget,
    fleets: Sequence[IAcceleratorFleet],
    per_hour: float | None,
    per_month: float | None,
    prices: Mapping[str, float],
) -> None:
    """Refuse props that cannot work."""
    problems = Problems("FleetBudget", budget)
    limits = {"limit_usd_per_hour": per_hour, "limit_usd_per_month": per_month}
    problems.check(
        any(limit is not None for limit in limits.values()),
        "limit_usd_per_hour",
        None,
        "this limit, limit_usd_per_month, or both",
    )
    for name, limit in limits.items():
        problems.check(limit is None or limit > 0, name, limit, "a positive number of dollars")
    for name, price in prices.items():
        problems.check(price >= 0, f"prices[{name!r}]", price, "a number of dollars from 0")
    with_group = [fleet for fleet in fleets if fleet.auto_scaling_group is not None]
    names = [fleet.fleet_name for fleet in with_group]
    problems.check(
        0 < len(names) <= MOST_FLEETS, "fleets", names, f"1 to {MOST_FLEETS} fleets with a group"
    )
    if per_hour is not None:
        unknown = [f.fleet_name for f in with_group if price_of(f, prices) is None]
        problems.check(
            not unknown,
            "prices",
            sorted(prices),
            f"a price for each of {unknown}",
            "the catalogue does not know what they cost",
        )
    problems.raise_all()
