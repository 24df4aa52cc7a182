"""The island's process around its step logic: threads, a real coordinator's socket, real rings.

The compiled programs are the one part that is not here: `Adder` stands in their place with integer
sums, so that a test can hold a micro-shard at a chosen moment. The programs have their own tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from runtime.agent import process as process_module
from runtime.agent.checkpoints import CheckpointStore
from runtime.agent.exit_codes import ExitCode
from runtime.agent.peers import PeerError
from runtime.agent.process import IslandProcess
from runtime.agent.settings import IslandSettings
from runtime.agent.state import TrainState
from runtime.agent.trainer import COUNTERS, Totals, Trainer
from runtime.agent.transfer import HandedState
from runtime.coordinator import wire
from runtime.coordinator.client import CoordinatorAddress
from tests.unit.plans import make_plan

PLAN = make_plan(heartbeat_timeout_s=4.0)
SIZE = 1000


@pytest.fixture(autouse=True)
def no_island_crashes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An island that meets a bug ends its process, which here is the tests': fail instead."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    yield
    assert ended == []


def _state(step: int, value: float = 0.0) -> TrainState:
    arrays = {"w": np.full(SIZE, value, np.float32)}
    return TrainState(
        step=step,
        params=arrays,
        moment1=arrays,
        moment2=arrays,
        block_exponents=np.zeros(1, np.int32),
    )


class Adder:
    """Shard k adds 10^k to the sum, times a power of two that stands for the attempt's scale."""

    chip_class = "test"

    def __init__(self) -> None:
        self.step, self.scale, self.sum, self.before = 0, 1, 0, 0
        self.candidate: int | None = None
        self.value = 0.0
        self.started, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def load_state(self, state: TrainState) -> None:
        self.step, self.value = state.step, float(state.params["w"][0])
        self.clear(base=True)

    def set_state(self, handed: HandedState) -> None:
        self.load_state(handed.state)
        self.scale = int(handed.step_exponents[0])

    def state(self) -> TrainState:
        return _state(self.step, self.value)

    def handed_state(self, attempt: int) -> HandedState:
        exponents = np.array([self.scale], np.int32)
        return HandedState(state=self.state(), attempt=attempt, step_exponents=exponents)

    def run_shard(self, step: int, shard: int) -> None:
        begin, scale = self.sum, self.scale
        self.started.set()
        assert self.go_on.wait(10)
        self.candidate = begin + scale * 10**shard

    def fold(self) -> None:
        assert self.candidate is not None
        self.before, self.sum, self.candidate = self.sum, self.candidate, None

    def discard(self) -> None:
        self.candidate = None

    def drop_last(self) -> None:
        self.sum = self.before

    def clear(self, *, base: bool) -> None:
        self.sum, self.candidate = 0, None
        self.scale = 1 if base else self.scale

    def raise_scale(self, totals: Totals) -> None:
        self.scale *= 2
        self.clear(base=False)

    def own_totals(self) -> Totals:
        counters = np.zeros(len(COUNTERS), np.int64)
        counters[0] = self.sum
        return Totals(None, np.zeros(1, np.int32), counters)

    def totals_to_reduce(self) -> Totals:
        own = self.own_totals()
        return Totals(np.full(SIZE, self.sum, np.int32), own.maxima, own.counters)

    def hash_totals(self, totals: Totals) -> str:
        return str(totals.counters[0])

    def apply(self, totals: Totals) -> float:
        self.value += float(totals.counters[0])
        self.step += 1
        self.clear(base=True)
        return 1.0


class Store:
    """A run whose newest checkpoint is the initial state; what is to be written is kept."""

    def __init__(self) -> None:
        self.stalls: list[float] = []

    def find_newest(self) -> Any:
        class Info:
            state_hash = "s"

        return Info()

    def load(self, info: Any) -> TrainState:
        return _state(0)

    def take_snapshot(self, state: TrainState) -> TrainState:
        return state

    def write(self, snapshot: TrainState, *, stall_s: float) -> dict[str, Any]:
        self.stalls.append(stall_s)
        where = {"step": snapshot.step, "state_hash": snapshot.hash(), "path": "p"}
        return {"type": "checkpointed", **where, "seconds": 0.1, "stall_s": stall_s}


class Link:
    """The coordinator's end of one island's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def tell(self, kind: str, /, **fields: Any) -> None:
        self.writer.write(wire.encode({"type": kind, **fields}))

    async def hear(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(10):
            while True:
                message = await wire.receive(self.reader)
                assert message is not None, f"closed before '{kind}' came"
                if message["type"] == kind:
                    return message


class Fleet:
    """Islands in this process, each with its loop's tasks, and the coordinator by hand."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.adders: dict[str, Adder] = {}
        self.stores: dict[str, Store] = {}
        self.links: dict[str, Link] = {}
        self.hellos: dict[str, dict[str, Any]] = {}
        self.tasks: dict[str, asyncio.Task[int]] = {}
        self._came: asyncio.Queue[str] = asyncio.Queue()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await wire.receive(reader)
        assert hello is not None
        assert hello["type"] == "hello"
        name = hello["island"]
        self.hellos[name], self.links[name] = hello, Link(reader, writer)
        await self._came.put(name)

    async def add(self, name: str) -> Link:
        adder = Adder()
        self.adders[name], self.stores[name] = adder, Store()
        process = IslandProcess(
            self.run_dir,
            name,
            plan=PLAN,
            trainer=cast("Trainer", adder),
            store=cast("CheckpointStore", self.stores[name]),
        )
        self.tasks[name] = asyncio.create_task(process.run())
        return await self.next()

    async def next(self) -> Link:
        return self.links[await asyncio.wait_for(self._came.get(), 10)]

    async def start(self, *names: str) -> list[Link]:
        """Bring islands to step 0 in epoch 1."""
        links = [await self.add(name) for name in names]
        for link in links:
            link.tell("load", request=1)
            await link.hear("loaded")
            link.tell("reset", step=0, attempt=0)
        self.epoch(1)
        return links

    def epoch(self, epoch: int) -> None:
        members = [
            {"name": n, "host": h["host"], "port": h["port"]} for n, h in self.hellos.items()
        ]
        for link in self.links.values():
            link.tell("epoch", epoch=epoch, members=members)


async def _compute(link: Link, *shards: int, attempt: int = 0) -> None:
    for shard in shards:
        link.tell("lease", step=0, attempt=attempt, shard=shard)
        await link.hear("done")


def _reduce(link: Link, shards: list[int], *, epoch: int = 1, attempt: int = 0) -> None:
    link.tell("reduce", epoch=epoch, step=0, attempt=attempt, shards=shards)


@contextlib.asynccontextmanager
async def _fleet(run_dir: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(run_dir)
    server = await asyncio.start_server(fleet.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    CoordinatorAddress(host="127.0.0.1", port=port, pid=1, token="t").write(run_dir)
    try:
        yield fleet
        for name, link in fleet.links.items():
            fleet.adders[name].go_on.set()
            link.tell("exit", reason="done")
        codes = await asyncio.wait_for(asyncio.gather(*fleet.tasks.values()), 10)
        assert all(code == 0 for code in codes), codes
    finally:
        for adder in fleet.adders.values():
            adder.go_on.set()  # a held computation that gives up ends its whole process
        server.close()


def _run(run_dir: Path, work: Callable[[Fleet], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with _fleet(run_dir) as fleet:
            await work(fleet)

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_a_step_of_two_islands_over_their_own_ring(tmp_path: Path) -> None:
    async def work(fleet: Fleet) -> None:
        a, b = await fleet.start("a", "b")
        await _compute(a, 0, 2)
        await _compute(b, 1, 3)
        _reduce(a, [0, 2])
        _reduce(b, [1, 3])
        sums = [await link.hear("summed") for link in (a, b)]
        assert [s["hash"] for s in sums] == ["1111", "1111"]
        assert [s["loss"] for s in sums] == [1111, 1111]
        for link in (a, b):
            link.tell("commit", step=0, hash_state=True, checkpoint=None)
        states = {(await link.hear("applied"))["state_hash"] for link in (a, b)}
        assert states == {_state(1, 1111.0).hash()}

    _run(tmp_path, work)


def test_sums_that_were_cleared_do_not_enter_a_ring_while_an_old_shard_still_runs(
    tmp_path: Path,
) -> None:
    """Found by reading: the clearing waited behind the shard, the ring did not.

    An island comes back (its sums do not count), while it is slow with a shard of before; the
    others have done all shards, so its share is empty. Its old sums must not be added again.
    """

    async def work(fleet: Fleet) -> None:
        a, b = await fleet.start("a", "b")
        slow = fleet.adders["b"]
        await _compute(b, 3)
        slow.started.clear()
        slow.go_on.clear()
        b.tell("lease", step=0, attempt=0, shard=2)
        assert await asyncio.to_thread(slow.started.wait, 5)
        await _compute(a, 0, 1, 2, 3)
        b.tell("reset", step=0, attempt=0)
        fleet.epoch(2)
        _reduce(a, [0, 1, 2, 3], epoch=2)
        _reduce(b, [], epoch=2)
        sums = [await link.hear("summed") for link in (a, b)]
        assert [s["hash"] for s in sums] == ["1111", "1111"]

    _run(tmp_path, work)


def test_a_redo_s_scale_and_empty_sums_hold_at_once_while_an_old_shard_still_runs(
    tmp_path: Path,
) -> None:
    async def work(fleet: Fleet) -> None:
        a, b = await fleet.start("a", "b")
        slow = fleet.adders["b"]
        await _compute(a, 0, 1, 2)
        await _compute(b, 3)
        slow.started.clear()
        slow.go_on.clear()
        b.tell("lease", step=0, attempt=0, shard=2)  # a second run
        assert await asyncio.to_thread(slow.started.wait, 5)
        _reduce(a, [0, 1, 2])
        _reduce(b, [3])
        for link in (a, b):
            assert (await link.hear("summed"))["hash"] == "1111"
            link.tell("redo", step=0, attempt=1)
        await _compute(a, 0, 1, 2, 3, attempt=1)
        _reduce(a, [0, 1, 2, 3], attempt=1)
        _reduce(b, [], attempt=1)
        sums = [await link.hear("summed") for link in (a, b)]
        assert [s["hash"] for s in sums] == ["2222", "2222"]
        assert slow.handed_state(1).step_exponents.tolist() == [2]

    _run(tmp_path, work)


def test_a_joiner_gets_state_and_scale_over_a_real_stream(tmp_path: Path) -> None:
    async def work(fleet: Fleet) -> None:
        (a,) = await fleet.start("a")
        await _compute(a, 0, 1, 2, 3)
        _reduce(a, [0, 1, 2, 3])
        await a.hear("summed")
        a.tell("redo", step=0, attempt=1)
        b = await fleet.add("b")
        b.tell("receive_state", request=5, step=0, attempt=1, donor="a")
        where = {k: fleet.hellos["b"][k] for k in ("host", "port")}
        a.tell("send_state", step=0, attempt=1, island="b", **where)
        synced = await b.hear("synced")
        assert (synced["request"], synced["step"], synced["attempt"]) == (5, 0, 1)
        assert fleet.adders["b"].scale == fleet.adders["a"].scale == 2

    _run(tmp_path, work)


def test_an_island_outlives_its_coordinator_and_says_what_it_holds(tmp_path: Path) -> None:
    """Facts, section 2: torchft's workers die 60 s after their lighthouse was killed."""

    async def work(fleet: Fleet) -> None:
        (a,) = await fleet.start("a")
        await _compute(a, 0, 1, 2, 3)
        _reduce(a, [0, 1, 2, 3])
        await a.hear("summed")
        a.writer.transport.abort()
        again = await fleet.next()
        assert fleet.hellos["a"]["sum"] == {"step": 0, "hash": "1111"}
        again.tell("commit", step=0, hash_state=False, checkpoint=None)
        assert (await again.hear("applied"))["step"] == 1

    _run(tmp_path, work)


def test_a_reduction_whose_neighbour_is_gone_is_told_and_the_next_epoch_works(
    tmp_path: Path,
) -> None:
    """Case kubeflow/trainer#1638: node loss is no hang for the survivors."""

    async def work(fleet: Fleet) -> None:
        a, b = await fleet.start("a", "b")
        await _compute(a, 0, 1)
        await _compute(b, 2, 3)
        _reduce(a, [0, 1])  # b never starts its side
        await asyncio.sleep(0.2)
        fleet.epoch(2)
        _reduce(a, [0, 1], epoch=2)
        _reduce(b, [2, 3], epoch=2)
        assert [(await link.hear("summed"))["hash"] for link in (a, b)] == ["1111", "1111"]

    _run(tmp_path, work)


@pytest.mark.parametrize("reason", ["done", "stopped", "left"])
def test_an_island_that_is_let_go_ends_with_0(tmp_path: Path, reason: str) -> None:
    async def work(fleet: Fleet) -> None:
        link = await fleet.add("a")
        link.tell("exit", reason=reason)
        assert await asyncio.wait_for(fleet.tasks["a"], 5) == 0

    _run(tmp_path, work)


@pytest.mark.parametrize(
    ("reason", "code"), [("refused", ExitCode.REFUSED), ("wedged", ExitCode.CRASHED)]
)
def test_an_island_that_must_go_says_why_in_its_exit_code(
    tmp_path: Path, reason: str, code: ExitCode
) -> None:
    async def work(fleet: Fleet) -> None:
        link = await fleet.add("a")
        assert fleet.hellos["a"]["run_id"] == PLAN.run_id
        link.tell("exit", reason=reason)
        assert await asyncio.wait_for(fleet.tasks.pop("a"), 5) == code

    _run(tmp_path, work)


def test_a_heartbeat_tells_how_long_the_computation_has_been_going_on(tmp_path: Path) -> None:
    async def work(fleet: Fleet) -> None:
        (a,) = await fleet.start("a")
        adder = fleet.adders["a"]
        adder.started.clear()
        adder.go_on.clear()
        begin = time.monotonic()
        a.tell("lease", step=0, attempt=0, shard=0)
        assert await asyncio.to_thread(adder.started.wait, 5)
        ages = [(await a.hear("heartbeat"))["task_s"] for _ in range(2)]
        assert 0 < ages[0] < ages[1] < time.monotonic() - begin
        adder.go_on.set()
        await a.hear("done")
        assert (await a.hear("heartbeat"))["task_s"] == 0

    _run(tmp_path, work)


def test_a_donor_whose_receiver_reads_no_more_is_freed_by_the_coordinator_s_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver's socket is open and its buffers are full: only a time-out would end it."""
    monkeypatch.setattr(process_module, "send_state", _send_for_ever)

    async def work(fleet: Fleet) -> None:
        (a,) = await fleet.start("a")
        with socket.create_server(("127.0.0.1", 0)) as frozen:
            where = {"host": "127.0.0.1", "port": frozen.getsockname()[1]}
            a.tell("send_state", step=0, attempt=0, island="b", **where)
            connection, _ = await asyncio.to_thread(frozen.accept)
            await _compute(a, 0, 1, 2, 3)
            _reduce(a, [0, 1, 2, 3])
            await a.hear("summed")
            a.tell("commit", step=0, hash_state=False, checkpoint=None)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(a.hear("applied"), 0.5)
            a.tell("cancel_send", island="b")
            assert (await a.hear("applied"))["step"] == 1
            connection.close()

    _run(tmp_path, work)


def _send_for_ever(connection: socket.socket, handed: HandedState) -> None:
    try:
        while True:
            connection.sendall(bytes(1 << 20))
    except OSError as error:
        raise PeerError(str(error)) from None


def test_the_writer_s_stall_holds_the_hash_of_the_state_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashing = TrainState.hash

    def slow(state: TrainState, **options: Any) -> str:
        time.sleep(0.2)
        return hashing(state, **options)

    async def work(fleet: Fleet) -> None:
        (a,) = await fleet.start("a")
        await _compute(a, 0, 1, 2, 3)
        _reduce(a, [0, 1, 2, 3])
        await a.hear("summed")
        with monkeypatch.context() as patch:
            patch.setattr(TrainState, "hash", slow)
            a.tell("commit", step=0, hash_state=True, checkpoint="a")
            await a.hear("applied")
        assert (await a.hear("checkpointed"))["stall_s"] >= 0.2

    _run(tmp_path, work)


@pytest.mark.parametrize("orphan", [True, False])
def test_an_island_without_coordinator_leaves_early_only_when_its_launcher_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orphan: bool
) -> None:
    monkeypatch.setattr(process_module, "_ORPHAN_PATIENCE_S", 0.5)
    settings = IslandSettings(patience_s=60.0 if orphan else 1.5)
    parents = iter([1000])
    later = 1 if orphan else 1000
    monkeypatch.setattr(os, "getppid", lambda: next(parents, later))

    async def work() -> None:
        process = IslandProcess(
            tmp_path,
            "a",
            plan=PLAN,
            trainer=cast("Trainer", Adder()),
            store=cast("CheckpointStore", Store()),
            settings=settings,
        )
        begin = time.monotonic()
        assert await asyncio.wait_for(process.run(), 20) == ExitCode.LOST_COORDINATOR
        assert orphan or time.monotonic() - begin >= 1.5

    asyncio.run(work())


def test_time_in_which_the_process_was_stopped_does_not_age_its_computation(
    tmp_path: Path,
) -> None:
    """A computation that was stopped with its process for minutes is not taken for a hung one."""

    async def work(fleet: Fleet) -> None:
        (a,) = await fleet.start("a")
        adder = fleet.adders["a"]
        adder.started.clear()
        adder.go_on.clear()
        a.tell("lease", step=0, attempt=0, shard=0)
        assert await asyncio.to_thread(adder.started.wait, 5)
        await a.hear("heartbeat")
        time.sleep(4.5)  # noqa: ASYNC251 - the loop stands still, as under SIGSTOP
        ages = [(await a.hear("heartbeat"))["task_s"] for _ in range(2)]
        # Two beats a second apart and what passed before them; the stop alone would be more.
        assert max(ages) < 4.5
        adder.go_on.set()
        await a.hear("done")

    _run(tmp_path, work)
