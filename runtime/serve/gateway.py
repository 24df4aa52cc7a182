"""The OpenAI-compatible gateway: a plain ASGI application in front of one back end.

For each request it promises one of these, and nothing between them:

- a complete answer: a whole JSON body, or a stream that ends with a finish_reason and `[DONE]`;
- an error with a status, where nothing has been sent yet;
- where part of a stream has been sent: an error event, then a connection that is cut, never a clean
  end and never `[DONE]`, because clients take a clean end for success.

A client that goes away stops the back end's work on its request at once, streaming or not. No
prompt, answer or key is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import time
import traceback
from collections.abc import AsyncIterator, Generator

from runtime.serve._asgi import (
    Disconnected,
    Receive,
    Reply,
    Scope,
    Send,
    header,
    read_body,
    wait_for_disconnect,
)
from runtime.serve.back_ends.protocol import BackEnd, BackEndError, Event, Finished
from runtime.serve.checkpoint import Servable
from runtime.serve.errors import ApiError, from_back_end, unavailable
from runtime.serve.fields import parse_object
from runtime.serve.judge import judged
from runtime.serve.limits import Limits
from runtime.serve.metrics import CONTENT_TYPE, Metrics, Side, State
from runtime.serve.requests import Asked, Endpoint, read_request
from runtime.serve.responses import Shape, event_bytes

_log = logging.getLogger("luma.serve")

_ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
}
# Larger bodies are parsed in a thread: a few megabytes of JSON would stop every stream meanwhile.
_PARSE_INLINE_BYTES = 64 * 1024
_FAIL_S = 1.0


class Gateway:
    """The ASGI application.

    Args:
        back_end: the engine; started and stopped by the caller.
        servable: what the checkpoint says of itself.
        model_name: the one model name that clients use.
        api_key: the key that `/v1` asks for, or None.
        limits: sizes, counts and deadlines.
    """

    def __init__(
        self,
        back_end: BackEnd,
        servable: Servable,
        *,
        model_name: str,
        api_key: str | None,
        limits: Limits,
    ) -> None:
        self._back_end = back_end
        self._servable = servable
        self._model_name = model_name
        self._api_key = api_key
        self._limits = limits
        self._created = int(time.time())
        self._state: State = "starting"
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._cut = asyncio.Event()
        self.metrics = Metrics()
        self.metrics.state(self._state)

    @property
    def state(self) -> State:
        """Give the gateway's state."""
        return self._state

    def enter(self, state: State) -> None:
        """Change the state; nothing leads out of draining."""
        if self._state != "draining":
            self._state = state
            self.metrics.state(state)

    async def drain(self, deadline_s: float) -> bool:
        """Wait for the requests in flight; at the deadline, fail the rest visibly.

        Returns:
            Whether all ended by themselves.
        """
        try:
            await asyncio.wait_for(self._idle.wait(), deadline_s)
        except TimeoutError:
            self._cut.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), 2 * _FAIL_S)
            return False
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        reply = Reply(send, f"req_{secrets.token_hex(12)}")
        with contextlib.suppress(Disconnected):
            try:
                await self._route(scope, receive, reply)
            except ApiError as error:
                await _fail(reply, error)

    async def _route(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        path, method = scope["path"], scope["method"]
        if path in ("/health", "/ready", "/metrics"):
            _check_method(method, "GET", "HEAD")
            await self._operations(path, reply)
            return
        # Before the path is judged: without the key, nobody learns what exists.
        self._check_key(scope)
        if path in _ENDPOINTS:
            _check_method(method, "POST")
            await self._generate(scope, receive, reply, _ENDPOINTS[path])
        elif path == "/v1/models":
            _check_method(method, "GET", "HEAD")
            await reply.json(200, {"object": "list", "data": [self._model()]})
        elif path == f"/v1/models/{self._model_name}":
            _check_method(method, "GET", "HEAD")
            await reply.json(200, self._model())
        elif path.startswith("/v1/models/"):
            raise ApiError(404, "the model does not exist here", code="model_not_found")
        else:
            raise ApiError(404, "no such path here", code="not_found")

    async def _operations(self, path: str, reply: Reply) -> None:
        if path == "/metrics":
            await reply.whole(200, self.metrics.text(), CONTENT_TYPE)
        elif path == "/health":
            await reply.json(200, {"status": "ok"})
        else:
            ready = self._state == "ready" and self._back_end.ready()
            await reply.json(200 if ready else 503, {"status": self._state})

    def _model(self) -> dict[str, object]:
        return {
            "id": self._model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "luma",
        }

    def _check_key(self, scope: Scope) -> None:
        if self._api_key is None:
            return
        given = (header(scope, b"authorization") or "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode("latin-1"), self._api_key.encode()):
            message = "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'"
            raise ApiError(401, message, code="invalid_api_key")

    async def _generate(
        self, scope: Scope, receive: Receive, reply: Reply, endpoint: Endpoint
    ) -> None:
        began = time.monotonic()
        side, reason = "gateway", "internal"
        try:
            with self._counted():
                asked = await self._read(scope, receive, reply, endpoint)
                side, reason = await self._run(asked, receive, reply)
        except Disconnected:
            side, reason = "client", "disconnected"
        except ApiError as error:
            side, reason = _refusal_labels(error)
            raise
        finally:
            self.metrics.ended(endpoint, side, reason)
            _log.info(
                "request %s %s %s/%s %.0f ms",
                reply.request_id,
                endpoint,
                side,
                reason,
                (time.monotonic() - began) * 1000,
            )

    @contextlib.contextmanager
    def _counted(self) -> Generator[None]:
        """Admit one request and count it while it is in flight."""
        if self._state != "ready" or not self._back_end.ready():
            raise unavailable(f"the server is {self._state}; try again later")
        if self._in_flight >= self._limits.in_flight:
            raise unavailable("the server is at its limit of requests; try again later")
        self._in_flight += 1
        self._idle.clear()
        self.metrics.in_flight.set(self._in_flight)
        try:
            yield
        finally:
            self._in_flight -= 1
            self.metrics.in_flight.set(self._in_flight)
            if self._in_flight == 0:
                self._idle.set()

    async def _read(
        self, scope: Scope, receive: Receive, reply: Reply, endpoint: Endpoint
    ) -> Asked:
        limits = self._limits
        raw = await read_body(scope, receive, most=limits.body_bytes, seconds=limits.body_s)
        small = len(raw) <= _PARSE_INLINE_BYTES
        body = parse_object(raw) if small else await asyncio.to_thread(parse_object, raw)
        return read_request(
            endpoint,
            body,
            request_id=reply.request_id,
            model_name=self._model_name,
            servable=self._servable,
            max_tokens=limits.max_tokens,
        )

    async def _run(self, asked: Asked, receive: Receive, reply: Reply) -> tuple[Side, str]:
        """Run one request to whatever ends it first; return who ended it, and how."""
        work = asyncio.create_task(self._answer(asked, reply))
        gone = asyncio.create_task(wait_for_disconnect(receive))
        cut = asyncio.create_task(self._cut.wait())
        tasks = {work, gone, cut}
        try:
            await asyncio.wait(
                tasks, timeout=self._limits.request_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        complete = not work.cancelled() and work.exception() is None
        if not gone.cancelled() and not complete:
            return "client", "disconnected"
        if not work.cancelled():
            return await _judge_work(work, reply)
        if not cut.cancelled():
            await _fail(reply, unavailable("the server shuts down"))
            return "gateway", "shutdown"
        message = f"the request took longer than {self._limits.request_s:g} s"
        await _fail(
            reply,
            ApiError(
                504,
                message,
                kind="server_error",
                code="request_timeout",
                headers={"x-should-retry": "false"},
            ),
        )
        return "gateway", "request_timeout"

    async def _answer(self, asked: Asked, reply: Reply) -> None:
        events = self._back_end.stream(asked.generation)
        watched = judged(events, limits=self._limits, metrics=self.metrics, endpoint=asked.endpoint)
        shape = Shape(asked, self._model_name)
        # Closing the events closes the upstream connection, whatever ended the answer.
        async with contextlib.aclosing(events), contextlib.aclosing(watched):
            if asked.stream:
                await self._stream(watched, shape, reply)
            else:
                await self._assemble(watched, shape, reply)

    async def _assemble(self, events: AsyncIterator[Event], shape: Shape, reply: Reply) -> None:
        texts: list[str] = []
        async for event in events:
            if isinstance(event, Finished):
                self.metrics.used(event.usage)
                await reply.json(200, shape.body("".join(texts), event))
            else:
                texts.append(event.text)

    async def _stream(self, events: AsyncIterator[Event], shape: Shape, reply: Reply) -> None:
        comments = asyncio.create_task(_comment_on_silence(reply, self._limits.comment_s))
        opening = shape.opening()
        try:
            async for event in events:
                if isinstance(event, Finished):
                    self.metrics.used(event.usage)
                    await reply.events(opening + shape.closing(event), last=True)
                else:
                    await reply.events(opening + shape.delta(event))
                opening = b""
        finally:
            comments.cancel()


async def _comment_on_silence(reply: Reply, seconds: float) -> None:
    """Send comments while nothing else is sent; clients skip them, proxies count them."""
    while True:
        await asyncio.sleep(max(0.0, reply.last_sent + seconds - time.monotonic()))
        if time.monotonic() - reply.last_sent >= seconds:
            await reply.events(b": waiting\n\n")


async def _judge_work(work: asyncio.Task[None], reply: Reply) -> tuple[Side, str]:
    """Show how the work on a request ended, where it is not complete."""
    error = work.exception()
    if error is None:
        return "none", "complete"
    if isinstance(error, BackEndError):
        await _fail(reply, from_back_end(error))
        return ("client" if error.reason == "rejected" else "back_end"), error.reason
    # The place, never the text: an exception's message may quote what a client sent.
    place = "".join(traceback.format_tb(error.__traceback__))
    _log.error("request %s failed: %s\n%s", reply.request_id, type(error).__name__, place)
    await _fail(reply, ApiError(500, "the gateway failed", kind="server_error"))
    return "gateway", "internal"


def _refusal_labels(error: ApiError) -> tuple[Side, str]:
    if error.status >= 500:
        return "gateway", "unavailable"
    return "client", "refused"


def _check_method(method: str, *allowed: str) -> None:
    if method not in allowed:
        message = f"this path takes {' or '.join(allowed)} only"
        raise ApiError(405, message, headers={"allow": ", ".join(allowed)})


async def _fail(reply: Reply, error: ApiError) -> None:
    """Show a failure: a status where none was sent, else an error event and no proper end.

    The application then returns without completing the response, at which uvicorn cuts the
    connection: the client sees a broken stream, not a finished one.
    """
    with contextlib.suppress(TimeoutError):
        # A client that does not read must not hold the gateway.
        async with asyncio.timeout(_FAIL_S):
            if reply.streaming:
                await reply.events(event_bytes(error.body()))
            elif not reply.started:
                await reply.json(error.status, error.body(), error.headers)
