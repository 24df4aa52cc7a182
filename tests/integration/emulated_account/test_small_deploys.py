"""The real CDK CLI against the emulator, with an app of three resources: what can go wrong."""

import json
import sys
from pathlib import Path

import pytest

from tests.emulator.cdk import Cdk, CdkFailedError
from tests.emulator.faults import Fault
from tests.emulator.node import ROOT, ToolMissingError
from tests.emulator.node import cdk as cdk_command
from tests.emulator.server import EmulatedServer

# Several processes start here: pytest's own limit is too short for a busy machine.
pytestmark = pytest.mark.timeout(900)

APP = ROOT / "tests" / "emulator" / "small_app"


@pytest.fixture(scope="module", autouse=True)
def tools():
    try:
        cdk_command()
    except ToolMissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def account():
    with EmulatedServer() as running:
        yield running


@pytest.fixture
def small(account, tmp_path):
    return Cdk(account, app=f"{sys.executable} {APP / 'app.py'}", folder=tmp_path, work=tmp_path)


def stacks(account):
    return {
        stack["StackName"]: stack["StackStatus"]
        for stack in account.client("cloudformation").describe_stacks()["Stacks"]
    }


def test_without_bootstrap_the_cli_says_what_to_run(account, small):
    ended = small.deploy(check=False)
    assert ended.code != 0
    assert "cdk bootstrap" in ended.output
    assert stacks(account) == {}


@pytest.mark.slow
def test_a_deploy_that_fails_half_way_is_rolled_back_and_done_again(account, small):
    ssm = account.client("ssm")
    small.bootstrap()
    # Somebody has a parameter of that name: the stack's own cannot be made.
    ssm.put_parameter(Name="/small/queue", Value="somebody's", Type="String")
    ended = small.deploy(check=False)
    assert ended.code != 0
    assert "ROLLBACK" in ended.output
    assert account.client("sqs").list_queues().get("QueueUrls", []) == []
    assert account.client("stepfunctions").list_state_machines()["stateMachines"] == []
    ssm.delete_parameter(Name="/small/queue")
    small.deploy()
    assert stacks(account)["Small"] == "CREATE_COMPLETE"
    value = ssm.get_parameter(Name="/small/queue")["Parameter"]["Value"]
    assert value == small.outputs("Small")["Url"]


@pytest.mark.slow
def test_a_denied_deploy_says_so_and_changes_nothing(account, small):
    small.bootstrap()
    denied = Fault(
        service="cloudformation",
        operation="CreateStack",
        code="AccessDenied",
        message="User is not authorized to perform: cloudformation:CreateStack",
        status=403,
    )
    account.fault(denied)
    with pytest.raises(CdkFailedError, match="not authorized to perform"):
        small.deploy()
    assert "Small" not in stacks(account)
    account.lift_faults()
    small.deploy()


@pytest.mark.slow
def test_a_throttled_deploy_goes_through(account, small):
    small.bootstrap()
    throttled = Fault(
        service="cloudformation",
        operation="DescribeStacks",
        code="Throttling",
        message="Rate exceeded",
        times=2,
    )
    account.fault(throttled)
    small.deploy()
    assert account.lift_faults() == 2
    assert stacks(account)["Small"] == "CREATE_COMPLETE"


@pytest.mark.slow
def test_an_update_keeps_what_it_does_not_change(account, small):
    small.bootstrap()
    small.deploy()
    before = small.outputs("Small")
    small.with_context(comment="second").deploy()
    assert small.outputs("Small") == before
    client = account.client("stepfunctions")
    [machine] = client.list_state_machines()["stateMachines"]
    described = client.describe_state_machine(stateMachineArn=machine["stateMachineArn"])
    assert json.loads(described["definition"])["States"]["Nothing"]["Comment"] == "second"
    small.destroy()
    assert set(stacks(account)) == {"CDKToolkit"}


def test_the_lock_file_names_no_host():
    locked = json.loads(Path(ROOT / "tests/emulator/npm/package-lock.json").read_text())
    packages = {name: entry for name, entry in locked["packages"].items() if name}
    assert {"node_modules/aws-cdk", "node_modules/asl-validator"} <= set(packages)
    assert all("integrity" in entry for entry in packages.values())
    assert not any("resolved" in entry for entry in packages.values())
