"""The dashboard, its alarms and the budget, as CloudFormation gets them."""

import json

import aws_cdk as cdk
import pytest
from aws_cdk import aws_sns as sns

from luma_constructs.failover import FailoverStateMachine
from luma_constructs.fleet_budget import FleetBudget
from luma_constructs.luma_dashboard import LumaAlarms, LumaDashboard
from luma_constructs.run_store import RunStore
from luma_constructs.training_jobs import TrainingJobs
from runtime.agent.node.metrics import __doc__ as reported
from tests.support.cdk import synthesized
from tests.unit.constructs.orchestration.definitions import resolved
from tests.unit.constructs.orchestration.stacks import fleet


def watched(app: cdk.App) -> cdk.Stack:
    """A deployment with everything that watches it."""
    stack = cdk.Stack(app, "Watched")
    store = RunStore(stack, "Store")
    fleets = [fleet(stack, "l4"), fleet(stack, "coordinator"), fleet(stack, "lab", in_ec2=False)]
    jobs = TrainingJobs(stack, "Jobs", fleets=fleets, coordinator=fleets[1], store=store)
    failover = FailoverStateMachine(stack, "Failover", fleets=fleets, store=store)
    topic = sns.Topic(stack, "Topic", enforce_ssl=True)
    prices = {"l4": 1.25, "coordinator": 0.1}
    LumaDashboard(
        stack,
        "Dashboard",
        fleets=fleets,
        store=store,
        jobs=jobs,
        failover=failover,
        alarms=LumaAlarms(topic=topic, goodput_below=0.5),
        prices=prices,
    )
    LumaDashboard(stack, "Plain", fleets=fleets[:1], store=store)
    FleetBudget(
        stack,
        "Budget",
        fleets=fleets,
        store=store,
        topic=topic,
        limit_usd_per_hour=40,
        limit_usd_per_month=500,
        prices=prices,
    )
    return stack


@pytest.fixture(scope="module")
def assembly():
    return synthesized(watched)


@pytest.fixture(scope="module")
def widgets(assembly):
    dashboards = assembly.of_type("AWS::CloudWatch::Dashboard")
    bodies = {name: one["Properties"]["DashboardBody"] for name, one in dashboards.items()}
    return {name: json.loads(resolved(body))["widgets"] for name, body in bodies.items()}


def alarm(assembly, name):
    """The one alarm whose logical id starts so."""
    found = assembly.of_type("AWS::CloudWatch::Alarm").items()
    [one] = [value["Properties"] for key, value in found if key.startswith(name)]
    return one


def test_the_page_shows_what_an_engineer_asks_first(widgets):
    [body] = [one for name, one in widgets.items() if name.startswith("Dashboard")]
    titles = [widget["properties"]["title"] for widget in body]
    assert titles == [
        "Alarms",
        "Goodput of each run",
        "Steps committed",
        "Steps lost",
        "Cost of each run",
        "Cost of all instances, at on-demand prices",
        "Interruptions",
        "Instances in service and wanted",
        "Work that waits",
        "Longest wait of work",
        "Jobs",
        "Failovers and their time",
    ]
    rows: dict[int, int] = {}
    for widget in body:
        rows[widget["y"]] = rows.get(widget["y"], 0) + widget["width"]
    assert max(rows.values()) <= 24


def test_alarms_are_made_where_they_are_asked_for(assembly, widgets):
    [plain] = [one for name, one in widgets.items() if name.startswith("Plain")]
    assert not [widget for widget in plain if widget["type"] == "alarm"]
    assert not [n for n in assembly.of_type("AWS::CloudWatch::Alarm") if n.startswith("Plain")]


def test_metrics_are_those_that_nodes_report(widgets):
    text = json.dumps(list(widgets.values()))
    for name in ("Goodput", "StepsCommitted", "StepsLost", "Interruptions", "UsdPerHour"):
        assert name in text
        assert f"| {name} |" in reported
    assert "{Luma,Deployment,Run}" in text


@pytest.mark.parametrize(
    ("name", "metric", "threshold"),
    [
        ("DashboardLostSteps", "StepsLost", 0),
        ("DashboardFailedJobs", "ExecutionsFailed", 0),
        ("DashboardLateJobs", "ExecutionsTimedOut", 0),
        ("DashboardFailedFailovers", "ExecutionsFailed", 0),
        ("DashboardWaitingl4", "ApproximateAgeOfOldestMessage", 900),
        ("DashboardGoodput", "Goodput", 0.5),
    ],
)
def test_an_alarm_is_quiet_without_data_and_tells_the_topic(assembly, name, metric, threshold):
    found = alarm(assembly, name)
    assert (found["MetricName"], found["Threshold"]) == (metric, threshold)
    assert found["TreatMissingData"] == "notBreaching"
    assert found["AlarmActions"][0]["Ref"].startswith("Topic")


def test_the_hourly_limit_counts_instances_at_their_price(assembly):
    found = alarm(assembly, "Budget")
    [expression] = [one for one in found["Metrics"] if "Expression" in one]
    assert expression["Expression"] == "FILL(m0, 0) * 1.25 + FILL(m1, 0) * 0.1"
    assert (found["Threshold"], found["ComparisonOperator"]) == (40, "GreaterThanThreshold")


def test_the_monthly_limit_follows_the_deployments_tag(assembly):
    [budget] = assembly.of_type("AWS::Budgets::Budget").values()
    data = budget["Properties"]["Budget"]
    assert data["BudgetLimit"] == {"Amount": 500, "Unit": "USD"}
    assert data["CostFilters"] == {"TagKeyValue": ["user:luma:deployment$Watched"]}
    told = budget["Properties"]["NotificationsWithSubscribers"]
    assert [one["Notification"]["Threshold"] for one in told] == [80, 100, 100]
    assert {one["Subscribers"][0]["SubscriptionType"] for one in told} == {"SNS"}


def test_both_services_may_publish_for_this_account_alone(assembly):
    [policy] = assembly.of_type("AWS::SNS::TopicPolicy").values()
    statements = policy["Properties"]["PolicyDocument"]["Statement"]
    [ours] = [one for one in statements if "Service" in one.get("Principal", {})]
    assert ours["Principal"]["Service"] == ["budgets.amazonaws.com", "cloudwatch.amazonaws.com"]
    assert ours["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}
