"""`serve`: the gateway's process, from a checkpoint folder to an exit code.

At SIGTERM or SIGINT: readiness turns to 503 and new requests are refused; after a moment for load
balancers to notice, requests in flight get their time; what is left is failed visibly; then the
listener closes and the back end's process group is ended. A second signal skips the waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from runtime.serve.back_ends.protocol import BackEnd
from runtime.serve.back_ends.transformers import TransformersBackEnd
from runtime.serve.checkpoint import Servable, read_servable
from runtime.serve.gateway import Gateway
from runtime.serve.limits import Limits
from runtime.spec import ServeError

_log = logging.getLogger("luma.serve")

_INTERRUPTED = 130
BACK_ENDS = ("transformers",)
"""The names that `back_end` may have."""


def serve(
    checkpoint: Path,
    *,
    model_name: str,
    host: str,
    port: int,
    api_key: str | None = None,
    back_end: str = "transformers",
    on_ready: Callable[[str], None] | None = None,
    limits: Limits | None = None,
) -> int:
    """Serve a checkpoint until a signal ends it.

    Args:
        checkpoint: a checkpoint folder in HF format, with its tokenizer.
        model_name: the model's name for clients.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        api_key: what clients must send as bearer token, or None for no key.
        back_end: which engine; one of `BACK_ENDS`.
        on_ready: called once with the base URL, such as `http://127.0.0.1:8000`, when a request
            would be answered.
        limits: sizes, counts and deadlines; None takes the defaults.

    Returns:
        0 after SIGTERM, 130 after SIGINT.

    Raises:
        ServeError: with exit code 2 for a folder, back end, address or port that cannot be used;
            with 1 if the engine does not start, or dies again and again.
    """
    limits = limits or Limits()
    servable = read_servable(checkpoint)
    engine = _make_back_end(back_end, servable, limits)
    listener = _bind(host, port)
    with contextlib.closing(listener):
        gateway = Gateway(engine, servable, model_name=model_name, api_key=api_key, limits=limits)
        service = _Service(
            engine=engine,
            gateway=gateway,
            limits=limits,
            listener=listener,
            url=_url(host, listener),
            on_ready=on_ready,
        )
        return asyncio.run(service.run())


def _make_back_end(name: str, servable: Servable, limits: Limits) -> BackEnd:
    if name != "transformers":
        message = f"back_end: {name!r} is unknown; expected one of {', '.join(BACK_ENDS)}"
        raise ServeError(message, exit_code=2)
    return TransformersBackEnd(servable.path, start_s=limits.start_s)


def _bind(host: str, port: int) -> socket.socket:
    """Take the port before the engine loads: a port in use is known at once."""
    try:
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = info[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        message = f"host: {host!r} is not an address of this machine"
        raise ServeError(message, exit_code=2) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # Linux lets two sockets with SO_REUSEADDR bind one port while neither listens.
        listener.listen(1024)
    except OSError as error:
        listener.close()
        why = (
            "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        )
        message = f"port: {port} on {host} {why}"
        raise ServeError(message, remedy="choose another --port", exit_code=2) from error
    return listener


def _url(host: str, listener: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: it would close the listener first, and drain after."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@dataclass(kw_only=True)
class _Service:
    """The running parts, and the order in which they start and end."""

    engine: BackEnd
    gateway: Gateway
    limits: Limits
    listener: socket.socket
    url: str
    on_ready: Callable[[str], None] | None

    def __post_init__(self) -> None:
        self._signals: list[signal.Signals] = []
        self._told = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> int:
        """Run until a signal, or until the engine cannot be kept alive."""
        self._listen_to_signals()
        server = _Server(_uvicorn_config(self.gateway))
        http = asyncio.create_task(server.serve(sockets=[self.listener]))
        supervisor = asyncio.create_task(self._supervise())
        told = asyncio.create_task(self._told.wait())
        try:
            await asyncio.wait({http, supervisor, told}, return_when=asyncio.FIRST_COMPLETED)
            await self._shut_down(wait=told.done())
        finally:
            told.cancel()
            supervisor.cancel()
            await asyncio.wait({supervisor, told})
            server.should_exit = True
            await asyncio.wait({http})
            await self.engine.stop()
        if not supervisor.cancelled():
            supervisor.result()  # raises what ended it
        return _INTERRUPTED if self._signals[:1] == [signal.SIGINT] else 0

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Only the main thread may: elsewhere the process has another master.
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        (self._hurry if self._signals else self._told).set()
        self._signals.append(number)

    async def _shut_down(self, *, wait: bool) -> None:
        self.gateway.enter("draining")
        if not wait:
            return
        ways = {
            asyncio.create_task(self._drain()),
            asyncio.create_task(self._hurry.wait()),
        }
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        await self.gateway.drain(0)  # fails what is left, so that no stream ends silently

    async def _drain(self) -> None:
        await asyncio.sleep(self.limits.notice_s)
        await self.gateway.drain(self.limits.drain_s)

    async def _supervise(self) -> None:
        """Keep the engine alive: start it, and start it again when it dies, a few times."""
        await self._start()
        if self.on_ready is not None:
            self.on_ready(self.url)
        deaths: deque[float] = deque()
        while True:
            how = await self.engine.wait_dead()
            self.gateway.enter("down")
            self._judge_death(deaths, how)
            _log.warning("%s; starting it again", how)
            self.gateway.metrics.restarts.inc()
            with contextlib.suppress(ServeError):  # counted as one more death by wait_dead
                await self._start()

    async def _start(self) -> None:
        self.gateway.enter("starting")
        await self.engine.start()
        self.gateway.enter("ready")

    def _judge_death(self, deaths: deque[float], how: str) -> None:
        now = time.monotonic()
        deaths.append(now)
        while deaths[0] < now - self.limits.restart_window_s:
            deaths.popleft()
        if len(deaths) > self.limits.restarts:
            message = f"{how}, for the {len(deaths)}th time in a short while"
            raise ServeError(message, remedy="check the memory, then serve again")


def _uvicorn_config(gateway: Gateway) -> uvicorn.Config:
    # Its lines would be tracebacks and addresses of clients; the gateway has its own.
    return uvicorn.Config(
        gateway,
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
        ws="none",
    )
