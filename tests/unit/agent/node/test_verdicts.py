"""What the end of a work's process means, and the records that it leaves, on moto."""

from __future__ import annotations

import json

import boto3
import pytest
from moto import mock_aws

from runtime.agent.exit_codes import ExitCode
from runtime.agent.node.imds import Identity
from runtime.agent.node.metrics import send_figures
from runtime.agent.node.notes import NoteWriter
from runtime.agent.node.place import Place
from runtime.agent.node.tasks import Failure, Success
from runtime.agent.node.work import Given, failure_of
from runtime.agent.node.work_coordinate import CoordinateWork
from runtime.agent.node.work_island import IslandWork
from runtime.agent.node.work_stage import MAY_PASS, StageWork
from runtime.spec.account import AccountConfig, Work, run_key
from runtime.spec.aws import AwsError
from runtime.spec.errors import RunError
from runtime.spec.objects import Bucket
from runtime.spec.table import Table

REGION = "us-east-1"
TOTAL = 10


@pytest.fixture
def place(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        boto3.client("s3", region_name=REGION).create_bucket(Bucket="runs")
        boto3.client("dynamodb", region_name=REGION).create_table(
            TableName="runs",
            KeySchema=[
                {"AttributeName": "pk", "KeyType": "HASH"},
                {"AttributeName": "sk", "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[
                {"AttributeName": "pk", "AttributeType": "S"},
                {"AttributeName": "sk", "AttributeType": "S"},
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        config = AccountConfig(
            stack="Luma",
            region=REGION,
            bucket="runs",
            table="runs",
            jobs_machine="m",
            failover_machine=None,
            topic=None,
            coordinator_fleet="coordinator",
            compiler_queue=None,
            compiler_fleet=None,
        )
        identity = Identity(
            instance="i-1", instance_type="c7i.large", region=REGION, zone="z", address="127.0.0.1"
        )
        yield Place(
            config=config,
            fleet="cpu",
            queue="q",
            target="cpu",
            asg=None,
            usd_per_hour=3600.0,
            identity=identity,
            table=Table("runs", region=REGION),
            bucket=Bucket("runs", region=REGION),
            scratch=tmp_path,
        )


def given(place, kind: str, tmp_path) -> Given:
    work = Work(kind=kind, run="r", slot=1, attempt=0, token="t", heartbeat_s=60)
    return Given(
        work=work,
        place=place,
        folder=tmp_path,
        cancelled=lambda: False,
        complain=lambda text: None,
    )


def put_run(place, **more) -> None:
    item = {"pk": run_key("r"), "sk": "RUN", "state": "running", "total_steps": TOTAL}
    place.table.put({**item, "cancel": False, "cost_usd": 0, "reason": "", **more})


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ExitCode.FAILED, "Luma.Retryable"),
        (2, "Luma.Retryable"),
        (ExitCode.FATAL, "Luma.JobFailed"),
        (ExitCode.CRASHED, "Luma.Retryable"),
        (ExitCode.LOST_COORDINATOR, "Luma.Retryable"),
        (ExitCode.REFUSED, "Luma.Refused"),
        (-9, "Luma.Retryable"),
        (-11, "Luma.Retryable"),
    ],
)
def test_an_islands_exit_code_says_whose_fault_it_was(place, tmp_path, code, error):
    answer = IslandWork(given(place, "island", tmp_path)).judge(code, "the last line")
    assert isinstance(answer, Failure)
    assert answer.error == error
    assert "the last line" in answer.cause


def test_every_exit_code_has_a_meaning(place, tmp_path):
    put_run(place)
    work = IslandWork(given(place, "island", tmp_path))
    for code in ExitCode:
        if code != ExitCode.DONE:
            assert isinstance(work.judge(code, ""), Failure)


@pytest.mark.parametrize(
    ("code", "answer", "expected"),
    [
        (0, {"artifact": "k"}, Success({"artifact": "k"})),
        (0, None, "Luma.Retryable"),
        (MAY_PASS, None, "Luma.Retryable"),
        (-9, None, "Luma.Retryable"),
        (1, None, "Luma.JobFailed"),
    ],
)
def test_a_stage_answers_by_its_file_and_code(place, tmp_path, code, answer, expected):
    if answer is not None:
        (tmp_path / "answer.json").write_text(json.dumps(answer))
    found = StageWork(given(place, "compile", tmp_path)).judge(code, "tail")
    assert found == expected or (isinstance(found, Failure) and found.error == expected)


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("throttled", "Luma.Retryable"),
        ("unreachable", "Luma.Retryable"),
        ("credentials", "Luma.Retryable"),
        ("denied", "Luma.JobFailed"),
        ("missing", "Luma.JobFailed"),
    ],
)
def test_what_may_pass_is_never_the_jobs_fault(reason, error):
    found = failure_of(AwsError("x", reason=reason), "Luma.JobFailed", "Luma.Retryable")
    assert found.error == error
    other = failure_of(RunError("x"), "Luma.JobFailed", "Luma.Retryable")
    assert other.error == "Luma.JobFailed"


def coordinating(place, tmp_path, *events: dict) -> CoordinateWork:
    work = CoordinateWork(given(place, "coordinate", tmp_path))
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    return work


def test_a_coordinators_events_become_notes_once(place, tmp_path):
    put_run(place)
    commit = {"time": 1.0, "kind": "commit", "step": 4, "sum_hash": "a"}
    lost = {"time": 2.0, "kind": "left", "island": "island-0", "reason": "connection closed"}
    work = coordinating(place, tmp_path, commit, lost)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"time": 3.0, "kind": "cut')
    work.side()
    work.side()
    found = [json.loads(item["event"]) for item in place.table.query(run_key("r"), "NOTE#")]
    assert [event["kind"] for event in found] == ["commit", "interruption", "left"]
    assert (found[1]["how"], found[1]["at_step"], found[1]["island"]) == ("lost", 5, "island-0")


def test_a_coordinators_end_is_told_with_hash_steps_and_cost(place, tmp_path):
    put_run(place, cost_usd=1.25)
    place.table.put({"pk": run_key("r"), "sk": "COMMIT#0000000009", "step": 9})
    done = {"time": 1.0, "kind": "done", "step": 10, "state_hash": "feed"}
    answer = coordinating(place, tmp_path, done).judge(0, "")
    assert isinstance(answer, Success)
    assert (answer.output["phase"], answer.output["state_hash"]) == ("done", "feed")
    assert answer.output["steps"] == 10
    assert answer.output["cost_usd"] >= 1.25


def test_a_failed_run_is_the_jobs_fault_and_a_crash_is_not(place, tmp_path):
    put_run(place)
    failed = {"time": 1.0, "kind": "failed", "error": "the loss is not finite"}
    answer = coordinating(place, tmp_path, failed).judge(1, "")
    assert answer == Failure("Luma.JobFailed", "the loss is not finite")
    for code in (1, 4, 6, 7, -9):
        crashed = coordinating(place, tmp_path).judge(code, "tail")
        assert isinstance(crashed, Failure)
        assert crashed.error == "Luma.Retryable"


def test_a_stop_that_nobody_asked_for_is_written_down_for_the_islands(place, tmp_path):
    put_run(place)
    stopped = {"time": 1.0, "kind": "stopped", "step": 3, "state_hash": None}
    answer = coordinating(place, tmp_path, stopped).judge(0, "")
    assert isinstance(answer, Success)
    assert answer.output["phase"] == "stopped"
    item = place.table.get(run_key("r"), "RUN")
    assert item["cancel"] is True


def test_an_islands_interruption_is_noted_with_its_step(place, tmp_path):
    place.table.put({"pk": run_key("r"), "sk": "COMMIT#0000000006", "step": 6})
    IslandWork(given(place, "island", tmp_path)).noticed("spot")
    (item,) = place.table.query(run_key("r"), "NOTE#")
    event = json.loads(item["event"])
    assert (event["how"], event["at_step"], event["instance"]) == ("spot", 7, "i-1")
    NoteWriter(place.table, "r").tell("more")
    assert len(list(place.table.query(run_key("r"), "NOTE#"))) == 2


def test_figures_reach_cloudwatch_for_deployment_and_run(place):
    figures = {"StepsCommitted": 5.0, "Goodput": 0.5}
    send_figures(figures, stack="Luma", run="r", region=REGION)
    listed = boto3.client("cloudwatch", region_name=REGION).list_metrics(Namespace="Luma")
    found = {
        (m["MetricName"], tuple(d["Name"] for d in m["Dimensions"])) for m in listed["Metrics"]
    }
    assert found == {
        (name, names) for name in figures for names in (("Deployment",), ("Deployment", "Run"))
    }
