"""A slice of `make emulate` that every change runs: the stack, a node, a failover without a job."""

import json
import subprocess
import sys
import uuid

import pytest

from tests.e2e.emulate.deployment import CONTEXT, Deployment
from tests.emulator import events
from tests.emulator.account import EmulatedAccount
from tests.emulator.faults import Fault
from tests.emulator.node import ROOT, ToolMissingError
from tests.emulator.node import cdk as cdk_command
from tests.emulator.waiting import until

# Several processes start here: pytest's own limit is too short for a busy machine.
pytestmark = pytest.mark.timeout(900)

FLEET = "floor"


@pytest.fixture(scope="module")
def account(tmp_path_factory):
    """A deployed stack whose instances are played."""
    try:
        cdk_command()
    except ToolMissingError as error:
        pytest.skip(str(error))
    work = tmp_path_factory.mktemp("account")
    with EmulatedAccount(work, context=CONTEXT) as made:
        made.cdk.bootstrap()
        made.deploy()
        made.play()
        yield made


@pytest.fixture(scope="module")
def deployment(account):
    made = Deployment(account)
    made.alive = account.players.alive
    return made


@pytest.fixture
def node(account, deployment):
    """One idle node of the on-demand fleet."""
    scaling, group = account.server.client("autoscaling"), account.fleet(FLEET)["asg"]
    scaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=1)

    def idle():
        for instance in account.players.alive(FLEET):
            item = account.item(f"NODE#{instance.id}", "NODE") or {}
            if item.get("state") == "idle":
                return instance
        return None

    yield until(idle, "an idle node", seconds=300)
    scaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=0)
    until(lambda: not account.players.alive(FLEET), "no node", seconds=300)


def node_state(account, instance):
    return (account.item(f"NODE#{instance.id}", "NODE") or {}).get("state")


def test_an_idle_deployment_is_whole_and_has_no_instance(account, deployment):
    client = account.server.client("stepfunctions")
    arns = {m["stateMachineArn"] for m in client.list_state_machines()["stateMachines"]}
    assert {deployment.config["jobs_machine"], deployment.config["failover_machine"]} <= arns
    bucket = account.server.client("s3").get_bucket_location(Bucket=deployment.config["bucket"])
    assert bucket["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert {size[0] for size in deployment.sizes().values()} == {0}
    assert len(deployment.sizes()) == 5


def test_a_node_that_is_scaled_in_leaves_first(account, node):
    group = account.fleet(FLEET)["asg"]
    account.server.client("autoscaling").set_desired_capacity(
        AutoScalingGroupName=group, DesiredCapacity=0
    )
    until(lambda: node not in account.players.alive(), "its end", seconds=300)
    assert node_state(account, node) == "left"
    assert "notice: lifecycle" in node.log.read_text()


def test_an_interruption_replaces_the_instance_and_a_duplicate_changes_nothing(
    account, deployment, node
):
    event = account.players.interrupt(node, notice_s=0.5)
    [execution] = deployment.wait_for_failovers(event)
    assert execution["status"] == "SUCCEEDED"
    found = account.item(f"EVENT#{event}", "EVENT")
    assert (found["status"], found["instance"]) == ("done", node.id)

    def replaced():
        return [i for i in account.players.alive(FLEET) if i.id != node.id]

    until(replaced, "a replacement", seconds=300)
    deployment.wait_for_failovers_of_instance(node.id, 2)  # its end is an event too
    before = deployment.state("nothing"), account.item(f"EVENT#{event}", "EVENT")
    events.interruption(account.server, node.id, event)
    executions = deployment.wait_for_failovers(event, 2)
    assert [e["status"] for e in executions] == ["SUCCEEDED", "SUCCEEDED"]
    assert (deployment.state("nothing"), account.item(f"EVENT#{event}", "EVENT")) == before


def test_an_interruption_of_somebody_elses_instance_leaves_no_trace(account, deployment):
    event = events.interruption(account.server, f"i-{uuid.uuid4().hex[:17]}")
    [execution] = deployment.wait_for_failovers(event)
    assert execution["status"] == "SUCCEEDED"
    assert account.item(f"EVENT#{event}", "EVENT") is None


def test_a_run_that_was_never_prepared_fails_and_says_so(deployment):
    execution = deployment.start("never-prepared")
    end = deployment.wait_for_execution(execution)
    assert end["status"] == "FAILED"
    assert "prepared" in json.dumps([end.get("error"), end.get("cause")])
    assert deployment.run("never-prepared") == {}


def luma(account, *arguments):
    """Run a command of the command line in the account."""
    return subprocess.run(
        [sys.executable, "-m", "runtime.cli", *arguments],
        cwd=ROOT,
        env=account.server.environment() | {"LUMA_HOME": str(account.work / "home")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_missing_stack_is_named_with_the_remedy(account):
    ended = luma(account, "status", "--stack", "Nowhere")
    assert ended.returncode == 1
    assert "Nowhere" in ended.stderr
    assert "remedy" in ended.stderr


def test_a_denied_call_is_named_with_the_remedy(account):
    denied = Fault(
        service="ssm",
        operation="*",
        code="AccessDeniedException",
        message="not authorized to perform: ssm:GetParametersByPath",
    )
    account.server.fault(denied)
    try:
        ended = luma(account, "status", "--stack", account.stack)
    finally:
        account.server.lift_faults()
    assert ended.returncode == 1
    assert "not authorized to perform: ssm:GetParametersByPath" in ended.stderr
    assert "remedy" in ended.stderr


def test_throttled_calls_are_tried_again(account):
    throttled = {"code": "ThrottlingException", "message": "Rate exceeded", "times": 1}
    for service in ("ssm", "dynamodb"):
        account.server.fault(Fault(service=service, **throttled))
    ended = luma(account, "status", "--stack", account.stack, "--json")
    assert account.server.lift_faults() >= 2
    assert ended.returncode == 0, ended.stderr
    json.loads(ended.stdout)


@pytest.mark.slow
def test_destroying_the_stack_keeps_the_data(account, deployment, node):
    config = deployment.config
    s3, dynamodb = account.server.client("s3"), account.server.client("dynamodb")
    s3.put_object(Bucket=config["bucket"], Key="runs/kept/run.json", Body=b"{}")
    account.cdk.destroy(account.stack)
    until(lambda: not account.players.alive(), "no instance", seconds=300)
    assert s3.get_object(Bucket=config["bucket"], Key="runs/kept/run.json")["Body"].read() == b"{}"
    assert dynamodb.scan(TableName=config["table"])["Items"]
    assert not account.server.client("stepfunctions").list_state_machines()["stateMachines"]
    assert not deployment.sizes()
    account.deploy()  # and the account is as it was for whoever comes after
    deployment.config = account.config()
