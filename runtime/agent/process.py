"""The island's process: threads, sockets and disk around the step logic.

The asyncio loop owns `IslandCore`: every event passes through it there, and its actions are handed
to threads. One thread computes (programs run one after another), one drives the ring, one writes
checkpoints; short-lived ones move state. A thread's end comes back to the loop as an event.

When the coordinator is gone the island goes on with what it was leased and tries to reach a new
one, whose address appears in the run folder; it gives up when its patience ends, and after
`_ORPHAN_PATIENCE_S` when its launcher is gone too: nobody would start a coordinator again. On a
node of an account the launcher is the node's daemon, which also brings the address.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.agent.checkpoint_manifest import CheckpointInfo
from runtime.agent.checkpoints import CheckpointStore
from runtime.agent.core import Do, IslandCore, Send
from runtime.agent.exit_codes import ExitCode
from runtime.agent.peers import Meeting, PeerError, PeerServer, dial, interrupt
from runtime.agent.ring import Ring, RingTag
from runtime.agent.settings import LOCAL, IslandSettings
from runtime.agent.trainer import COUNTERS, Totals, Trainer
from runtime.agent.transfer import HandedState, receive_state, send_state
from runtime.coordinator import wire
from runtime.coordinator.client import CoordinatorAddress
from runtime.coordinator.plan import RunPlan
from runtime.coordinator.wire import Message
from runtime.spec.aws import AwsError, is_loopback
from runtime.spec.errors import CoordinationError, LumaError

_RETRY_S = 0.1
_ORPHAN_PATIENCE_S = 5.0
_HANDSHAKE_S = 10.0
_STOPPED_S = 1.0
_TRANSFER_TIMEOUT_S = 60.0
_EXIT_CODES = {
    "done": ExitCode.DONE,
    "stopped": ExitCode.DONE,
    "left": ExitCode.DONE,
    "failed": ExitCode.FAILED,
    "refused": ExitCode.REFUSED,
    "wedged": ExitCode.CRASHED,
}


@dataclass(slots=True)
class _Outgoing:
    """A hand-over to another island; whoever sets one field looks at the other afterwards."""

    connection: socket.socket | None = None
    cancelled: bool = False


class IslandProcess:
    """Runs one island until the coordinator lets it go.

    Args:
        run_dir: the run folder.
        name: the island's name.
        plan: the run's plan.
        trainer: computes; used by one thread at a time.
        store: reads and writes checkpoints.
        settings: where the island stands.
    """

    def __init__(
        self,
        run_dir: Path,
        name: str,
        *,
        plan: RunPlan,
        trainer: Trainer,
        store: CheckpointStore,
        settings: IslandSettings = LOCAL,
    ) -> None:
        self._run_dir = run_dir
        self._plan = plan
        self._trainer = trainer
        self._store = store
        self._settings = settings
        self._core = IslandCore(name)
        self._writer: asyncio.StreamWriter | None = None
        self._compute = ThreadPoolExecutor(1, "compute")
        self._ring_thread = ThreadPoolExecutor(1, "ring")
        self._moves = ThreadPoolExecutor(4, "moves")
        self._checkpoint_thread = ThreadPoolExecutor(1, "checkpoint")
        self._peers: PeerServer | None = None
        self._token = ""
        self._secret = ""
        self._ring: Ring | None = None
        self._totals: Totals | None = None
        self._ticket = -1
        self._arrived: dict[int, HandedState] = {}
        self._outgoing: dict[str, _Outgoing] = {}
        self._busy_since: float | None = None
        self._stopped_s = 0.0
        self._hash_s = 0.0
        self._said = ""
        self._exit: asyncio.Future[int] | None = None

    async def run(self) -> int:
        """Serve until told to go; give the process's exit code."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_end_visibly)
        self._exit = self._loop.create_future()
        self._loop.add_signal_handler(
            signal.SIGTERM, self._take, {"type": "notice", "reason": "SIGTERM"}
        )
        self._loop.add_signal_handler(signal.SIGINT, lambda: None)  # the launcher decides
        heart = asyncio.create_task(self._beat())
        link = asyncio.create_task(self._stay_connected())
        done, _ = await asyncio.wait({self._exit, link}, return_when=asyncio.FIRST_COMPLETED)
        heart.cancel()
        link.cancel()
        code = self._exit.result() if self._exit in done else link.result()
        await self._say_goodbye()
        return code

    async def _say_goodbye(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(ConnectionError, OSError, TimeoutError):
                await asyncio.wait_for(self._writer.drain(), 1.0)
            self._writer.close()

    # ------------------------------------------------------------ coordinator

    async def _stay_connected(self) -> int:
        """Keep a connection to whatever coordinator the run has; end when none comes back."""
        parent = os.getppid()
        alone_since = time.monotonic()
        while True:
            patience_s = self._settings.patience_s
            if os.getppid() != parent:
                patience_s = min(patience_s, _ORPHAN_PATIENCE_S)
            if time.monotonic() - alone_since > patience_s:
                break
            if await self._one_connection():
                alone_since = time.monotonic()
            await asyncio.sleep(_RETRY_S)
        _log(f"no coordinator for {patience_s:.0f} s: giving up; the run can be resumed")
        return ExitCode.LOST_COORDINATOR

    async def _one_connection(self) -> bool:
        """Connect, serve until the connection ends; False when there was nobody."""
        address = CoordinatorAddress.read(self._run_dir)
        if address is None:
            return False
        try:
            reader, writer = await self._open(address)
        except OSError as error:
            self._say_once(f"no coordinator at {address.host}:{address.port} ({error})")
            return False
        self._join_run(address.token)
        self._writer = writer
        assert self._peers is not None  # noqa: S101 - made by _join_run
        me = {
            "run_id": self._plan.run_id,
            "pid": os.getpid(),
            "host": self._peers.host,
            "port": self._peers.port,
            "token": address.token,
            "chip_class": self._trainer.chip_class,
        }
        self._take({"type": "connected", "me": me})
        heard = await self._listen(reader)
        self._writer = None
        writer.close()
        return heard

    def _say_once(self, text: str) -> None:
        """Write a line to the log, unless it is the one that was written last in this way."""
        if text != self._said:
            _log(text)
            self._said = text

    async def _open(
        self, address: CoordinatorAddress
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a coordinator.

        Raises:
            OSError: nobody of the run listens there, or it is another machine and there is no TLS.
        """
        tls = self._settings.tls
        if tls is None:
            if not is_loopback(address.host):
                raise OSError(f"{address.host} is another machine, and this run has no TLS")
            return await asyncio.open_connection(address.host, address.port)
        reader, writer = await asyncio.open_connection(
            address.host, address.port, ssl=tls.client, ssl_handshake_timeout=_HANDSHAKE_S
        )
        try:
            tls.check(writer.get_extra_info("ssl_object"))
        except OSError:
            writer.transport.abort()
            raise
        return reader, writer

    async def _listen(self, reader: asyncio.StreamReader) -> bool:
        heard = False
        try:
            while (message := await wire.receive(reader)) is not None:
                heard = True
                self._take(message)
        except CoordinationError as error:
            _log(error.diagnostics())
        return heard

    def _join_run(self, token: str) -> None:
        if self._peers is None or self._token != token:
            self._token = token
            # An island of an older run in this folder may know the token, and never the id.
            self._secret = f"{self._plan.run_id}/{token}"
            self._peers = PeerServer(self._secret, self._settings.host, tls=self._settings.tls)

    async def _beat(self) -> None:
        interval = min(1.0, self._plan.heartbeat_timeout_s / 4)
        while True:
            before = time.monotonic()
            await asyncio.sleep(interval)
            late = time.monotonic() - before - interval
            if late > _STOPPED_S:  # SIGSTOP: nothing was computed meanwhile, so nothing hangs
                self._stopped_s += late
            since = self._busy_since
            task_s = 0.0 if since is None else self._awake() - since
            self._tell({"type": "heartbeat", "task_s": round(max(task_s, 0.0), 3)})

    def _awake(self) -> float:
        """Give the time in which this process was not stopped, in seconds."""
        return time.monotonic() - self._stopped_s

    def _tell(self, message: Message) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(wire.encode(message))

    # ----------------------------------------------------------------- actions

    def _take(self, event: Message) -> None:
        """Pass one event through the step logic and carry out what it asks for."""
        for action in self._core.handle(event):
            match action:
                case Send(message):
                    self._tell(message)
                case Do(kind, fields):
                    getattr(self, f"_do_{kind}")(**fields)

    def _in_thread(self, pool: ThreadPoolExecutor, work: Callable[[], Message | None]) -> None:
        """Run `work` in a pool; the event that it gives comes back through the loop."""

        def guarded() -> None:
            try:
                event = work()
            except LumaError as error:
                if isinstance(error, AwsError) and error.elsewhere:
                    # Another island may get an answer, or this one's successor.
                    _log(error.diagnostics())
                    os._exit(ExitCode.CRASHED)
                event = {"type": "fatal", "error": error.diagnostics()}
            except BaseException:  # noqa: BLE001 - a thread's death must end the island visibly
                _log(traceback.format_exc())
                os._exit(ExitCode.CRASHED)
            if event is not None:
                self._loop.call_soon_threadsafe(self._take, event)

        pool.submit(guarded)

    def _computing(self, work: Callable[[], Message]) -> None:
        """Run `work` in the compute thread, one at a time, and know for how long."""

        def timed() -> Message:
            try:
                return work()
            finally:
                self._busy_since = None

        self._busy_since = self._awake()
        self._in_thread(self._compute, timed)

    def _do_run_shard(self, step: int, shard: int) -> None:
        def work() -> Message:
            begin = time.perf_counter()
            self._trainer.run_shard(step, shard)
            seconds = time.perf_counter() - begin
            return {"type": "shard_finished", "step": step, "shard": shard, "seconds": seconds}

        self._computing(work)

    def _do_fold(self) -> None:
        self._trainer.fold()

    def _do_discard(self) -> None:
        self._trainer.discard()

    def _do_drop_last(self) -> None:
        self._trainer.drop_last()

    def _do_clear(self, *, base: bool) -> None:
        # At once, not behind the shard that the compute thread may still be in: that shard's result
        # is discarded, and a ring or a hand-over may start before it ends and must not see the old
        # sums or the old scale.
        self._trainer.clear(base=base)

    def _do_raise_scale(self) -> None:
        self._trainer.raise_scale(self._reduced())  # at once, as in `_do_clear`

    def _do_load(self) -> None:
        def find() -> None:
            # No computation: from a bucket it may take longer than one that counts as wedged.
            info = self._store.find_newest()
            self._loop.call_soon_threadsafe(self._load, info)

        self._in_thread(self._moves, find)

    def _load(self, info: CheckpointInfo) -> None:
        def work() -> Message:
            state = self._store.load(info)
            self._trainer.load_state(state)
            return {"type": "loaded", "step": state.step, "state_hash": info.state_hash}

        self._computing(work)

    def _do_apply(self, step: int, *, hash_state: bool) -> None:
        totals = self._reduced()

        def work() -> Message:
            norm = self._trainer.apply(totals)
            threads = self._plan.threads_per_island  # one alone hashes 1.6 GB for a second
            begin = time.perf_counter()
            state_hash = self._trainer.state().hash(threads=threads) if hash_state else None
            self._hash_s = time.perf_counter() - begin
            return {
                "type": "applied",
                "step": step + 1,
                "grad_norm": norm,
                "state_hash": state_hash,
            }

        self._computing(work)

    def _do_checkpoint(self, step: int) -> None:
        def work() -> Message:
            begin = time.perf_counter()
            snapshot = self._store.take_snapshot(self._trainer.state())
            # Training stands still for the hash of the state too, which `apply` has taken.
            stall_s = time.perf_counter() - begin + self._hash_s
            self._in_thread(
                self._checkpoint_thread, lambda: self._store.write(snapshot, stall_s=stall_s)
            )
            return {"type": "snapshot_taken", "step": step}

        self._computing(work)

    def _do_exit(self, reason: str) -> None:
        if self._exit is not None and not self._exit.done():
            self._exit.set_result(_EXIT_CODES.get(reason, ExitCode.FAILED))

    # ---------------------------------------------------------- ring, transfer

    def _do_start_ring(
        self, members: list[dict[str, Any]], epoch: int, step: int, attempt: int
    ) -> None:
        tag = RingTag(epoch=epoch, step=step, attempt=attempt)
        assert self._peers is not None  # noqa: S101 - a ring starts only after a connection
        ring = Ring(
            tag,
            me=self._core.name,
            members=[(m["name"], m["host"], m["port"]) for m in members],
            server=self._peers,
            token=self._secret,
            tls=self._settings.tls,
        )
        self._ring = ring
        self._in_thread(self._ring_thread, lambda: self._reduce(ring, tag, len(members)))

    def _reduce(self, ring: Ring, tag: RingTag, size: int) -> Message:
        names = {"epoch": tag.epoch, "step": tag.step, "attempt": tag.attempt}
        try:
            totals = self._exchange(ring, size)
        except PeerError as error:
            return {"type": "ring_error", "reason": error.message, **names}
        finally:
            ring.close()
        self._totals = totals
        counters = dict(zip(COUNTERS, (int(n) for n in totals.counters), strict=True))
        return {"type": "ring_done", "hash": self._trainer.hash_totals(totals), **names, **counters}

    def _exchange(self, ring: Ring, size: int) -> Totals:
        if size == 1:
            return self._trainer.own_totals()
        ring.connect()
        totals = self._trainer.totals_to_reduce()
        assert totals.grads is not None  # noqa: S101 - copied by totals_to_reduce
        ring.all_reduce(totals.grads, "sum")
        ring.all_reduce(totals.maxima, "max")
        ring.all_reduce(totals.counters, "sum")
        return totals

    def _do_abort_ring(self) -> None:
        if self._ring is not None:
            self._ring.cancel()

    def _reduced(self) -> Totals:
        if self._totals is None:
            raise RuntimeError("a commit came before this island had the step's sum")
        return self._totals

    def _do_send_state(self, step: int, attempt: int, island: str, host: str, port: int) -> None:
        handed = self._trainer.handed_state(attempt)
        meeting = Meeting("state", f"{step}/{attempt}", self._core.name)
        outgoing = self._outgoing[island] = _Outgoing()
        tls = self._settings.tls

        def work() -> Message:
            try:
                with dial(
                    (host, port), meeting, self._secret, timeout_s=5.0, tls=tls
                ) as connection:
                    connection.settimeout(_TRANSFER_TIMEOUT_S)
                    outgoing.connection = connection
                    if not outgoing.cancelled:
                        send_state(connection, handed)
            except PeerError as error:
                _log(f"state for {island}: {error.message}")
            return {"type": "state_sent"}

        self._in_thread(self._moves, work)

    def _do_cancel_send(self, island: str) -> None:
        outgoing = self._outgoing.pop(island, None)
        if outgoing is not None:
            outgoing.cancelled = True
            if outgoing.connection is not None:
                interrupt(outgoing.connection)

    def _do_receive_state(self, ticket: int, step: int, attempt: int, donor: str) -> None:
        self._ticket, peers = ticket, self._peers
        assert peers is not None  # noqa: S101 - made when the connection was
        meeting = Meeting("state", f"{step}/{attempt}", donor)

        def work() -> Message:
            names = {"ticket": ticket, "step": step, "attempt": attempt}
            try:
                with peers.wait_for(
                    meeting,
                    cancelled=lambda: self._ticket != ticket,
                    timeout_s=_TRANSFER_TIMEOUT_S,
                ) as connection:
                    connection.settimeout(_TRANSFER_TIMEOUT_S)
                    self._arrived[ticket] = receive_state(connection)
            except PeerError as error:
                return {"type": "receive_failed", "reason": error.message, **names}
            return {"type": "state_arrived", **names}

        self._in_thread(self._moves, work)

    def _do_install(self, ticket: int, step: int, attempt: int) -> None:
        handed = self._arrived.pop(ticket)
        self._arrived.clear()  # of transfers that were overtaken

        def work() -> Message:
            self._trainer.set_state(handed)
            return {"type": "installed", "step": step, "attempt": attempt}

        self._computing(work)


def _end_visibly(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End the island when its loop meets a bug: a dead island is replaced, a mute one is not."""
    error = context.get("exception")
    _log(context["message"])
    if error is not None:
        _log("".join(traceback.format_exception(error)))
    os._exit(4)


def _log(text: str) -> None:
    """Write to the process's own log, which the launcher puts into the run folder."""
    print(text.rstrip(), file=sys.stderr, flush=True)  # noqa: T201
