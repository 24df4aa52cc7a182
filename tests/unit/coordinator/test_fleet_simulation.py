"""A whole fleet under one seeded scheduler: coordinator and islands as they are, all I/O simulated.

The simulated device computes integers in which a missing, doubled or stale micro-shard shows. Every
run must end with the commits and the state of an undisturbed one, whatever was killed, stopped,
slowed or cut off, and no island may ever apply a step that the log does not hold.
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from runtime.agent.core import Do, IslandCore
from runtime.agent.core import Send as IslandSend
from runtime.coordinator.actions import (
    AppendCheckpoint,
    AppendCommit,
    AppendEpoch,
    Close,
    Emit,
    Finish,
    Send,
)
from runtime.coordinator.core import Coordinator
from runtime.coordinator.log import Commit
from runtime.coordinator.messages import check_message
from runtime.coordinator.plan import RunPlan
from runtime.spec.errors import CoordinationError
from tests.unit.plans import make_plan

STEPS = 12
SHARDS = 8
OVERFLOWING = {0, 5}
"""Steps whose first attempt overflows."""


def _plan(islands: int) -> RunPlan:
    return make_plan(total_steps=STEPS, micro_shards=SHARDS, islands=islands, checkpoint_every=4)


def _number(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


def _shard_value(state: int, step: int, shard: int, scale: int) -> int:
    return _number("shard", state, step, shard, scale)


def _reference() -> list[tuple[str, int]]:
    """Give (hash of the sum, state after) of every step of an undisturbed run."""
    state, history = 0, []
    for step in range(STEPS):
        scale = 1 if step in OVERFLOWING else 0
        total = sum(_shard_value(state, step, shard, scale) for shard in range(SHARDS))
        state = _number("apply", state, step, total)
        history.append((f"{total:x}", state))
    return history


REFERENCE = _reference()


class MemoryLog:
    """The commit log's rules without the file; the file has its own tests."""

    def __init__(self) -> None:
        self.commits: dict[int, Commit] = {}
        self.epochs: list[tuple[int, list[str]]] = [(0, [])]
        self.recommits = 0

    def last_step(self) -> int:
        return max(self.commits, default=-1)

    def sum_hash(self, step: int) -> str | None:
        commit = self.commits.get(step)
        return None if commit is None else commit.sum_hash

    def append(self, commit: Commit) -> None:
        known = self.sum_hash(commit.step)
        if known is None:
            assert commit.step == self.last_step() + 1, "a gap in the history"
            self.commits[commit.step] = commit
            return
        if known != commit.sum_hash:
            raise CoordinationError("a recomputed step has other bits")
        self.recommits += 1


@dataclass
class _Sending:
    """A hand-over under way, and when the donor's own time-out ends it."""

    until: float
    cancelled: bool = False


@dataclass(eq=False)
class SimIsland:
    """One island: the real step logic over a device of integers."""

    world: World
    name: str
    core: IslandCore = field(init=False)
    alive: bool = True
    frozen_until: float = 0.0
    pace: float = 1.0
    connection: int | None = None
    state: int = 0
    step: int = -1
    scale: int = 0
    sums: list[tuple[int, int]] = field(default_factory=list)
    droppable: bool = False
    candidate: tuple[int, int] | None = None
    totals: tuple[int, int] | None = None
    expecting: tuple[int, int, str, int] | None = None
    arrived: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    applies: int = 0
    sending: dict[str, _Sending] = field(default_factory=dict)
    freezes_in_transfer: float = 0.0

    def __post_init__(self) -> None:
        self.core = IslandCore(self.name)

    def take(self, event: dict[str, Any]) -> None:
        for action in self.core.handle(event):
            if isinstance(action, IslandSend):
                self.world.to_coordinator(self, action.message)
            else:
                assert isinstance(action, Do)
                getattr(self, f"do_{action.kind}")(**action.fields)

    def later(self, delay: float, work: Callable[[], None]) -> None:
        """Run `work` after a delay, unless this island is dead; later still if it is frozen."""

        def attempt() -> None:
            if not self.alive:
                return
            if self.world.now < self.frozen_until:
                self.world.after(self.frozen_until - self.world.now, attempt)
            else:
                work()

        self.world.after(delay, attempt)

    def do_run_shard(self, step: int, shard: int) -> None:
        assert step == self.step, "a shard of another step than the state's"
        value = _shard_value(self.state, step, shard, self.scale)
        self.droppable = False
        seconds = self.pace * self.world.draw(0.05, 0.1)

        def finished() -> None:
            self.candidate = (shard, value)
            self.take({"type": "shard_finished", "step": step, "shard": shard, "seconds": seconds})

        self.later(seconds, finished)

    def do_fold(self) -> None:
        assert self.candidate is not None
        self.sums.append(self.candidate)
        self.candidate, self.droppable = None, True

    def do_discard(self) -> None:
        self.candidate = None

    def do_drop_last(self) -> None:
        assert self.droppable, "the memory of the sums before was given back"
        self.sums.pop()
        self.droppable = False

    def do_clear(self, *, base: bool) -> None:
        self.sums = []
        if base:
            self.scale = 0

    def do_raise_scale(self) -> None:
        self.scale, self.sums = self.scale + 1, []

    def do_load(self) -> None:
        def loaded() -> None:
            step = max(self.world.checkpoints)
            self.step, self.state, self.scale, self.sums = step, self.world.checkpoints[step], 0, []
            self.take({"type": "loaded", "step": step, "state_hash": f"{self.state:x}"})

        self.later(self.world.draw(0.05, 0.3), loaded)

    def do_start_ring(self, members: list[Any], epoch: int, step: int, attempt: int) -> None:
        assert step == self.step
        self.world.join_ring((epoch, step, attempt), self, [m["name"] for m in members])

    def do_abort_ring(self) -> None:
        self.world.break_rings(self)

    def ring_done(self, key: tuple[int, int, int], total: int) -> None:
        epoch, step, attempt = key
        self.totals = (step, total)
        overflow = int(step in OVERFLOWING and self.scale == 0)
        self.take(
            {
                "type": "ring_done",
                "epoch": epoch,
                "step": step,
                "attempt": attempt,
                "hash": f"{total:x}",
                "loss": 1 << 20,
                "tokens": 1,
                "overflow": overflow,
                "nonfinite": 0,
                "vanished": 0,
            }
        )

    def do_apply(self, step: int, *, hash_state: bool) -> None:
        assert self.totals is not None
        assert self.totals[0] == step == self.step
        assert self.world.log.sum_hash(step) == f"{self.totals[1]:x}", "applied, not committed"

        def applied() -> None:
            assert self.totals is not None
            self.applies += 1
            self.state = _number("apply", self.state, step, self.totals[1])
            self.step, self.scale, self.sums = step + 1, 0, []
            self.take(
                {
                    "type": "applied",
                    "step": self.step,
                    "grad_norm": 1.0,
                    "state_hash": f"{self.state:x}" if hash_state else None,
                }
            )

        self.later(self.world.draw(0.01, 0.05), applied)

    def do_checkpoint(self, step: int) -> None:
        assert step == self.step
        state = self.state

        def written() -> None:
            self.world.checkpoints[step] = state
            self.take(
                {
                    "type": "checkpointed",
                    "step": step,
                    "state_hash": f"{state:x}",
                    "path": f"step-{step}",
                    "seconds": 0.1,
                    "stall_s": 0.0,
                }
            )

        self.later(0.01, lambda: self.take({"type": "snapshot_taken", "step": step}))
        self.later(self.world.draw(0.05, 0.4), written)

    def do_send_state(self, step: int, attempt: int, island: str, host: str, port: int) -> None:
        handed, applies = (self.step, self.state, self.scale), self.applies
        assert self.step == step
        receiver = self.world.islands[island]
        sending = self.sending[island] = _Sending(until=self.world.now + 60.0)

        def go_on() -> None:
            """End with the last byte; a receiver that does not read leaves us blocked in it."""
            # Only an apply changes a state in place; a load puts another one beside it.
            assert self.applies == applies, "the donor's state changed meanwhile"
            now = self.world.now
            stuck = receiver.alive and now < receiver.frozen_until
            if stuck and not sending.cancelled and now < sending.until:
                self.later(0.02, go_on)
                return
            if not sending.cancelled:
                self.world.hand_over(island, (step, attempt, self.name), handed)
            self.take({"type": "state_sent"})

        self.later(self.world.draw(0.05, 0.4), go_on)

    def do_cancel_send(self, island: str) -> None:
        if island in self.sending:
            self.sending.pop(island).cancelled = True

    def do_receive_state(self, ticket: int, step: int, attempt: int, donor: str) -> None:
        self.expecting = expected = (step, attempt, donor, ticket)
        if self.freezes_in_transfer:
            self.frozen_until = self.world.now + self.freezes_in_transfer
            self.freezes_in_transfer = 0.0

        def give_up() -> None:
            if self.expecting == expected:
                self.expecting = None
                self.take({"type": "receive_failed", "reason": "time-out", "ticket": ticket})

        self.later(2.0, give_up)

    def do_install(self, ticket: int, step: int, attempt: int) -> None:
        handed = self.arrived.pop(ticket)

        def installed() -> None:
            self.step, self.state, self.scale = handed
            self.sums = []
            assert step == self.step
            self.take({"type": "installed", "step": step, "attempt": attempt})

        self.later(0.01, installed)

    def do_exit(self, reason: str) -> None:
        self.alive = False
        self.world.gone(self, told=True)


class World:
    """Time, messages, processes and faults."""

    def __init__(self, seed: int, islands: int) -> None:
        self.random = random.Random(seed)
        self.plan = _plan(islands)
        self.now = 0.0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.serial = 0
        self.log = MemoryLog()
        self.checkpoints: dict[int, int] = {0: 0}
        self.core: Coordinator | None = None
        self.incarnation = 0
        self.phase: str | None = None
        self.error: str | None = None
        self.islands: dict[str, SimIsland] = {}
        self.connections: dict[str, int] = {}
        self.rings: dict[tuple[int, int, int], dict[str, int]] = {}
        self.broken: set[tuple[int, int, int]] = set()
        self.spawned = 0
        self.events: list[tuple[float, str, dict[str, Any]]] = []

    def draw(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)

    def after(self, delay: float, work: Callable[[], None]) -> None:
        self.serial += 1
        heapq.heappush(self.queue, (self.now + delay, self.serial, work))

    # ---- coordinator process

    def start_coordinator(self, *, restart: bool) -> None:
        self.incarnation += 1
        self.connections.clear()
        epoch, members = self.log.epochs[-1]
        self.core = Coordinator(
            self.plan,
            last_step=self.log.last_step(),
            last_epoch=epoch,
            expected=tuple(members) if restart else (),
            now=self.now,
            known_sum=self.log.sum_hash,
        )
        self.after(0.1, lambda mine=self.incarnation: self.tick(mine))

    def tick(self, incarnation: int) -> None:
        if incarnation == self.incarnation and self.core is not None:
            self.event({"type": "tick"})
            self.after(0.1, lambda: self.tick(incarnation))

    def kill_coordinator(self) -> None:
        if self.core is None:
            return
        self.core = None
        self.connections.clear()
        for island in self.islands.values():
            island.connection = None
        self.after(self.draw(0.05, 0.5), self.revive_coordinator)

    def revive_coordinator(self) -> None:
        if self.phase is None:
            self.start_coordinator(restart=True)

    def event(self, event: dict[str, Any]) -> None:
        if self.core is None or self.phase is not None:
            return
        try:
            for action in self.core.handle(event, self.now):
                self.carry_out(action)
        except CoordinationError as error:
            self.phase, self.error = "failed", str(error)

    def carry_out(self, action: object) -> None:
        match action:
            case Send(name, message):
                connection = self.connections.get(name)
                island = self.islands[name]
                if connection is not None:
                    self.deliver(island, connection, message)
            case Close(name):
                self.connections.pop(name, None)
                self.islands[name].connection = None
            case AppendCommit(commit):
                self.log.append(commit)
            case AppendEpoch(epoch, members):
                assert epoch == self.log.epochs[-1][0] + 1
                self.log.epochs.append((epoch, list(members)))
            case AppendCheckpoint():
                pass
            case Emit(kind, fields):
                self.events.append((self.now, kind, fields))
            case Finish(phase):
                assert self.core is not None
                self.phase, self.error = phase, self.core.error

    def deliver(self, island: SimIsland, connection: int, message: dict[str, Any]) -> None:
        def arrive() -> None:
            if island.connection == connection:
                island.take(message)

        # One latency for all keeps each connection's order, as TCP does.
        island.later(0.002, arrive)

    def to_coordinator(self, island: SimIsland, message: dict[str, Any]) -> None:
        connection = island.connection
        if connection is None:
            return
        check_message(message)

        def arrive() -> None:
            if message["type"] == "hello":
                self.connections[island.name] = connection
                self.event(message)
            elif self.connections.get(island.name) == connection:
                self.event({**message, "island": island.name})

        self.after(0.002, arrive)

    # ---- island processes

    def spawn(self) -> SimIsland:
        island = SimIsland(self, f"island-{self.spawned}")
        self.spawned += 1
        self.islands[island.name] = island
        island.later(self.draw(0.2, 0.6), lambda: self.keep_connected(island))
        island.later(0.2, lambda: self.beat(island))
        return island

    def keep_connected(self, island: SimIsland) -> None:
        if island.connection is None and self.core is not None:
            self.serial += 1
            island.connection = self.serial
            me = {"run_id": self.plan.run_id, "pid": 1, "host": "h", "port": 1}
            island.take({"type": "connected", "me": me})
        island.later(0.1, lambda: self.keep_connected(island))

    def beat(self, island: SimIsland) -> None:
        self.to_coordinator(island, {"type": "heartbeat", "task_s": 0.0})
        island.later(0.2, lambda: self.beat(island))

    def gone(self, island: SimIsland, *, told: bool = False) -> None:
        """A process has ended: its sockets close at once."""
        self.break_rings(island)
        connection, island.connection = island.connection, None

        def noticed() -> None:
            if self.connections.get(island.name) == connection is not None:
                del self.connections[island.name]
                if not told:
                    event = {"type": "lost", "island": island.name, "reason": "closed"}
                    self.event(event)

        self.after(0.005, noticed)

    def kill(self, island: SimIsland, *, replace: bool = True) -> None:
        if island.alive:
            island.alive = False
            self.gone(island)
            if replace:
                self.after(self.draw(0.1, 0.5), self.spawn)

    # ---- rings and transfers

    def join_ring(self, key: tuple[int, int, int], island: SimIsland, members: list[str]) -> None:
        ring = self.rings.setdefault(key, {})
        ring[island.name] = sum(value for _, value in island.sums)
        dead = [name for name in members if not self.islands[name].alive]
        if dead or key in self.broken:
            self.broken.add(key)
            self.fail_ring(key)
        elif len(ring) == len(members):
            total = sum(ring.values())
            for name in members:
                member = self.islands[name]
                member.later(
                    self.draw(0.01, 0.08), lambda m=member: self.finish_ring(key, m, total)
                )

    def finish_ring(self, key: tuple[int, int, int], island: SimIsland, total: int) -> None:
        if island.name in self.rings.get(key, {}):
            del self.rings[key][island.name]
            island.ring_done(key, total)

    def break_rings(self, island: SimIsland) -> None:
        for key, ring in self.rings.items():
            if island.name in ring:
                del ring[island.name]
                self.broken.add(key)
                self.fail_ring(key)

    def fail_ring(self, key: tuple[int, int, int]) -> None:
        for name in list(self.rings[key]):
            member = self.islands[name]
            if self.random.random() < 0.3:
                continue  # this one sees nothing of it until the coordinator tells

            def failed(m: SimIsland = member) -> None:
                if self.rings[key].pop(m.name, None) is not None:
                    epoch, step, attempt = key
                    m.take(
                        {
                            "type": "ring_error",
                            "epoch": epoch,
                            "step": step,
                            "attempt": attempt,
                            "reason": "a neighbour is gone",
                        }
                    )

            member.later(self.draw(0.001, 0.02), failed)

    def hand_over(
        self, name: str, meeting: tuple[int, int, str], handed: tuple[int, int, int]
    ) -> None:
        island = self.islands[name]

        def arrive() -> None:
            if island.expecting is not None and island.expecting[:3] == meeting:
                ticket, island.expecting = island.expecting[3], None
                island.arrived[ticket] = handed
                step, attempt, _ = meeting
                names = {"step": step, "attempt": attempt, "ticket": ticket}
                island.take({"type": "state_arrived", **names})

        island.later(0.01, arrive)

    # ---- the run

    def run(self, limit: float = 600.0) -> None:
        self.start_coordinator(restart=False)
        for _ in range(self.plan.islands):
            self.spawn()
        while self.phase is None and self.queue and self.now < limit:
            self.now, _, work = heapq.heappop(self.queue)
            work()

    def living(self) -> list[SimIsland]:
        return [i for i in self.islands.values() if i.alive]

    def pick(self) -> SimIsland | None:
        living = self.living()
        return self.random.choice(living) if living else None


def _check(world: World) -> None:
    assert world.phase == "done", (world.phase, world.error, world.now, world.events[-5:])
    hashes = [world.log.commits[step].sum_hash for step in range(STEPS)]
    assert hashes == [sum_hash for sum_hash, _ in REFERENCE]
    assert world.checkpoints[STEPS] == REFERENCE[-1][1]
    for commit in world.log.commits.values():
        counted = sorted(shard for shards in commit.shards.values() for shard in shards)
        assert counted == list(range(SHARDS))
    for _, kind, fields in world.events:
        assert kind != "redo" or fields["reason"] in {"membership", "overflow"}


@pytest.mark.parametrize("islands", [1, 2, 3, 5])
def test_undisturbed_runs_agree_for_every_number_of_islands(islands: int) -> None:
    world = World(seed=islands, islands=islands)
    world.run()
    _check(world)
    assert world.log.recommits == 0


def _kill_one(world: World) -> None:
    island = world.pick()
    if island is not None:
        world.kill(island)


def _kill_two(world: World) -> None:
    _kill_one(world)
    _kill_one(world)


def _kill_all(world: World) -> None:
    for island in world.living():
        world.kill(island)


def _kill_everything(world: World) -> None:
    _kill_all(world)
    world.kill_coordinator()


def _freeze(world: World) -> None:
    island = world.pick()
    if island is not None:
        island.frozen_until = world.now + world.draw(0.3, 4.0)


def _slow(world: World) -> None:
    island = world.pick()
    if island is not None:
        island.pace = world.random.choice([1.0, 4.0, 10.0])


def _notice(world: World) -> None:
    island = world.pick()
    if island is not None and len(world.living()) > 1:
        island.later(0, lambda: island.take({"type": "notice", "reason": "reclaim"}))
        world.after(1.0, world.spawn)


def _late_join(world: World) -> None:
    if len(world.living()) < 6:
        world.spawn()


def _frozen_joiner(world: World) -> None:
    if len(world.living()) < 6:
        world.spawn().freezes_in_transfer = world.draw(0.3, 20.0)


FAULTS: dict[str, Callable[[World], None]] = {
    "kill one": _kill_one,
    "kill two": _kill_two,
    "kill all": _kill_all,
    "kill coordinator": World.kill_coordinator,
    "kill everything": _kill_everything,
    "freeze": _freeze,
    "slow": _slow,
    "notice": _notice,
    "late join": _late_join,
    "frozen joiner": _frozen_joiner,
}


@pytest.mark.parametrize("seed", range(10))
def test_a_joiner_that_freezes_in_its_transfer_does_not_hold_up_its_donor(seed: int) -> None:
    world = World(seed=seed, islands=2)
    joiner: list[SimIsland] = []

    def join() -> None:
        joiner.append(world.spawn())
        joiner[0].freezes_in_transfer = 1000.0

    world.after(1.5, join)
    world.run()
    _check(world)
    assert joiner[0].frozen_until > world.now, "the fault struck, and the run ended before it did"
    assert world.now < 30.0


@pytest.mark.parametrize("seed", range(10))
def test_no_shard_is_leased_while_fewer_than_min_islands_are_in(seed: int) -> None:
    world = World(seed=seed, islands=3)
    world.plan = dataclasses.replace(world.plan, min_islands=3)
    for moment in (2.0, 3.0, 4.0):
        world.after(moment, lambda: _kill_one(world))
    world.run()
    _check(world)
    assert all(len(commit.members) >= 2 for commit in world.log.commits.values())
    waiting = [fields for _, kind, fields in world.events if kind == "waiting"]
    assert 1 <= len(waiting) <= 4, "once each time, not once a tick"
    assert all(w["min_islands"] == 3 and len(w["members"]) < 3 for w in waiting)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(25))
def test_one_kind_of_fault_at_any_phase_of_a_step(fault: str, seed: int) -> None:
    world = World(seed=seed * 101 + 7, islands=3)
    moment = 0.8
    for _ in range(4):
        moment += world.draw(0.0, 2.0)
        world.after(moment, lambda: FAULTS[fault](world))
    world.run()
    _check(world)


def _chaos(seed: int, faults: int) -> None:
    world = World(seed=seed, islands=world_size(seed))
    names = list(FAULTS)
    for _ in range(faults):
        fault = FAULTS[world.random.choice(names)]
        world.after(world.draw(0.0, 12.0), lambda f=fault: f(world))
    world.run()
    _check(world)


def world_size(seed: int) -> int:
    """Give one to four islands."""
    return 1 + seed % 4


@pytest.mark.parametrize("seed", range(150))
def test_mixed_faults_end_in_the_bits_of_an_undisturbed_run(seed: int) -> None:
    _chaos(seed, faults=3 + seed % 9)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_fleets() -> None:
    for seed in range(1000, 11000):
        _chaos(seed, faults=3 + seed % 15)
