"""The log in a table under faults: lost answers, throttling, refusals, a second coordinator."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from runtime.coordinator import run_table
from runtime.coordinator.client import CoordinatorAddress
from runtime.coordinator.commit_log import Commit, SupersededError
from runtime.coordinator.log_dynamodb import DynamoCommitLog
from runtime.coordinator.open_log import TablePlace
from runtime.spec import aws
from runtime.spec.aws import AwsError
from runtime.spec.errors import CoordinationError, SpecError
from tests.unit.coordinator.account_table import TABLE, emulated_table, new_run

ADDRESS = CoordinatorAddress(host="10.0.0.7", port=4711, pid=42, token="secret")


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    with emulated_table():
        yield


@pytest.fixture
def run() -> str:
    return new_run()


@pytest.fixture
def log(run: str) -> DynamoCommitLog:
    return DynamoCommitLog(TABLE, run)


def _commit(step: int, sum_hash: str | None = None) -> Commit:
    return Commit(
        step=step,
        epoch=1,
        attempt=0,
        members=("island-0", "island-10"),
        shards={"island-0": [0, 2], "island-10": [1]},
        sum_hash=sum_hash or f"{step:064x}",
        loss=2.5 / (step + 1),
        tokens=1000 + step,
    )


def _client(log: DynamoCommitLog) -> Any:
    return log._items._table.client


def _answer_lost(log: DynamoCommitLog, operation: str) -> list[int]:
    """Have the first answer to an operation get lost: botocore sends the same request again."""
    sent: list[int] = []

    def again(attempts: int, **_: Any) -> float | None:
        sent.append(attempts)
        return 0.0 if attempts == 1 else None

    _client(log).meta.events.register_first(f"needs-retry.dynamodb.{operation}", again)
    return sent


def _items(run: str, prefix: str = "") -> list[dict[str, Any]]:
    table = boto3.resource("dynamodb").Table(TABLE)
    answer = table.query(
        KeyConditionExpression="pk = :p", ExpressionAttributeValues={":p": f"RUN#{run}"}
    )
    return [item for item in answer["Items"] if item["sk"].startswith(prefix)]


# ------------------------------------------------------------------- the items


def test_keys_are_those_of_the_contract(log: DynamoCommitLog, run: str) -> None:
    log.append(_commit(0))
    log.append(_commit(0))
    log.append_epoch(3, ["island-0"])
    log.append_checkpoint(8, "aa", "checkpoints/step-000008")
    keys = {item["sk"] for item in _items(run)}
    assert keys == {
        "COORDINATOR",
        "COMMIT#0000000000",
        "RECOMMIT#0000000000#000000",
        "EPOCH#0000000003",
        "CHECKPOINT#0000000008",
    }


@pytest.mark.parametrize("loss", [2.0, 0.1, 1e-20, 5.551115123125783e-17, 123456789.123456789])
def test_a_loss_comes_back_as_the_same_float(log: DynamoCommitLog, loss: float) -> None:
    commit = Commit(
        step=0, epoch=1, attempt=0, members=(), shards={}, sum_hash="a", loss=loss, tokens=1
    )
    log.append(commit)
    (again,) = log.commits()
    assert again == commit
    assert isinstance(again.loss, float)


def test_a_reader_takes_no_term_and_writes_nothing(log: DynamoCommitLog, run: str) -> None:
    log.append(_commit(0))
    reader = DynamoCommitLog(TABLE, run, read_only=True)
    assert reader.term == 0
    assert reader.last_step() == 0
    log.append(_commit(1))
    assert reader.last_step() == 1, "it reads on while the coordinator writes"
    for write in _WRITES:
        with pytest.raises(CoordinationError, match="opened for reading"):
            write(reader)
    log.append(_commit(2))


# ------------------------------------------------------------- two coordinators

_WRITES: list[Callable[[DynamoCommitLog], Any]] = [
    lambda log: log.append(_commit(log.last_step() + 1)),
    lambda log: log.append(_commit(0)),
    lambda log: log.append_epoch(9, []),
    lambda log: log.append_checkpoint(1, "aa", "p"),
    lambda log: log.publish(ADDRESS),
]


@pytest.mark.parametrize("write", _WRITES)
def test_a_coordinator_that_was_replaced_writes_nothing(
    log: DynamoCommitLog, run: str, write: Callable[[DynamoCommitLog], Any]
) -> None:
    log.append(_commit(0))
    newer = DynamoCommitLog(TABLE, run)
    assert (log.term, newer.term) == (1, 2)
    before = newer.rows()
    with pytest.raises(SupersededError, match=f"taken over run '{run}'.*had term 1"):
        write(log)
    with pytest.raises(SupersededError):
        log.check_alone()
    assert newer.rows() == before
    assert newer.address() is None
    newer.check_alone()
    write(newer)


def test_of_two_that_start_at_once_one_goes(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second takes the term between the first one's read and its write."""
    original = run_table.RunTable.update_coordinator

    def overtaken(self: run_table.RunTable, fields: dict[str, Any], *, term: int) -> None:
        monkeypatch.setattr(run_table.RunTable, "update_coordinator", original)
        DynamoCommitLog(TABLE, run)
        original(self, fields, term=term)

    monkeypatch.setattr(run_table.RunTable, "update_coordinator", overtaken)
    with pytest.raises(SupersededError):
        DynamoCommitLog(TABLE, run)
    assert DynamoCommitLog(TABLE, run).term == 2


def test_a_published_address_is_for_whoever_reads(log: DynamoCommitLog, run: str) -> None:
    assert log.address() is None
    log.publish(ADDRESS)
    assert DynamoCommitLog(TABLE, run, read_only=True).address() == ADDRESS
    newer = DynamoCommitLog(TABLE, run)
    assert newer.address() == ADDRESS, "the token stays, so that islands may come back"


# ------------------------------------------------------------------ lost answers


def test_a_commit_whose_answer_was_lost_is_done_once(log: DynamoCommitLog, run: str) -> None:
    sent = _answer_lost(log, "TransactWriteItems")
    assert log.append(_commit(0)) is True
    assert sent == [1, 2]
    assert log.commits() == [_commit(0)]
    assert log.recommit_count() == 0
    assert log.append(_commit(1)) is True


def test_every_other_row_whose_answer_was_lost_is_there_once(log: DynamoCommitLog) -> None:
    log.append(_commit(0))
    _answer_lost(log, "TransactWriteItems")
    assert log.append(_commit(0)) is False
    assert log.recommit_count() == 1
    log.append_epoch(1, ["island-0"])
    assert log.last_epoch() == (1, ["island-0"])
    log.append_checkpoint(4, "aa", "p")
    assert log.checkpoints() == [(4, "aa", "p")]


def test_a_term_whose_answer_was_lost_is_taken_once(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = run_table.RunTable.__init__

    def hooked(self: run_table.RunTable, table: str, name: str) -> None:
        original(self, table, name)
        events = self._table.client.meta.events
        events.register_first(
            "needs-retry.dynamodb.UpdateItem",
            lambda attempts, **_: 0.0 if attempts == 1 else None,
        )

    monkeypatch.setattr(run_table.RunTable, "__init__", hooked)
    log = DynamoCommitLog(TABLE, run)
    assert log.term == 1
    log.publish(ADDRESS)
    assert log.append(_commit(0))


def test_another_s_row_is_never_taken_for_a_lost_answer(log: DynamoCommitLog, run: str) -> None:
    """A row that somebody put there by hand; the same words, another write."""
    log.append(_commit(0))
    boto3.resource("dynamodb").Table(TABLE).put_item(
        Item={"pk": f"RUN#{run}", "sk": "COMMIT#0000000001", "sum_hash": "f" * 64, "write": "x"}
    )
    with pytest.raises(CoordinationError, match=r"committed with sum ffff.*same bits"):
        log.append(_commit(1))


def test_a_row_whose_predecessor_vanished_is_refused(log: DynamoCommitLog, run: str) -> None:
    log.append(_commit(0))
    boto3.resource("dynamodb").Table(TABLE).delete_item(
        Key={"pk": f"RUN#{run}", "sk": "COMMIT#0000000000"}
    )
    with pytest.raises(CoordinationError, match="COMMIT#0000000000 is missing"):
        log.append(_commit(1))
    assert _items(run, "COMMIT#") == []


# -------------------------------------------------------------------- throttling


def _cancelled(code: str) -> ClientError:
    return ClientError(
        {
            "Error": {"Code": "TransactionCanceledException", "Message": "cancelled"},
            "CancellationReasons": [{"Code": "None"}, {"Code": code}],
        },
        "TransactWriteItems",
    )


def _fails(log: DynamoCommitLog, error: ClientError, times: int) -> list[int]:
    client, calls = _client(log), []
    original = client.transact_write_items

    def flaky(**request: Any) -> Any:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return original(**request)

    client.transact_write_items = flaky
    return calls


@pytest.mark.parametrize("code", sorted(run_table._PASSING))
def test_a_transaction_that_was_cancelled_for_nothing_is_repeated(
    log: DynamoCommitLog, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(run_table, "_FIRST_WAIT_S", 0.001)
    calls = _fails(log, _cancelled(code), times=3)
    assert log.append(_commit(0))
    assert len(calls) == 4


def test_one_in_progress_is_waited_for(
    log: DynamoCommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_table, "_FIRST_WAIT_S", 0.001)
    error = {"Error": {"Code": "TransactionInProgressException", "Message": "wait"}}
    _fails(log, ClientError(error, "TransactWriteItems"), times=1)
    assert log.append(_commit(0))


def test_a_term_is_taken_while_the_old_coordinator_commits(
    run: str, log: DynamoCommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transactions hold the item COORDINATOR for a moment; botocore does not wait for that."""
    monkeypatch.setattr(run_table, "_FIRST_WAIT_S", 0.001)
    conflict = {"Error": {"Code": "TransactionConflictException", "Message": "ongoing"}}
    client, calls = _client(log), []
    original = client.update_item

    def busy(**request: Any) -> Any:
        calls.append(1)
        if len(calls) < 3:
            raise ClientError(conflict, "UpdateItem")
        return original(**request)

    client.update_item = busy
    log.publish(ADDRESS)
    assert len(calls) == 3
    assert log.address() == ADDRESS


def test_throttling_that_does_not_end_is_told(
    log: DynamoCommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_table, "_FIRST_WAIT_S", 0.0001)
    _fails(log, _cancelled("ThrottlingError"), times=99)
    with pytest.raises(AwsError, match="cancelled 8 times") as caught:
        log.append(_commit(0))
    assert caught.value.transient
    assert log.commits() == []


def test_a_validation_error_is_no_reason_to_go_on(log: DynamoCommitLog) -> None:
    calls = _fails(log, _cancelled("ValidationError"), times=99)
    with pytest.raises(AwsError) as caught:
        log.append(_commit(0))
    assert not caught.value.transient
    assert len(calls) == 1


# --------------------------------------------------------------------- refusals


def test_a_missing_table_is_named() -> None:
    with pytest.raises(AwsError, match="table 'no-such-table'") as caught:
        DynamoCommitLog("no-such-table", "run")
    assert caught.value.reason == "missing"
    assert "luma check --account" in caught.value.diagnostics()


def test_an_endpoint_that_nobody_serves_may_be_served_later(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(aws, "_ATTEMPTS", 1)
    with pytest.raises(AwsError) as caught:
        DynamoCommitLog(TABLE, run)
    assert caught.value.reason == "unreachable"
    assert caught.value.transient


@pytest.mark.parametrize(
    "text", ["dynamodb:luma", "dynamodb:luma/", "luma/run", "dynamodb:luma/Run", "dynamodb:x/run"]
)
def test_a_place_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"--log: .*expected dynamodb:TABLE/RUN"):
        TablePlace.parse(text)


def test_a_place_has_a_table_and_a_run() -> None:
    assert TablePlace.parse("dynamodb:Luma-Runs.1/my-run-2") == TablePlace(
        "Luma-Runs.1", "my-run-2"
    )
