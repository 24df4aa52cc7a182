"""The coordinator's process: sockets, clock and disk around the state machine.

One asyncio loop. Every event goes through `Coordinator.handle` and its actions are carried out
before the next event is taken, so the order of log writes and messages is the order of actions.

What comes from the wire is checked before the state machine sees it. Any other exception is a bug:
the process ends at once with a traceback in its log and exit code 4, and the supervisor starts
another that goes on from the log.

A coordinator whose log was taken over by another, or whose log's store does not answer, steps down:
it closes every connection without a word, so that the islands keep what they hold and look for the
next one. They would leave for good if it said how the run ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import ssl
import sys
import time
import traceback
from pathlib import Path

from runtime.coordinator import wire
from runtime.coordinator.actions import (
    Action,
    AppendCheckpoint,
    AppendCommit,
    AppendEpoch,
    Close,
    Emit,
    Finish,
    Send,
)
from runtime.coordinator.client import CoordinatorAddress
from runtime.coordinator.commit_log import SupersededError
from runtime.coordinator.core import Coordinator
from runtime.coordinator.events import EventWriter
from runtime.coordinator.fence import LOG_FENCE, Fence
from runtime.coordinator.messages import check_message
from runtime.coordinator.open_log import TablePlace, open_log
from runtime.coordinator.plan import RunPlan
from runtime.coordinator.status import status
from runtime.coordinator.tls import run_tls
from runtime.coordinator.wire import Message
from runtime.spec.aws import AwsError
from runtime.spec.errors import CoordinationError, LumaError

_TICK_S = 0.1
_LINGER_S = 2.0
_FIRST_MESSAGE_S = 10.0
_LOOK_AROUND_S = 5.0
"""Between two looks at whether the log was taken over: a coordinator that waits for islands writes
nothing, and would keep them from the one that replaced it."""
LOOPBACK = "127.0.0.1"
_CRASHED = 4


class CoordinatorServer:
    """Serves one run until it is done, stopped or failed.

    Args:
        run_dir: the run folder; holds the plan, the log and the address file.
        restart: a coordinator of this run died and its islands may be alive.
        place: where else than in the run folder the log lies.
        host: address to listen on and to publish; anything but a loopback address needs the run's
            `tls/`.

    Raises:
        CoordinationError: another coordinator works on this run.
        RunError: the plan or the log cannot be read.
        AwsError: the log's table cannot be used.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        restart: bool,
        place: TablePlace | None = None,
        host: str = LOOPBACK,
    ) -> None:
        self._run_dir = run_dir
        self._host = host
        self._tls = run_tls(run_dir, host)
        self._in_account = place is not None
        self._plan = RunPlan.read(run_dir)
        self._fence = _only_coordinator(run_dir)
        self._log = open_log(run_dir, place)
        self._events = EventWriter(run_dir)
        self._gave_way: LumaError | None = None
        self._connections: dict[str, asyncio.StreamWriter] = {}
        self._finished = asyncio.Event()
        known = self._log.address() or CoordinatorAddress.read(run_dir)
        self._token = known.token if known is not None else secrets.token_hex(16)
        epoch, members = self._log.last_epoch()
        self._core = Coordinator(
            self._plan,
            last_step=self._log.last_step(),
            last_epoch=epoch,
            expected=tuple(members) if restart else (),
            now=time.monotonic(),
            known_sum=self._log.sum_hash,
        )
        self._events.write("coordinator_started", pid=os.getpid(), restart=restart)

    async def serve(self) -> str:
        """Listen until the run ends; give the last phase: done, stopped or failed.

        Raises:
            SupersededError: another coordinator has taken over.
            AwsError: the log's store does not answer.
        """
        server = await asyncio.start_server(
            self._serve_connection,
            self._host,
            0,
            ssl=None if self._tls is None else self._tls.server,
            ssl_handshake_timeout=None if self._tls is None else _FIRST_MESSAGE_S,
        )
        port = server.sockets[0].getsockname()[1]
        address = CoordinatorAddress(host=self._host, port=port, pid=os.getpid(), token=self._token)
        self._log.publish(address)
        address.write(self._run_dir)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._take, {"type": "stop"})
        ticker = asyncio.create_task(self._tick_forever())
        finished = asyncio.create_task(self._finished.wait())
        await asyncio.wait({ticker, finished}, return_when=asyncio.FIRST_COMPLETED)
        if not finished.done():
            ticker.result()  # it ends before the run only by an exception
        await self._linger()
        ticker.cancel()
        server.close()
        self._log.close()
        self._events.close()
        self._fence.close()
        if self._gave_way is not None:
            raise self._gave_way
        return self._core.phase

    async def _linger(self) -> None:
        """Give the islands a moment to read `exit` and to go by themselves."""
        deadline = time.monotonic() + _LINGER_S
        while self._connections and time.monotonic() < deadline:  # noqa: ASYNC110 - at exit only
            await asyncio.sleep(_TICK_S / 2)
        for writer in list(self._connections.values()):
            writer.close()

    async def _tick_forever(self) -> None:
        parent = os.getppid()
        looked = time.monotonic()
        while not self._finished.is_set():
            await asyncio.sleep(_TICK_S)
            if time.monotonic() - looked > _LOOK_AROUND_S:
                self._look_around()
                looked = time.monotonic()
            if os.getppid() != parent:  # the launcher is gone: nobody would see the run end
                self._orphaned()
                parent = os.getppid()
            self._take({"type": "tick"})

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            first = await self._first_message(reader) if self._is_ours(writer) else None
            if first is None:
                return
            if first["type"] != "hello":
                await self._answer(first, writer)
            elif first["run_id"] != self._plan.run_id:
                await self._refuse(first, writer)
            else:
                await self._serve_island(first["island"], first, reader, writer)
        except Exception:  # noqa: BLE001 - a bug must not leave a coordinator that is half alive
            _end_visibly()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, OSError):
                await writer.wait_closed()

    def _is_ours(self, writer: asyncio.StreamWriter) -> bool:
        """Tell whether the other side showed exactly the run's certificate, where there is one."""
        if self._tls is None:
            return True
        try:
            self._tls.check(writer.get_extra_info("ssl_object"))
        except ssl.SSLError:
            return False
        return True

    async def _first_message(self, reader: asyncio.StreamReader) -> Message | None:
        """Read how a connection begins; None for one that is not of this run: it gets no answer."""
        try:
            first = await asyncio.wait_for(wire.receive(reader), timeout=_FIRST_MESSAGE_S)
        except (CoordinationError, TimeoutError):
            return None
        if first is None or not self._knows(first):
            return None
        if first["type"] != "hello":
            return first
        try:
            return check_message(first)
        except CoordinationError as error:
            _log(f"a connection was closed: {error.message}")
            return None

    async def _refuse(self, hello: Message, writer: asyncio.StreamWriter) -> None:
        """Let an island of an older run in this folder go; ours of the same name stays."""
        reason = "it belongs to another run"
        self._take({"type": "stranger", "name": hello["island"], "reason": reason})
        await _write(writer, {"type": "exit", "reason": "refused"})

    def _knows(self, message: Message) -> bool:
        shown = str(message.get("token", "")).encode(errors="replace")
        return secrets.compare_digest(shown, self._token.encode())

    async def _answer(self, message: Message, writer: asyncio.StreamWriter) -> None:
        if message["type"] == "stop":
            self._take({"type": "stop"})
            await _write(writer, {"type": "stopping"})
            return
        answer = {**status(self._core), "coordinator": {"pid": os.getpid()}}
        await _write(writer, {"type": "status", **answer})

    async def _serve_island(
        self,
        name: str,
        hello: Message,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        before = self._connections.pop(name, None)
        if before is not None:
            before.close()
        self._connections[name] = writer
        reason = "connection closed"
        try:
            self._take(hello)
            while (message := await _next_of_island(reader)) is not None:
                if self._connections.get(name) is not writer:
                    return  # closed while the message was under way: it counts no more
                self._take({**message, "island": name})
        except CoordinationError as error:
            reason = f"it broke the protocol: {error.message}"
            _log(f"{name} was closed: {error.message}")
        finally:
            if self._connections.get(name) is writer:
                del self._connections[name]
                self._take({"type": "lost", "island": name, "reason": reason})

    def _orphaned(self) -> None:
        """End the run resumably, or leave it to the coordinator of another node."""
        if self._in_account:
            self._give_way(CoordinationError("the daemon of this node is gone"))
        else:
            self._take({"type": "stop"})

    def _look_around(self) -> None:
        try:
            self._log.check_alone()
        except (SupersededError, AwsError) as error:
            if _must_give_way(error):
                self._give_way(error)

    def _take(self, event: Message) -> None:
        if self._finished.is_set():
            return
        try:
            self._handle(event)
        except Exception:  # noqa: BLE001 - half a transition may have been carried out
            _end_visibly()

    def _handle(self, event: Message) -> None:
        try:
            for action in self._core.handle(event, time.monotonic()):
                self._carry_out(action)
        except LumaError as error:
            if _must_give_way(error):
                self._give_way(error)
            else:
                self._give_up(error)

    def _give_way(self, error: LumaError) -> None:
        """Leave the run to another coordinator, and the islands as they are."""
        self._gave_way = error
        while self._connections:
            _, writer = self._connections.popitem()
            writer.transport.abort()
        self._finished.set()

    def _give_up(self, error: LumaError) -> None:
        """End the run with what went wrong, even where that cannot be written down any more."""
        failure = {"type": "failure", "error": error.diagnostics()}
        for action in self._core.handle(failure, time.monotonic()):
            with contextlib.suppress(LumaError):
                self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Send(island, message):
                writer = self._connections.get(island)
                if writer is not None and not writer.is_closing():
                    writer.write(wire.encode(message))
            case Close(island):
                writer = self._connections.pop(island, None)
                if writer is not None:
                    writer.transport.abort()
            case AppendCommit(commit):
                self._log.append(commit)
            case AppendEpoch(epoch, members):
                self._log.append_epoch(epoch, list(members))
            case AppendCheckpoint(step, state_hash, path):
                self._log.append_checkpoint(step, state_hash, path)
            case Emit(kind, fields):
                self._events.write(kind, **fields)
            case Finish():
                self._finished.set()


def _only_coordinator(run_dir: Path) -> Fence:
    """Make sure that nobody else appends to this run's log.

    Raises:
        CoordinationError: another coordinator does, or the lock cannot be made.
    """
    try:
        return Fence(run_dir / LOG_FENCE)
    except BlockingIOError:
        raise CoordinationError(
            f"another coordinator works on '{run_dir}': it holds {LOG_FENCE}",
            remedy="stop it with `luma cancel`, or wait for it, then `luma launch --resume`",
        ) from None


def _must_give_way(error: LumaError) -> bool:
    """Tell an error that another coordinator would not meet, or not later, from one that it would."""
    return isinstance(error, SupersededError) or (isinstance(error, AwsError) and error.elsewhere)


async def _next_of_island(reader: asyncio.StreamReader) -> Message | None:
    """Read an island's next message, whole and with its fields, or None at the end."""
    message = await wire.receive(reader)
    return None if message is None else check_message(message)


async def _write(writer: asyncio.StreamWriter, message: Message) -> None:
    with contextlib.suppress(OSError):  # it did not wait for the answer
        writer.write(wire.encode(message))
        await writer.drain()


def _end_visibly() -> None:
    """End the process on a bug, with the traceback of the exception in hand."""
    _log(traceback.format_exc())
    os._exit(_CRASHED)


def _log(text: str) -> None:
    """Write to the process's own log, which the launcher puts into the run folder."""
    print(text.rstrip(), file=sys.stderr, flush=True)  # noqa: T201
