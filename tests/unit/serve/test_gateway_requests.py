"""What the gateway refuses, and how: bodies, keys, paths, fields."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.serve.checkpoint import Servable
from runtime.serve.errors import ApiError
from runtime.serve.fields import parse_object
from runtime.serve.limits import Limits
from runtime.serve.requests import read_request


def read(endpoint: str, body: dict[str, Any], **more: Any) -> Any:
    servable = Servable(
        path=Path(),
        has_chat_template=more.get("template", True),
        temperature=0.2,
        top_p=0.9,
        top_k=40,
    )
    return read_request(
        endpoint,
        {"model": "tiny", **body},
        request_id="req_1",
        model_name="tiny",
        servable=servable,
        max_tokens=100,
    )


MESSAGES = [{"role": "user", "content": "hi"}]


def test_a_chat_takes_the_models_defaults_and_the_clients_values() -> None:
    plain = read("chat", {"messages": MESSAGES}).generation
    assert (plain.sampling.temperature, plain.sampling.top_p, plain.sampling.top_k) == (
        0.2,
        0.9,
        40,
    )
    assert (plain.max_tokens, plain.clamp_max_tokens) == (100, True)
    body = {
        "messages": MESSAGES, "temperature": 0, "top_p": 0.5, "seed": 3, "stop": "x",
        "max_completion_tokens": 7, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    asked = read("chat", body)
    assert asked.stream
    assert asked.include_usage
    assert asked.generation.stop == ("x",)
    assert (asked.generation.max_tokens, asked.generation.clamp_max_tokens) == (7, False)
    assert asked.generation.sampling.temperature == 0  # an explicit zero stays zero
    assert asked.generation.sampling.seed == 3


def test_completions_default_to_sixteen_tokens_as_openai_does() -> None:
    assert read("completions", {"prompt": "a"}).generation.max_tokens == 16


def test_neutral_values_and_nulls_are_harmless() -> None:
    neutral = {
        "n": 1, "logprobs": False, "top_logprobs": None, "presence_penalty": 0.0, "user": "u",
        "frequency_penalty": 0, "logit_bias": {}, "response_format": {"type": "text"},
        "tool_choice": "none", "tools": [], "metadata": {"a": "b"}, "stop": None,
    }  # fmt: skip
    assert read("chat", {"messages": MESSAGES, **neutral}).generation.stop == ()


REFUSED: dict[str, Any] = {
    "n": 2, "logprobs": True, "top_logprobs": 3, "presence_penalty": 0.5, "frequency_penalty": 1,
    "logit_bias": {"5": 1}, "response_format": {"type": "json_object"}, "tool_choice": "required",
    "tools": [{"type": "function"}], "functions": [{}], "best_of": 2, "echo": True, "suffix": "x",
    "reasoning_effort": "high", "min_p": 0.1, "guided_json": {}, "temperature": 3, "top_p": 0,
    "max_tokens": 0, "max_completion_tokens": 101, "seed": 1.5, "stop": [""], "stream": "yes",
    "stream_options": {"include_usage": True}, "messages": [], "model": "other",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_ignored_is_refused_by_name(name: str) -> None:
    with pytest.raises(ApiError) as failure:
        read("chat", {"messages": MESSAGES, name: REFUSED[name]})
    assert failure.value.status == (404 if name == "model" else 400)
    assert failure.value.param == name


@pytest.mark.parametrize(
    "message",
    [
        "hi",
        {"role": "tool", "content": "x"},
        {"role": "user"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
        {"role": "assistant", "content": "", "tool_calls": [{}]},
    ],
)
def test_messages_that_cannot_be_kept_whole_are_refused(message: Any) -> None:
    with pytest.raises(ApiError, match=r"messages\[0\]"):
        read("chat", {"messages": [message]})


@pytest.mark.parametrize("prompt", ["", None, [1, 2], ["a", "b"], 5])
def test_prompts_of_another_kind_are_refused(prompt: Any) -> None:
    with pytest.raises(ApiError, match="prompt"):
        read("completions", {"prompt": prompt})


def test_a_model_without_chat_template_says_so() -> None:
    with pytest.raises(ApiError, match="no chat template"):
        read("chat", {"messages": MESSAGES}, template=False)


@settings(max_examples=200, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
), st.sampled_from(sorted(REFUSED)))  # fmt: skip
def test_any_json_value_is_read_or_refused(value: Any, name: str) -> None:
    """A client's JSON never ends in an exception of another kind."""
    with contextlib.suppress(ApiError):
        read("chat", {"messages": MESSAGES, name: value})


@pytest.mark.parametrize(
    "raw",
    [b"", b"[1]", b"{", b'{"a": NaN}', b"\xff", b'{"a": "\\ud800"}', b"[" * 100_000, b'"x"'],
)
def test_bodies_that_are_no_json_object_are_a_400(raw: bytes) -> None:
    with pytest.raises(ApiError) as failure:
        parse_object(raw)
    assert failure.value.status == 400


def test_sizes_keys_methods_and_paths(running, parts) -> None:
    async def main() -> None:
        limits = Limits(body_bytes=1000, body_s=0.3)
        async with (
            running(parts.plays(), limits=limits, api_key="sésame") as run,
            aiohttp.ClientSession() as session,
        ):
            key = {"authorization": "Bearer sésame"}

            async def status(method: str, path: str, **options: Any) -> int:
                async with session.request(method, run.url + path, **options) as response:
                    body = await response.json()
                    if response.status >= 400:
                        assert set(body["error"]) == {"message", "type", "param", "code"}
                    return response.status

            path = "/v1/chat/completions"
            assert await status("POST", path, data=b"x" * 1001, headers=key) == 413
            assert await status("POST", path, data=chunks(b"x" * 600, 3), headers=key) == 413
            assert await status("POST", path, data=chunks(b"x", 3, 0.3), headers=key) == 408
            assert await status("POST", path, data=b"{", headers=key) == 400
            assert await status("POST", path, data=b"{}") == 401
            assert await status("GET", "/v1/models") == 401
            assert await status("GET", "/v1/models", headers=key) == 200
            assert await status("GET", "/v1/models/tiny", headers=key) == 200
            assert await status("GET", "/v1/models/none", headers=key) == 404
            assert await status("GET", path, headers=key) == 405
            assert await status("POST", "/v1/embeddings", headers=key) == 404
            assert await status("GET", "/") == 401
            assert await status("GET", "/health") == 200
            assert run.engine.requests == []

    asyncio.run(main())


async def chunks(data: bytes, count: int, pause_s: float = 0.0) -> Any:
    for _ in range(count):
        yield data
        await asyncio.sleep(pause_s)
