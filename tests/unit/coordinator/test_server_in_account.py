"""A coordinator whose log is a table: when it gives way, its islands must not notice an end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.coordinator import server as server_module
from runtime.coordinator import wire
from runtime.coordinator.client import CoordinatorAddress, read_status
from runtime.coordinator.commit_log import SupersededError
from runtime.coordinator.events import read_events
from runtime.coordinator.log_dynamodb import DynamoCommitLog
from runtime.coordinator.open_log import TablePlace
from runtime.coordinator.server import CoordinatorServer
from runtime.coordinator.tls import TLS_FOLDER, RunTls, make_identity
from runtime.spec.aws import AwsError
from runtime.spec.errors import CoordinationError, LumaError
from tests.unit.coordinator.account_table import TABLE, emulated_table, new_run
from tests.unit.plans import make_plan

PLAN = make_plan(heartbeat_timeout_s=300.0)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    with emulated_table():
        yield


@pytest.fixture
def place() -> TablePlace:
    return TablePlace(TABLE, new_run())


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(server_module, "_LINGER_S", 0.3)
    monkeypatch.setattr(server_module, "_LOOK_AROUND_S", 0.2)
    PLAN.write(tmp_path)
    return tmp_path


class Life:
    """A coordinator that serves, and how it ended."""

    def __init__(self, run_dir: Path, place: TablePlace) -> None:
        self.run_dir = run_dir
        self.server = CoordinatorServer(run_dir, restart=False, place=place)
        self.task = asyncio.create_task(self.server.serve())

    async def island(self, tls: RunTls | None = None) -> asyncio.StreamReader:
        """Join an island; give what it hears."""
        while CoordinatorAddress.read(self.run_dir) is None:  # noqa: ASYNC110 - it lies in a file
            await asyncio.sleep(0.02)
        address = CoordinatorAddress.read(self.run_dir)
        assert address is not None
        context = None if tls is None else tls.client
        reader, self.writer = await asyncio.open_connection(address.host, address.port, ssl=context)
        me = {"pid": 1, "host": "127.0.0.1", "port": 9, "run_id": PLAN.run_id}
        held = {"step": -1, "attempt": 0, "sum": None, "token": address.token}
        hello = {"type": "hello", "island": "island-0", **me, **held}
        self.writer.write(wire.encode(hello))
        assert (await wire.receive(reader) or {})["type"] == "load"
        return reader

    async def ended(self) -> LumaError:
        """Wait until it has given way; give why."""
        with pytest.raises(LumaError) as caught:
            await asyncio.wait_for(self.task, 100)
        self.writer.close()
        return caught.value


def _run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 200))


async def _all(reader: asyncio.StreamReader) -> list[str]:
    """Read to the connection's end."""
    said = []
    while (message := await wire.receive(reader)) is not None:
        said.append(message["type"])
    return said


def test_it_publishes_where_it_listens(run_dir: Path, place: TablePlace) -> None:
    async def work() -> None:
        life = Life(run_dir, place)
        await life.island()
        published = DynamoCommitLog(TABLE, place.run, read_only=True).address()
        assert published == CoordinatorAddress.read(run_dir)
        life.server._take({"type": "stop"})
        assert await asyncio.wait_for(life.task, 100) == "stopped"
        life.writer.close()

    _run(work)


def test_one_that_waits_for_islands_notices_the_next_one(run_dir: Path, place: TablePlace) -> None:
    """It has nothing to write, so no refused write would tell it."""

    async def work() -> None:
        life = Life(run_dir, place)
        reader = await life.island()
        DynamoCommitLog(TABLE, place.run)
        assert await _all(reader) == [], "no exit: the island goes on with what it holds"
        assert isinstance(await life.ended(), SupersededError)

    _run(work)
    kinds = [event["kind"] for event in read_events(run_dir)]
    assert kinds == ["coordinator_started", "joined"]


@pytest.mark.parametrize("reason", ["throttled", "unreachable", "unavailable", "credentials"])
def test_a_table_that_does_not_answer_ends_it_quietly(
    run_dir: Path, place: TablePlace, monkeypatch: pytest.MonkeyPatch, reason: Any
) -> None:
    async def work() -> None:
        life = Life(run_dir, place)
        reader = await life.island()
        monkeypatch.setattr(life.server._log, "append_epoch", _refusing(reason))
        loaded = {"type": "loaded", "request": 1, "step": 0, "state_hash": "s"}
        life.writer.write(wire.encode(loaded))
        said = await _all(reader)
        assert "exit" not in said
        assert "epoch" not in said, "what is not durable is not announced"
        error = await life.ended()
        assert isinstance(error, AwsError)
        assert error.reason == reason

    _run(work)


def test_a_table_that_refuses_fails_the_run(
    run_dir: Path, place: TablePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another coordinator would meet the same refusal: the run's owner has to see it."""

    async def work() -> None:
        life = Life(run_dir, place)
        reader = await life.island()
        monkeypatch.setattr(life.server._log, "append_epoch", _refusing("denied"))
        loaded = {"type": "loaded", "request": 1, "step": 0, "state_hash": "s"}
        life.writer.write(wire.encode(loaded))
        assert "exit" in await _all(reader)
        assert await asyncio.wait_for(life.task, 100) == "failed"
        life.writer.close()

    _run(work)
    assert read_status(run_dir)["state"] == "failed"


def _refusing(reason: Any) -> Callable[..., None]:
    def refuse(*_: Any) -> None:
        raise AwsError("dynamodb: no", reason=reason)

    return refuse


def test_an_orphan_leaves_the_run_to_another_node(
    run_dir: Path, place: TablePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike one on its launcher's machine, which ends the run: here somebody goes on with it."""

    async def work() -> None:
        life = Life(run_dir, place)
        reader = await life.island()
        monkeypatch.setattr(os, "getppid", lambda: 1)
        assert await _all(reader) == []
        assert isinstance(await life.ended(), CoordinationError)

    _run(work)
    assert not {"stopped", "failed"} & {event["kind"] for event in read_events(run_dir)}


def test_a_new_host_takes_the_token_from_the_table(
    tmp_path: Path, run_dir: Path, place: TablePlace
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    PLAN.write(elsewhere)

    async def work() -> None:
        first = Life(run_dir, place)
        await first.island()
        second = Life(elsewhere, place)
        await first.ended()
        await second.island()
        old, new = CoordinatorAddress.read(run_dir), CoordinatorAddress.read(elsewhere)
        assert old is not None
        assert new is not None
        assert new.token == old.token
        assert new.port != old.port
        second.server._take({"type": "stop"})
        await asyncio.wait_for(second.task, 100)
        second.writer.close()

    _run(work)


def test_under_tls_status_and_islands_are_answered(run_dir: Path, place: TablePlace) -> None:
    make_identity(run_dir / TLS_FOLDER)

    async def work() -> None:
        life = Life(run_dir, place)
        await life.island(RunTls(run_dir / TLS_FOLDER))
        status = await asyncio.to_thread(read_status, run_dir)
        assert status["coordinator"] == {"pid": os.getpid()}
        assert [island["name"] for island in status["islands"]] == ["island-0"]
        life.server._take({"type": "stop"})
        await asyncio.wait_for(life.task, 100)
        life.writer.close()

    _run(work)


def test_another_address_needs_tls(run_dir: Path, place: TablePlace) -> None:
    with pytest.raises(CoordinationError, match="no loopback address"):
        CoordinatorServer(run_dir, restart=False, place=place, host="0.0.0.0")
    assert DynamoCommitLog(TABLE, place.run, read_only=True).address() is None
