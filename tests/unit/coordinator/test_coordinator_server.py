"""The coordinator's process with real sockets and a real log: who gets an answer, who counts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from runtime.coordinator import server as server_module
from runtime.coordinator import wire
from runtime.coordinator.client import CoordinatorAddress, read_status, request_stop
from runtime.coordinator.events import read_events
from runtime.coordinator.fence import who_works_in
from runtime.coordinator.log import LOG_FILE, SqliteCommitLog
from runtime.coordinator.server import CoordinatorServer
from runtime.spec.errors import RunError
from tests.unit.plans import make_plan

PLAN = make_plan(heartbeat_timeout_s=30.0)


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(server_module, "_LINGER_S", 0.3)  # these islands leave no sockets behind
    PLAN.write(tmp_path)
    return tmp_path


class Client:
    """One connection, as an island or a tool has it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, run_dir: Path) -> Client:
        address = CoordinatorAddress.read(run_dir)
        assert address is not None
        return cls(*await asyncio.open_connection(address.host, address.port))

    async def tell(self, kind: str, /, **fields: Any) -> None:
        self.writer.write(wire.encode({"type": kind, **fields}))
        await self.writer.drain()

    async def hear(self, kind: str | None = None, timeout_s: float = 5) -> dict[str, Any]:
        """Give the next message, or the next of one kind."""
        async with asyncio.timeout(timeout_s):
            while True:
                message = await wire.receive(self.reader)
                assert message is not None, "the coordinator closed the connection"
                if kind in {None, message["type"]}:
                    return message

    async def ended(self, timeout_s: float = 5) -> list[dict[str, Any]]:
        """Read until the coordinator closes; give what it said before."""
        said = []
        async with asyncio.timeout(timeout_s):
            while (message := await wire.receive(self.reader)) is not None:
                said.append(message)
        return said

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def _island(run_dir: Path, name: str = "island-0", **held: Any) -> Client:
    """Connect as an island that holds `held` (default: nothing)."""
    client = await Client.open(run_dir)
    address = CoordinatorAddress.read(run_dir)
    assert address is not None
    me = {"pid": 1, "host": "127.0.0.1", "port": 9, "token": address.token, "run_id": PLAN.run_id}
    await client.tell("hello", island=name, **{"step": -1, "attempt": 0, "sum": None, **me, **held})
    return client


async def _load(client: Client, step: int = 0) -> None:
    request = (await client.hear("load"))["request"]
    await client.tell("loaded", request=request, step=step, state_hash="s")


async def _work(client: Client, step: int, shards: int = 4) -> None:
    """Compute every shard of a step, reduce alone and report the sum."""
    for _ in range(shards):
        lease = await client.hear("lease")
        await client.tell(
            "done", step=step, attempt=lease["attempt"], shard=lease["shard"], seconds=0.01
        )
    await _reduce(client)


async def _reduce(client: Client, **other: Any) -> None:
    reduce = await client.hear("reduce")
    await client.tell("summed", **_sum(reduce), **other)


def _sum(reduce: dict[str, Any]) -> dict[str, Any]:
    where = {k: reduce[k] for k in ("epoch", "step", "attempt")}
    counters = {"loss": 1 << 20, "tokens": 1, "overflow": 0, "nonfinite": 0, "vanished": 0}
    return {**where, "hash": f"{reduce['step']:064x}", **counters}


@contextlib.asynccontextmanager
async def _serving(run_dir: Path, *, restart: bool = False) -> AsyncIterator[CoordinatorServer]:
    server = CoordinatorServer(run_dir, restart=restart)
    task = asyncio.create_task(server.serve())
    try:
        await _until(lambda: _listens(run_dir))
        yield server
    finally:
        server._take({"type": "stop"})
        server._finished.set()
        await asyncio.wait_for(task, 10)


async def _until(condition: Callable[[], bool], timeout_s: float = 5) -> None:
    """Wait for what no message tells."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition lies in another object or file
            await asyncio.sleep(0.02)


def _listens(run_dir: Path) -> bool:
    address = CoordinatorAddress.read(run_dir)
    if address is None:
        return False
    try:
        socket.create_connection((address.host, address.port), timeout=1).close()
    except OSError:
        return False
    return True


def _run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))


def _kinds(run_dir: Path) -> list[str]:
    return [event["kind"] for event in read_events(run_dir)]


def test_a_whole_run_of_one_island(run_dir: Path) -> None:
    async def work() -> None:
        async with _serving(run_dir):
            island = await _island(run_dir)
            await _load(island)
            for step in range(PLAN.total_steps):
                await _work(island, step)
                commit = await island.hear("commit")
                assert commit["step"] == step
                last = step == PLAN.total_steps - 1
                assert commit["checkpoint"] == ("island-0" if last else None)
                await island.tell(
                    "applied", step=step + 1, grad_norm=1.0, state_hash="f" if last else None
                )
            await island.tell(
                "checkpointed",
                step=3,
                state_hash="f",
                path="checkpoints/step-000003",
                seconds=0.1,
                stall_s=0.0,
            )
            assert (await island.hear("exit"))["reason"] == "done"
            await island.close()

    _run(work)
    log = SqliteCommitLog(run_dir / LOG_FILE, read_only=True)
    assert [c.step for c in log.commits()] == [0, 1, 2]
    assert [c.shards for c in log.commits()] == [{"island-0": [0, 1, 2, 3]}] * 3
    assert log.checkpoints() == [(3, "f", "checkpoints/step-000003")]
    assert _kinds(run_dir)[-1] == "done"
    assert read_status(run_dir)["state"] == "done"


def test_a_commit_is_in_the_log_before_anyone_hears_of_it(run_dir: Path) -> None:
    async def work() -> None:
        async with _serving(run_dir):
            island = await _island(run_dir)
            await _load(island)
            await _work(island, 0)
            await island.hear("commit")
            assert SqliteCommitLog(run_dir / LOG_FILE, read_only=True).last_step() == 0
            await island.close()

    _run(work)


# ------------------------------------------------------------------------------------- strangers

NONSENSE = {
    "wrong token": wire.encode({"type": "status", "token": "guess"}),
    "no token": wire.encode({"type": "stop"}),
    "a token that is no ASCII": wire.encode({"type": "stop", "token": "t\u00f6ken"}),
    "half a surrogate": wire.encode({"type": "status", "token": "\ud800"}),
    "hello with a wrong token": wire.encode({"type": "hello", "token": "x", "island": "island-0"}),
    "not JSON": b"\x00\x00\x00\x03abc",
    "nested too deeply": b"\x00\x00\xc3\x50" + b"[" * 50_000,
    "oversize": b"\xff\xff\xff\xff",
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("greeting", NONSENSE)
def test_a_stranger_gets_no_answer_and_changes_nothing(
    run_dir: Path, greeting: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with _serving(run_dir) as server:
            island = await _island(run_dir)
            await _load(island)
            await island.hear("lease")
            before = dataclasses.replace(server._core.board), server._core.step
            stranger = await Client.open(run_dir)
            stranger.writer.write(NONSENSE[greeting])
            with contextlib.suppress(OSError):
                await stranger.writer.drain()
                stranger.writer.write_eof()
            assert await stranger.ended() == []
            assert server._core.phase == "run"
            assert not server._core.stopping
            assert (server._core.board, server._core.step) == before
            assert list(server._connections) == ["island-0"]
            await island.tell("done", step=0, attempt=0, shard=0, seconds=0.1)
            await island.hear("lease")
            await island.close()

    _run(work)
    assert not caplog.records, "no unhandled exception either"


def test_an_island_that_breaks_the_protocol_is_lost_at_once(run_dir: Path) -> None:
    """Not only after a heartbeat's time-out, which is 30 s here."""

    async def work() -> None:
        for nonsense in (b"\x00\x00\x00\x03abc", wire.encode({"type": "done", "shard": 1})):
            async with _serving(run_dir):
                island = await _island(run_dir)
                await _load(island)
                await island.hear("lease")
                island.writer.write(nonsense)
                await island.writer.drain()
                await island.ended()
                await _until(lambda: "left" in _kinds(run_dir))
            (run_dir / "events.jsonl").unlink()

    _run(work)


# -------------------------------------------------------------------------------- status and stop


def test_status_and_stop_through_the_client(run_dir: Path) -> None:
    async def work() -> None:
        async with _serving(run_dir) as server:
            assert (await asyncio.to_thread(read_status, run_dir))["state"] == "provisioning"
            island = await _island(run_dir)
            await _load(island)
            await _work(island, 0)
            await island.hear("commit")
            status = await asyncio.to_thread(read_status, run_dir)
            assert (status["state"], status["step"], status["total_steps"]) == ("running", 1, 3)
            assert status["coordinator"] == {"pid": os.getpid()}
            (shown,) = status["islands"]
            assert (shown["name"], shown["pid"], shown["state"]) == ("island-0", 1, "active")
            assert shown["shards_per_s"] == pytest.approx(100, rel=0.01)
            await asyncio.to_thread(request_stop, run_dir)
            assert server._core.stopping
            # The step in flight is committed, its state is made durable, then all go.
            await _work(island, 1)
            assert (await island.hear("commit"))["checkpoint"] == "island-0"
            await island.tell("applied", step=2, grad_norm=1.0, state_hash="g")
            await island.tell(
                "checkpointed", step=2, state_hash="g", path="p", seconds=0.1, stall_s=0.0
            )
            assert (await island.hear("exit"))["reason"] == "stopped"
            await island.close()

    _run(work)
    assert _kinds(run_dir)[-1] == "stopped"


def test_stop_before_any_island_came_ends_at_once(run_dir: Path) -> None:
    async def work() -> None:
        server = CoordinatorServer(run_dir, restart=False)
        task = asyncio.create_task(server.serve())
        await asyncio.sleep(0.2)
        await asyncio.to_thread(request_stop, run_dir)
        assert await asyncio.wait_for(task, 5) == "stopped"

    _run(work)


# --------------------------------------------------------------------------------------- zombies


def test_a_zombie_s_late_result_is_refused_and_changes_nothing(run_dir: Path) -> None:
    """SIGSTOP for longer than the heartbeat, then SIGCONT: what it still sends does not count.

    Cases torchft#164, #188, #196 and #63: a dead peer is seen late, or a stale member blocks.
    """
    dataclasses.replace(PLAN, heartbeat_timeout_s=0.8, islands=2).write(run_dir)

    async def work() -> None:
        async with _serving(run_dir) as server:
            zombie, other = await _island(run_dir, "island-0"), await _island(run_dir, "island-1")
            await _load(zombie)
            await _load(other)
            held = (await zombie.hear("lease"))["shard"]
            mine = (await other.hear("lease"))["shard"]

            async def beat() -> None:
                while True:
                    await other.tell("heartbeat", task_s=0.0)
                    await asyncio.sleep(0.1)

            heart = asyncio.create_task(beat())
            await _until(lambda: "island-0" not in server._core.islands)
            assert held in server._core.board.unstarted, "its shard is given back"
            board = json.dumps([server._core.board.unstarted, server._core.board.done])
            with contextlib.suppress(OSError):
                await zombie.tell("done", step=0, attempt=0, shard=held, seconds=0.1)
                await zombie.tell("summed", epoch=server._core.epoch, step=0, attempt=0)
            await zombie.ended()
            await asyncio.sleep(0.2)
            assert json.dumps([server._core.board.unstarted, server._core.board.done]) == board
            assert mine in server._core.board.running
            assert server._core.members == ["island-1"]
            # It may come back, as any island may, and is leased shards anew.
            back = await _island(run_dir, "island-0", step=0)
            assert (await back.hear("reset"))["step"] == 0
            await _until(lambda: server._core.members == ["island-0", "island-1"])
            heart.cancel()
            await back.close()
            await other.close()

    _run(work)
    left = [e for e in read_events(run_dir) if e["kind"] == "left"]
    assert (left[0]["island"], left[0]["reason"]) == ("island-0", "no heartbeat")


def test_bytes_that_were_under_way_when_an_island_was_dropped_do_not_count(run_dir: Path) -> None:
    """They lie in the coordinator's own buffer already: the drop comes before they are read."""

    async def work() -> None:
        async with _serving(run_dir) as server:
            island = await _island(run_dir)
            await _load(island)
            shard = (await island.hear("lease"))["shard"]
            reader = server._connections["island-0"].transport.get_protocol()._stream_reader
            reader.feed_data(
                wire.encode(
                    {"type": "done", "step": 0, "attempt": 0, "shard": shard, "seconds": 0.1}
                )
            )
            before = server._core.board
            server._connections.pop("island-0").transport.abort()
            await asyncio.sleep(0.2)
            assert before.done == {}
            await island.close()

    _run(work)


def test_a_second_connection_of_one_name_replaces_the_first(run_dir: Path) -> None:
    async def work() -> None:
        async with _serving(run_dir) as server:
            first = await _island(run_dir)
            await _load(first)
            await first.hear("lease")
            second = await _island(run_dir, step=0)
            assert (await second.hear("reset"))["step"] == 0
            await second.hear("lease")
            assert "exit" not in [m["type"] for m in await first.ended()]
            await asyncio.sleep(0.2)
            assert server._core.members == ["island-0"], "the end of the first changes nothing"
            assert list(server._connections) == ["island-0"]
            await second.tell("done", step=0, attempt=0, shard=0, seconds=0.1)
            await second.hear("lease")
            await second.close()

    _run(work)


# ----------------------------------------------------------------------------- restart, disk, CLI


def test_a_restarted_coordinator_tells_what_the_log_holds(run_dir: Path) -> None:
    """The commit was durable, then the coordinator died before it told anyone."""

    async def work() -> None:
        async with _serving(run_dir) as server:
            island = await _island(run_dir)
            await _load(island)
            await _work(island, 0)
            await _until(lambda: server._log.last_step() >= 0)
        token = CoordinatorAddress.read(run_dir)
        async with _serving(run_dir, restart=True) as server:
            again = CoordinatorAddress.read(run_dir)
            assert token is not None
            assert again is not None
            assert again.token == token.token, "islands hold the run's one token"
            assert server._core.step == 1
            back = await _island(run_dir, step=0, sum={"step": 0, "hash": f"{0:064x}"})
            assert (await back.hear())["type"] == "commit"
            assert (await back.hear("reset"))["step"] == 1
            epoch = (await back.hear("epoch"))["epoch"]
            assert epoch == 2, "epochs go on from the log"
            assert (await back.hear("lease"))["step"] == 1
            await back.close()

    _run(work)


def test_a_sum_that_the_log_does_not_hold_is_not_committed_by_a_restart(run_dir: Path) -> None:
    async def work() -> None:
        async with _serving(run_dir):
            island = await _island(run_dir)
            await _load(island)
            await island.hear("lease")
        async with _serving(run_dir, restart=True) as server:
            back = await _island(run_dir, step=0, sum={"step": 0, "hash": "a" * 64})
            assert (await back.hear())["type"] == "reset"
            assert server._core.step == 0
            await back.close()

    _run(work)


def test_a_full_disk_ends_the_run_with_a_reason_and_never_tells_the_commit(run_dir: Path) -> None:
    """Neither the log nor the events can be written: the islands are still let go."""

    async def work() -> None:
        server = CoordinatorServer(run_dir, restart=False)
        task = asyncio.create_task(server.serve())
        await asyncio.sleep(0.2)
        island = await _island(run_dir)
        await _load(island)
        await island.hear("epoch")
        server._log._db.execute("PRAGMA journal_mode=DELETE")
        server._log._db.execute("PRAGMA query_only=1")
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, server._events._fd)
        os.close(full)
        for shard in range(4):
            await island.tell("done", step=0, attempt=0, shard=shard, seconds=0.1)
        await _reduce(island)
        said = await island.ended()
        assert [m["type"] for m in said] == ["exit"]
        assert said[0]["reason"] == "failed"
        await island.close()
        assert await asyncio.wait_for(task, 5) == "failed"
        assert "commit log cannot be used" in str(server._core.error)

    _run(work)


def test_a_second_run_of_another_plan_format_starts_nothing(run_dir: Path) -> None:
    (run_dir / "plan.json").write_text('{"format": 7}')
    with pytest.raises(RunError):
        CoordinatorServer(run_dir, restart=False)
    assert [p.name for p in run_dir.iterdir()] == ["plan.json"]


def test_the_process_ends_cleanly_on_sigterm_and_says_what_is_wrong_on_a_bad_folder(
    run_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command = [sys.executable, "-m", "runtime.coordinator", "--run"]
    process = subprocess.Popen([*command, str(run_dir)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while read_status(run_dir)["state"] != "provisioning":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (0, "")
    assert _kinds(run_dir) == ["coordinator_started", "stopped"]
    empty = tmp_path_factory.mktemp("empty")
    bad = subprocess.run(
        [*command, str(empty)], capture_output=True, text=True, timeout=20, check=False
    )
    assert bad.returncode != 0
    assert "not a run folder" in bad.stderr
    assert "Traceback" not in bad.stderr
    assert list(empty.iterdir()) == []


# ------------------------------------------------------------------- other runs, bad fields, bugs


def test_an_island_of_an_older_run_in_the_folder_is_turned_away_and_ours_stays(
    run_dir: Path,
) -> None:
    """It knows the token, for it read the address file anew; it has even the same name."""

    async def work() -> None:
        async with _serving(run_dir) as server:
            island = await _island(run_dir)
            await _load(island)
            await island.hear("lease")
            orphan = await _island(run_dir, step=2, run_id="older")
            assert [m["type"] for m in await orphan.ended()] == ["exit"]
            assert list(server._connections) == ["island-0"]
            assert server._core.members == ["island-0"]
            assert server._core.islands["island-0"].step == 0
            await island.tell("done", step=0, attempt=0, shard=0, seconds=0.1)
            await island.hear("lease")
            await island.close()

    _run(work)
    (refused,) = [e for e in read_events(run_dir) if e["kind"] == "refused"]
    assert (refused["island"], refused["reason"]) == ("island-0", "it belongs to another run")


BAD_MESSAGES = {
    "a field is missing": {"type": "done", "step": 0, "attempt": 0, "seconds": 0.1},
    "a field of another type": {
        "type": "done",
        "step": 0,
        "attempt": 0,
        "seconds": 0.1,
        "shard": [0],
    },
    "a sum without counters": {"type": "summed", "epoch": 1, "step": 0, "attempt": 0, "hash": "h"},
    "an event that only the server makes": {"type": "lost"},
    "a tick": {"type": "tick"},
    "a stop": {"type": "stop"},
    "a type that nobody knows": {"type": "__init__"},
}


@pytest.mark.parametrize("bad", BAD_MESSAGES)
def test_a_malformed_message_costs_its_sender_the_connection_and_no_more(
    run_dir: Path, bad: str, capfd: pytest.CaptureFixture[str]
) -> None:
    dataclasses.replace(PLAN, islands=2).write(run_dir)

    async def work() -> None:
        async with _serving(run_dir) as server:
            islands = [await _island(run_dir, f"island-{n}") for n in range(2)]
            for island in islands:
                await _load(island)
            leases = [await island.hear("lease") for island in islands]
            message = dict(BAD_MESSAGES[bad])
            await islands[0].tell(message.pop("type"), **message)
            await islands[0].ended()
            await _until(lambda: server._core.members == ["island-1"])
            assert server._core.phase == "run"
            assert not server._core.stopping
            shard = leases[1]["shard"]
            await islands[1].tell("done", step=0, attempt=0, shard=shard, seconds=0.1)
            await islands[1].hear("lease")
            await islands[1].close()

    _run(work)
    left = next(e for e in read_events(run_dir) if e["kind"] == "left")
    assert left["island"] == "island-0"
    assert left["reason"].startswith("it broke the protocol: ")
    assert left["reason"].removeprefix("it broke the protocol: ") in capfd.readouterr().err


def test_a_hello_without_its_fields_is_no_island(run_dir: Path) -> None:
    async def work() -> None:
        async with _serving(run_dir) as server:
            for changes in ({"pid": None}, {"sum": {"step": 1}}, {"run_id": 3}):
                client = await _island(run_dir, **changes)
                assert await client.ended() == []
            assert server._core.islands == {}

    _run(work)


_BUGGY = """
import sys
from runtime.coordinator import __main__ as entry
from runtime.coordinator.core import Coordinator

def broken(self, event, now):
    raise {error}("a bug of ours")

setattr(Coordinator, "_on_{event}", broken)
sys.argv = ["coordinator", "--run", sys.argv[1]]
sys.exit(entry.main())
"""


@pytest.mark.parametrize("event", ["hello", "tick", "heartbeat"])
@pytest.mark.parametrize("error", ["KeyError", "ValueError", "AssertionError"])
def test_a_bug_ends_the_coordinator_visibly_so_that_it_is_started_again(
    run_dir: Path, event: str, error: str
) -> None:
    """Found by reading: KeyError and ValueError were taken for a stranger's nonsense."""
    script = _BUGGY.format(event=event, error=error)
    command = [sys.executable, "-c", script, str(run_dir)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    async def talk() -> None:
        await _until(lambda: CoordinatorAddress.read(run_dir) is not None, 20)
        with contextlib.suppress(OSError):
            island = await _island(run_dir)
            await island.tell("heartbeat", task_s=0.0)
            await island.ended()

    asyncio.run(talk())
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 4
    assert "Traceback" in errors
    assert f"{error}: " in errors


def test_a_dead_ticker_ends_the_coordinator(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_self: CoordinatorServer) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(CoordinatorServer, "_tick_forever", broken)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(asyncio.wait_for(CoordinatorServer(run_dir, restart=False).serve(), 10))


def test_a_second_coordinator_on_one_run_is_refused_and_the_first_goes_on(run_dir: Path) -> None:
    async def work() -> None:
        async with _serving(run_dir):
            assert who_works_in(run_dir) == "a coordinator"
            second = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "runtime.coordinator", "--run", str(run_dir)],
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
            assert second.returncode == 1
            assert "another coordinator works on" in second.stderr
            assert "Traceback" not in second.stderr
            island = await _island(run_dir)
            await _load(island)
            await _work(island, 0)
            await island.hear("commit")
            await island.close()

    _run(work)
    assert who_works_in(run_dir) is None
    assert _kinds(run_dir).count("coordinator_started") == 1


def test_the_fence_goes_with_its_process_however_it_ends(run_dir: Path) -> None:
    command = [sys.executable, "-m", "runtime.coordinator", "--run", str(run_dir)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 20
    while who_works_in(run_dir) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert who_works_in(run_dir) is None
