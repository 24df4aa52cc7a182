"""A gateway in front of a scripted engine: real sockets on both sides, a script for its bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import uvicorn

from runtime.serve.back_ends._upstream import stream_events
from runtime.serve.back_ends.protocol import Event, GenerationRequest
from runtime.serve.checkpoint import Servable
from runtime.serve.gateway import Gateway
from runtime.serve.limits import Limits

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


@dataclass
class ScriptedEngine:
    """A back end whose engine is a socket that plays a script; it keeps what it was sent."""

    script: Script
    requests: list[bytes] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    alive: bool = True

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self._session = aiohttp.ClientSession(f"http://127.0.0.1:{port}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        self.requests.append(head + await reader.readexactly(length))
        self.asked.set()
        with contextlib.suppress(ConnectionError):
            await self.script(reader, writer)
        self.closed.set()
        writer.close()

    def ready(self) -> bool:
        return self.alive

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        answer = stream_events(
            self._session, "/v1/x", {"stream": True}, request_id=request.request_id
        )
        async with contextlib.aclosing(answer) as events:
            async for event in events:
                yield event

    async def wait_dead(self) -> str:
        await asyncio.Event().wait()
        return ""

    async def drain(self, deadline_s: float) -> bool:
        return True

    async def stop(self) -> None:
        await self._session.close()
        self._server.close()


def chat_chunk(text: str | None, reason: str | None = None, *, usage: bool = False) -> bytes:
    """One upstream event as transformers writes it."""
    body: dict[str, object] = {
        "id": "upstream",
        "choices": [{"index": 0, "delta": {"content": text} if text else {}}],
        "model": "/a/secret/path",
    }
    if reason:
        body["choices"] = [{"index": 0, "delta": {}, "finish_reason": reason}]
    if usage:
        body["usage"] = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def plays(*parts: bytes, pause_s: float = 0.0) -> Script:
    """A script that sends parts and closes cleanly."""

    async def script(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return script


def hangs_after(*parts: bytes) -> Script:
    """A script that sends parts, then nothing until the other side closes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
        await writer.drain()
        await reader.read()

    return script


@dataclass
class Running:
    """A running gateway, its engine, and its address."""

    url: str
    engine: ScriptedEngine
    gateway: Gateway


Runner = Callable[..., contextlib.AbstractAsyncContextManager[Running]]


@contextlib.asynccontextmanager
async def _running(
    script: Script,
    *,
    limits: Limits | None = None,
    api_key: str | None = None,
    has_chat_template: bool = True,
) -> AsyncIterator[Running]:
    engine = ScriptedEngine(script)
    await engine.start()
    servable = Servable(
        path=Path(), has_chat_template=has_chat_template, temperature=1.0, top_p=1.0, top_k=0
    )
    gateway = Gateway(
        engine, servable, model_name="tiny", api_key=api_key, limits=limits or Limits()
    )
    gateway.enter("ready")
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(gateway, lifespan="off", log_level="critical", access_log=False)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield Running(url=url, engine=engine, gateway=gateway)
    finally:
        server.should_exit = server.force_exit = True
        await serving
        await engine.stop()


@pytest.fixture
def running() -> Runner:
    """Start a gateway over a scripted engine, as an async context manager."""
    return _running


@pytest.fixture
def parts() -> type:
    """The building blocks of scripts."""

    class Parts:
        head = HEAD
        chunked = CHUNKED
        chat = staticmethod(chat_chunk)
        plays = staticmethod(plays)
        hangs_after = staticmethod(hangs_after)

    return Parts
