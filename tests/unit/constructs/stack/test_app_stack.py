"""Each context parameter reaches what it is about."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from luma_constructs._app_stack import AppStack
from luma_constructs._context import AppContext
from runtime.spec.account import AccountConfig
from tests.e2e.synth.intrinsics import text
from tests.e2e.synth.machines import definitions, scopes
from tests.support.cdk import Assembly, assembled
from tests.support.eif import image_bytes
from tests.unit.constructs.stack.stacks import KEY_ID

pytestmark = pytest.mark.timeout(600)  # a busy machine synthesizes slowly

KEY = f"arn:aws:kms:us-east-1:111122223333:key/{KEY_ID}"


def app_stack(folder: Path, **context) -> Assembly:
    """Synthesize app.py's stack, in this process."""
    return assembled(lambda app: AppStack(app, AppContext.read(context)), folder / "out")


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> Assembly:
    folder = tmp_path_factory.mktemp("everything")
    (folder / "luma.eif").write_bytes(image_bytes())
    return app_stack(
        folder,
        stack="Blue",
        fleets="a:cpu:4,b:cpu:2:on-demand",
        level="L2",
        customer="acme",
        image=str(folder / "luma.eif"),
        budget="500/month,40/h",
        failover="eu-west-1",
        heartbeat=7,
        patience=20,
        vpc="vpc-01234567",
        subnets="us-east-1a=subnet-0a000000,us-east-1b=subnet-0b000000",
        bucket="our-runs",
        table="our-table",
        key=KEY,
        email="team@example.com",
    )


@pytest.fixture(scope="module")
def least(tmp_path_factory) -> Assembly:
    """Without a compiler, a budget, anybody to tell, or a place to go to."""
    folder = tmp_path_factory.mktemp("least")
    return app_stack(folder, fleets="a:cpu", level="none", network="public")


def machine(assembly: Assembly, path: str) -> dict:
    """The definition of the state machine at a construct's path."""
    paths = assembly.logical_ids()
    found = definitions(assembly.template).items()
    return next(definition for name, definition in found if paths[name].endswith(path))


def states(definition: dict) -> list[dict]:
    return [state for _, scope in scopes(definition) for state in scope["States"].values()]


def test_what_is_there_already_is_used(everything):
    kinds = [resource["Type"] for resource in everything.template["Resources"].values()]
    assert {"AWS::EC2::VPC", "AWS::S3::Bucket", "AWS::DynamoDB::Table"}.isdisjoint(kinds)
    (value,) = (
        text(one["Properties"]["Value"])
        for one in everything.of_type("AWS::SSM::Parameter").values()
        if one["Properties"]["Name"] == "/luma/Blue/config"
    )
    config = AccountConfig.from_json(value)
    assert (config.stack, config.bucket, config.table) == ("Blue", "our-runs", "our-table")
    for group in everything.of_type("AWS::AutoScaling::AutoScalingGroup").values():
        assert group["Properties"]["VPCZoneIdentifier"] == ["subnet-0a000000", "subnet-0b000000"]


def test_the_heartbeat_is_that_of_every_wait_for_a_node(everything):
    waits = [
        state
        for state in states(machine(everything, "Jobs/Job/Resource/Resource"))
        if state.get("Resource", "").endswith(".waitForTaskToken")
    ]
    assert len(waits) >= 4
    assert {state["HeartbeatSeconds"] for state in waits} == {7}
    assert {state["Parameters"]["MessageBody"]["heartbeat_s"] for state in waits} == {7}


def test_failover_that_may_wait_only_seconds_looks_every_second(everything, least):
    def pauses(assembly: Assembly) -> set[int]:
        found = states(machine(assembly, "Failover/Resource/Resource"))
        return {state["Seconds"] for state in found if state["Type"] == "Wait"}

    assert pauses(everything) == {1}
    assert pauses(least) == {5}


def test_the_jobs_machine_waits_longer_than_the_failover_in_all(everything):
    """Else it would move every place before the failover could; see LumaDeployment."""
    silences = [
        choice["NumericLessThan"]
        for state in states(machine(everything, "Jobs/Job/Resource/Resource"))
        for choice in state.get("Choices", [])
        if choice.get("Variable") == "$.silences.value"
    ]
    assert silences == [-(-4 * 20 // 7)]  # heartbeats of silence, rounded up


def test_the_enclave_s_measurement_is_in_the_key_s_policy(everything):
    (key,) = everything.of_type("AWS::KMS::Key").values()
    assert "kms:RecipientAttestation:ImageSha384" in json.dumps(key["Properties"]["KeyPolicy"])
    enclaves = [
        template["Properties"]["LaunchTemplateData"]["EnclaveOptions"]["Enabled"]
        for template in everything.of_type("AWS::EC2::LaunchTemplate").values()
        if "EnclaveOptions" in template["Properties"]["LaunchTemplateData"]
    ]
    assert enclaves == [True]


def test_another_region_is_asked_by_its_default_bus(everything, least):
    arns = [
        text(target["Arn"])
        for rule in everything.of_type("AWS::Events::Rule").values()
        for target in rule["Properties"]["Targets"]
    ]
    bus = "arn:<AWS::Partition>:events:eu-west-1:<AWS::AccountId>:event-bus/default"
    assert arns.count(bus) == 1
    assert "eu-west-1" not in json.dumps(least.template)


def test_people_are_told(everything, least):
    (subscription,) = everything.of_type("AWS::SNS::Subscription").values()
    assert subscription["Properties"]["Endpoint"] == "team@example.com"
    assert subscription["Properties"]["Protocol"] == "email"
    assert least.of_type("AWS::SNS::Subscription") == {}


def test_limits_of_cost_are_those_that_were_asked_for(everything, least):
    (budget,) = everything.of_type("AWS::Budgets::Budget").values()
    assert budget["Properties"]["Budget"]["BudgetLimit"] == {"Amount": 500, "Unit": "USD"}
    assert 40 in [
        alarm["Properties"]["Threshold"]
        for alarm in everything.of_type("AWS::CloudWatch::Alarm").values()
    ]
    assert least.of_type("AWS::Budgets::Budget") == {}


def test_without_a_level_nothing_compiles_in_the_account(least):
    assert not [path for path in least.logical_ids().values() if "Compiler" in path]
    assert least.of_type("AWS::KMS::Key") == {}
