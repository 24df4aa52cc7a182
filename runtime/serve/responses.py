"""From a back end's events to OpenAI's answers and chunks."""

from __future__ import annotations

import json
import time
from typing import Any

from runtime.serve.back_ends.protocol import Finished, TextDelta, Usage
from runtime.serve.requests import Asked

DONE = b"data: [DONE]\n\n"


def event_bytes(data: dict[str, Any], *, name: str | None = None) -> bytes:
    """Give one server-sent event; ASCII only, so no client can split or misread it."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode("ascii")


def usage_body(usage: Usage) -> dict[str, int]:
    """Give OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class Shape:
    """The shapes of one answer.

    Args:
        asked: the request.
        model_name: the name that the client knows; the engine's own is never shown.
    """

    def __init__(self, asked: Asked, model_name: str) -> None:
        self._chat = asked.endpoint == "chat"
        self._include_usage = asked.include_usage
        prefix = "chatcmpl" if self._chat else "cmpl"
        self._head = {
            "id": f"{prefix}-{asked.generation.request_id.removeprefix('req_')}",
            "created": int(time.time()),
            "model": model_name,
        }

    def body(self, text: str, finished: Finished) -> dict[str, Any]:
        """Give the whole answer of a request that does not stream."""
        content = (
            {"message": {"role": "assistant", "content": text, "refusal": None}}
            if self._chat
            else {"text": text}
        )
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finished.reason}
        return {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [choice],
            "usage": usage_body(finished.usage),
        }

    def opening(self) -> bytes:
        """Give what a stream begins with: a chat's role."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}) if self._chat else b""

    def delta(self, event: TextDelta) -> bytes:
        """Give the chunk of one piece of text."""
        return self._chunk(
            {"delta": {"content": event.text}} if self._chat else {"text": event.text}
        )

    def closing(self, finished: Finished) -> bytes:
        """Give the end of a complete stream: the reason, the usage if asked for, `[DONE]`."""
        content: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        end = self._chunk(content, reason=finished.reason)
        if self._include_usage:
            end += event_bytes(
                {**self._outer(), "choices": [], "usage": usage_body(finished.usage)}
            )
        return end + DONE

    def _chunk(self, content: dict[str, Any], *, reason: str | None = None) -> bytes:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if self._include_usage else {}
        return event_bytes({**self._outer(), "choices": [choice], **usage})

    def _outer(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._head, "object": kind}
