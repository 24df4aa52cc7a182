"""One streamed request to an engine's own OpenAI-like server, read as typed events.

The reader trusts nothing but a `finish_reason` that it knows, with a usage: not the status, not a
clean end, not `[DONE]` (vLLM ends aborted and killed streams with it). Engines are always asked to
stream, also for a client that does not: only a stream stops when it is closed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, get_args

import aiohttp

from runtime.serve.back_ends._sse import EventParser
from runtime.serve.back_ends.protocol import (
    BackEndError,
    Event,
    Finished,
    FinishReason,
    TextDelta,
    Usage,
)

_HTTP_OK = 200
_CLIENT_ERRORS = range(400, 500)


async def stream_events(
    session: aiohttp.ClientSession, path: str, body: Mapping[str, Any], *, request_id: str
) -> AsyncGenerator[Event, None]:
    """Post a request to an engine and give its answer's events.

    Args:
        session: holds the engine's address; its connections are closed, not reused, on a failure.
        path: the engine's path, such as `/v1/completions`.
        body: the JSON body; must ask for a stream.
        request_id: sent as `x-request-id`.

    Raises:
        BackEndError: on every ending but a complete one.
    """
    try:
        async with session.post(path, json=body, headers={"x-request-id": request_id}) as response:
            if response.status != _HTTP_OK:
                raise await _refusal(response)
            async for event in _read(response):
                yield event
    except aiohttp.ClientConnectorError as error:
        msg = "the back end cannot be reached"
        raise BackEndError("unavailable", msg) from error
    except (aiohttp.ClientError, OSError) as error:
        msg = "the connection to the back end was cut before the answer was complete"
        raise BackEndError("cut", msg) from error


async def _read(response: aiohttp.ClientResponse) -> AsyncGenerator[Event, None]:
    answer = _Answer()
    parser = EventParser()
    try:
        async for chunk in response.content.iter_any():
            for data in parser.feed(chunk):
                for event in answer.take(data):
                    yield event
    except (aiohttp.ClientError, OSError):
        # Cut after a known finish_reason and the usage: nothing of the answer is missing.
        if not answer.complete:
            raise
    except ValueError as error:
        msg = "the back end sent something that is not an event stream"
        raise BackEndError("bad_data", msg) from error
    yield answer.finished()


class _Answer:
    """What one stream has said so far."""

    def __init__(self) -> None:
        self._reason: FinishReason | None = None
        self._usage: Usage | None = None

    @property
    def complete(self) -> bool:
        return self._reason is not None and self._usage is not None

    def take(self, data: str) -> list[TextDelta]:
        if data == "[DONE]":
            return []
        chunk = _json_object(data)
        # `event: error` always comes with an error object, so the event's name adds nothing.
        if "error" in chunk:
            msg = "the back end failed while it generated the answer"
            raise BackEndError("error_event", msg)
        self._take_usage(chunk.get("usage"))
        return [delta for choice in chunk.get("choices") or [] for delta in self._choice(choice)]

    def _take_usage(self, usage: Any) -> None:
        if usage is None:
            return
        try:
            self._usage = Usage(
                prompt_tokens=int(usage["prompt_tokens"]),
                completion_tokens=int(usage["completion_tokens"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            msg = "the back end sent a usage of an unknown shape"
            raise BackEndError("bad_data", msg) from error

    def _choice(self, choice: Any) -> list[TextDelta]:
        if not isinstance(choice, dict):
            msg = "the back end sent a choice of an unknown shape"
            raise BackEndError("bad_data", msg)
        delta = choice.get("delta")
        text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
        reason = choice.get("finish_reason")
        if reason is not None:
            self._finish(reason)
        return [TextDelta(text=text)] if isinstance(text, str) and text else []

    def _finish(self, reason: object) -> None:
        if reason not in get_args(FinishReason):
            # "abort" is vLLM's word at a shutdown, with a 200 and a `[DONE]` (vllm#57082).
            msg = f"the back end ended the answer with {str(reason)[:32]!r}"
            raise BackEndError("aborted", msg)
        self._reason = "stop" if reason == "stop" else "length"

    def finished(self) -> Finished:
        if self._reason is None:
            msg = "the back end's stream ended before the answer was complete"
            raise BackEndError("no_finish_reason", msg)
        if self._usage is None:
            msg = "the back end finished an answer without its usage"
            raise BackEndError("bad_data", msg)
        return Finished(reason=self._reason, usage=self._usage)


def _json_object(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        # transformers pastes an exception's text into JSON unescaped: broken JSON is its error.
        msg = "the back end sent an event that is not a JSON object"
        raise BackEndError("bad_data", msg)
    return chunk


async def _refusal(response: aiohttp.ClientResponse) -> BackEndError:
    """Read why an engine refused; only our own launcher's words are passed on to a client."""
    if response.status not in _CLIENT_ERRORS:
        msg = f"the back end answered with status {response.status}"
        return BackEndError("error_event", msg)
    try:
        detail = (await response.json(content_type=None)).get("detail")
    except (ValueError, AttributeError, aiohttp.ClientError):
        detail = None
    if isinstance(detail, dict) and isinstance(detail.get("message"), str):
        return BackEndError("rejected", detail["message"], code=detail.get("code"))
    return BackEndError("rejected", f"the back end refused the request ({response.status})")
