"""Props that cannot work are refused, all at once, with what is allowed."""

import aws_cdk as cdk
import pytest
from aws_cdk import aws_events as events
from aws_cdk import aws_sns as sns

from luma_constructs._validation import PropError
from luma_constructs.failover import FailoverStateMachine
from luma_constructs.fleet_budget import FleetBudget
from luma_constructs.luma_dashboard import LumaAlarms, LumaDashboard
from luma_constructs.run_store import RunStore
from luma_constructs.training_jobs import TrainingJobs
from tests.unit.constructs.orchestration.stacks import fleet


@pytest.fixture
def stack():
    return cdk.Stack(cdk.App(), "Stack", env=cdk.Environment(region="us-east-1"))


@pytest.fixture
def store(stack):
    return RunStore(stack, "Store")


def refused(make, *expected):
    with pytest.raises(PropError) as error:
        make()
    for text in expected:
        assert text in str(error.value)
    return error.value


def test_jobs_need_a_fleet_a_coordinator_and_durations_that_can_be(stack, store):
    one = fleet(stack, "l4")
    error = refused(
        lambda: TrainingJobs(
            stack,
            "Jobs",
            fleets=[],
            coordinator=one,
            store=store,
            heartbeat=cdk.Duration.hours(2),
            max_duration=cdk.Duration.days(400),
            max_retries=-1,
        ),
        "TrainingJobs 'Stack/Jobs'",
        "fleets: []; expected at least one fleet",
        "coordinator: 'l4'; expected a CoordinatorHost",
        "heartbeat (seconds): 7200; expected a whole number from 1 to 3600",
        "max_duration (seconds): 34560000",
        "max_retries: -1",
    )
    assert len(error.problems) == 5


def test_fleets_are_told_apart_by_name(stack, store):
    coordinator = fleet(stack, "coordinator")
    same = [fleet(stack, "l4"), coordinator, coordinator]
    for make in (
        lambda: TrainingJobs(stack, "J", fleets=same, coordinator=coordinator, store=store),
        lambda: FailoverStateMachine(stack, "F", fleets=same, store=store),
    ):
        refused(make, "expected fleets of different names")


def test_failover_needs_fleets_and_other_regions_than_its_own(stack, store):
    bus = events.EventBus.from_event_bus_name(stack, "Bus", "default")
    other = fleet(stack, "block")
    refused(
        lambda: FailoverStateMachine(
            stack,
            "Failover",
            fleets=[],
            store=store,
            capacity_blocks={"cr-1": other},
            other_regions={"us-east-1": bus},
            poll=cdk.Duration.millis(100),
        ),
        "fleets: []",
        "capacity_blocks: ['block']",
        "other_regions: 'us-east-1'",
        "poll (seconds): 0.1",
    )


def test_a_budget_needs_a_limit_and_prices(stack, store):
    topic = sns.Topic(stack, "Topic")
    one = fleet(stack, "l4")
    refused(
        lambda: FleetBudget(stack, "A", fleets=[one], store=store, topic=topic),
        "limit_usd_per_hour: None; expected this limit",
    )
    refused(
        lambda: FleetBudget(
            stack,
            "B",
            fleets=[one],
            store=store,
            topic=topic,
            limit_usd_per_hour=0,
            prices={"a": -1},
        ),
        "limit_usd_per_hour: 0; expected a positive number of dollars",
        "prices['a']: -1",
        "a price for each of ['l4']",
    )
    many = [fleet(stack, f"f{n}") for n in range(11)]
    refused(
        lambda: FleetBudget(
            stack, "C", fleets=many, store=store, topic=topic, limit_usd_per_month=1
        ),
        "expected 1 to 10 fleets with a group",
    )


def test_a_dashboard_needs_fleets_and_a_share(stack, store):
    alarms = LumaAlarms(topic=sns.Topic(stack, "Topic"), goodput_below=50)
    refused(
        lambda: LumaDashboard(stack, "D", fleets=[], store=store, alarms=alarms),
        "fleets: []",
        "alarms.goodput_below: 50; expected a share between 0 and 1",
    )
