"""The few parts of ASGI that the gateway needs: read a body, answer JSON, write events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from runtime.serve.errors import ApiError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Disconnected(Exception):
    """The client closed its connection."""


def header(scope: Scope, name: bytes) -> str | None:
    """Give a request header's value, or None; `name` in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return value.decode("latin-1")
    return None


async def read_body(scope: Scope, receive: Receive, *, most: int, seconds: float) -> bytes:
    """Read the whole body.

    Raises:
        ApiError: 413 if it is larger than `most` bytes, 408 if it takes longer than `seconds`.
        Disconnected: if the client goes away before it is whole.
    """
    length = header(scope, b"content-length")
    if length is not None and length.isdigit() and int(length) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                body += message.get("body", b"")
                if len(body) > most:
                    raise _too_large(most)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError as error:
        text = f"the request's body did not come within {seconds:g} s"
        raise ApiError(408, text, code="request_timeout", headers=_CLOSE) from error


_CLOSE = {"connection": "close"}


def _too_large(most: int) -> ApiError:
    text = f"the request's body is larger than {most} bytes"
    return ApiError(413, text, code="request_too_large", headers=_CLOSE)


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client goes away; call only after the whole body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Reply:
    """One response, sent whole or as events; knows what has left already.

    Args:
        send: ASGI's.
        request_id: sent as `x-request-id`.
    """

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._lock = asyncio.Lock()
        self.request_id = request_id
        self.started = False
        self.streaming = False
        self.last_sent = time.monotonic()

    async def whole(
        self, status: int, body: bytes, content_type: str, headers: dict[str, str] | None = None
    ) -> None:
        """Send a whole response."""
        more = {"content-length": str(len(body)), **(headers or {})}
        await self._start(status, content_type, more)
        await self._send({"type": "http.response.body", "body": body})

    async def json(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        """Send a JSON response."""
        text = json.dumps(body, separators=(",", ":")).encode("ascii")
        await self.whole(status, text, "application/json", headers)

    async def events(self, data: bytes, *, last: bool = False) -> None:
        """Send more of an event stream, and its head before the first of it."""
        async with self._lock:
            if not self.started:
                self.streaming = True
                # nginx and others hold a stream back without the last header.
                more = {"cache-control": "no-cache", "x-accel-buffering": "no"}
                await self._start(200, "text/event-stream; charset=utf-8", more)
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})
            self.last_sent = time.monotonic()

    async def _start(self, status: int, content_type: str, more: dict[str, str]) -> None:
        self.started = True
        headers = {"content-type": content_type, "x-request-id": self.request_id, **more}
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()],
            }
        )
