"""Notes of a run: numbered without a gap by any number of writers."""

from __future__ import annotations

import json
import threading

import boto3
import pytest
from moto import mock_aws

from runtime.agent.node.notes import NoteWriter
from runtime.spec.account import run_key
from runtime.spec.table import Table


@pytest.fixture
def table(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        boto3.client("dynamodb", region_name="us-east-1").create_table(
            TableName="luma",
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
        yield Table("luma", region="us-east-1")


def notes(table) -> list[tuple[str, dict]]:
    items = table.query(run_key("r"), "NOTE#")
    return [(item["sk"], json.loads(item["event"])) for item in items]


def test_events_are_kept_in_order(table):
    events = [{"time": float(n), "kind": "commit", "step": n} for n in range(60)]
    NoteWriter(table, "r").write(events)
    found = notes(table)
    assert [event for _, event in found] == events
    assert [key for key, _ in found] == [f"NOTE#{n:010d}" for n in range(60)]


def test_a_second_writer_goes_on_after_the_first(table):
    first, second = NoteWriter(table, "r"), NoteWriter(table, "r")
    first.tell("a")
    second.tell("b")
    first.tell("c")  # it believes that number 1 is free
    assert [event["kind"] for _, event in notes(table)] == ["a", "b", "c"]
    assert [key[-1] for key, _ in notes(table)] == ["0", "1", "2"]


def test_nothing_is_written_for_nothing(table):
    NoteWriter(table, "r").write([])
    assert notes(table) == []


def test_writers_at_once_leave_no_gap(table):
    def write(name: str) -> None:
        writer = NoteWriter(table, "r")
        for number in range(5):
            with lock:  # moto's transactions are not isolated from each other
                writer.tell(name, number=number)

    lock = threading.Lock()
    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = notes(table)
    assert [key for key, _ in found] == [f"NOTE#{n:010d}" for n in range(15)]
    for name in ("a", "b", "c"):
        own = [event["number"] for _, event in found if event["kind"] == name]
        assert own == list(range(5))
