"""From a client's JSON to a `GenerationRequest`: nothing that would change the answer is ignored.

A field is either honoured, or harmless, or refused with a 400 that names it. Fields with their
neutral value (`n: 1`, `logprobs: false`) are harmless: many clients send them always.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from runtime.serve.back_ends.protocol import GenerationRequest, Message, Sampling
from runtime.serve.checkpoint import Servable
from runtime.serve.errors import ApiError
from runtime.serve.fields import bad, boolean, integer, number

Endpoint = Literal["chat", "completions"]

_MAX_STOPS = 4
_MAX_STOP_CHARACTERS = 256
_COMPLETION_TOKENS = 16
"""OpenAI's default of `/v1/completions`."""

_COMMON = {
    "model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "top_k", "seed",
    "stop",
}  # fmt: skip
_HONOURED: dict[Endpoint, set[str]] = {
    "chat": _COMMON | {"messages", "max_completion_tokens"},
    "completions": _COMMON | {"prompt"},
}
# These say who asks or how to bill and cache: the answer is the same without them.
_HARMLESS = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "parallel_tool_calls",
}  # fmt: skip
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "suffix": ("",),
}
_ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A client's request, validated.

    Attributes:
        endpoint: which one it came to.
        generation: what the back end gets.
        stream: whether the client wants events.
        include_usage: whether the stream ends with a usage chunk.
    """

    endpoint: Endpoint
    generation: GenerationRequest
    stream: bool
    include_usage: bool


def read_request(
    endpoint: Endpoint,
    body: dict[str, Any],
    *,
    request_id: str,
    model_name: str,
    servable: Servable,
    max_tokens: int,
) -> Asked:
    """Validate one request.

    Raises:
        ApiError: 400 for a field that is wrong or not supported, 404 for another model.
    """
    _check_model(body, model_name)
    _check_supported(endpoint, body)
    stream = boolean(body, "stream")
    asked, clamp = _max_tokens(endpoint, body, max_tokens)
    generation = GenerationRequest(
        request_id=request_id,
        prompt=_messages(body, servable) if endpoint == "chat" else _prompt(body),
        max_tokens=asked,
        clamp_max_tokens=clamp,
        stop=_stop(body),
        sampling=_sampling(body, servable),
    )
    return Asked(
        endpoint=endpoint,
        generation=generation,
        stream=stream,
        include_usage=_include_usage(body, stream=stream),
    )


def _check_model(body: dict[str, Any], model_name: str) -> None:
    model = body.get("model")
    if not isinstance(model, str):
        raise bad("model", f"missing or not a string; expected {model_name!r}")
    if model != model_name:
        message = f"the model does not exist here; expected {model_name!r}"
        raise ApiError(404, message, param="model", code="model_not_found")


def _check_supported(endpoint: Endpoint, body: dict[str, Any]) -> None:
    for name, value in body.items():
        if name in _HONOURED[endpoint] or name in _HARMLESS or value is None:
            continue
        if name not in _NEUTRAL:
            shown = name if name.isidentifier() and len(name) <= 64 else "a field"
            message = f"{shown}: unknown here; remove it"
            raise ApiError(400, message, param=shown, code="unknown_parameter")
        # `1 == True` in Python: compare the kinds as well.
        if not any(value == n and type(value) is type(n) for n in _neutral(name)):
            raise bad(
                name,
                "not supported by this back end, and never ignored; remove it",
                code="unsupported_parameter",
            )


def _neutral(name: str) -> tuple[Any, ...]:
    values = _NEUTRAL[name]
    return values + tuple(float(v) for v in values if type(v) is int)


def _max_tokens(endpoint: Endpoint, body: dict[str, Any], most: int) -> tuple[int, bool]:
    """Read the answer's limit, and whether it is our default."""
    names = ("max_completion_tokens", "max_tokens") if endpoint == "chat" else ("max_tokens",)
    given = [value for name in names if (value := integer(body, name, 1, most)) is not None]
    if given:
        return min(given), False
    return (most if endpoint == "chat" else min(most, _COMPLETION_TOKENS)), True


def _sampling(body: dict[str, Any], servable: Servable) -> Sampling:
    temperature = number(body, "temperature", 0, 2)
    top_p = number(body, "top_p", 0, 1)
    top_k = integer(body, "top_k", -1, 2**31 - 1)
    if top_p == 0:
        raise bad("top_p", "0 keeps no token; expected more than 0, at most 1")
    return Sampling(
        temperature=servable.temperature if temperature is None else temperature,
        top_p=servable.top_p if top_p is None else top_p,
        top_k=servable.top_k if top_k is None else max(top_k, 0),
        seed=integer(body, "seed", -(2**63), 2**63 - 1),
    )


def _stop(body: dict[str, Any]) -> tuple[str, ...]:
    value = body.get("stop")
    stops = [] if value is None else [value] if isinstance(value, str) else value
    fine = isinstance(stops, list) and len(stops) <= _MAX_STOPS
    if not fine or not all(
        isinstance(s, str) and 0 < len(s) <= _MAX_STOP_CHARACTERS for s in stops
    ):
        message = f"expected at most {_MAX_STOPS} strings of 1 to {_MAX_STOP_CHARACTERS} characters"
        raise bad("stop", message)
    return tuple(stops)


def _include_usage(body: dict[str, Any], *, stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not stream:
        raise bad("stream_options", "only allowed with stream: true")
    if not isinstance(options, dict) or options.keys() - {"include_usage", "include_obfuscation"}:
        raise bad("stream_options", "expected an object with include_usage")
    return boolean(options, "include_usage")


def _prompt(body: dict[str, Any]) -> str:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise bad(
            "prompt", "expected one string, not empty; token ids and several prompts are not"
            " supported by this back end"
        )  # fmt: skip
    return prompt


def _messages(body: dict[str, Any], servable: Servable) -> tuple[Message, ...]:
    if not servable.has_chat_template:
        message = "this model has no chat template; use /v1/completions"
        raise ApiError(400, message, code="no_chat_template")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad("messages", "expected a list with at least one message")
    return tuple(_message(i, message) for i, message in enumerate(messages))


def _message(index: int, message: Any) -> Message:
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise bad(where, "expected an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad(f"{where}.role", f"expected one of {', '.join(_ROLES)}")
    more = [k for k, v in message.items() if k not in {"role", "content"} and v not in (None, [])]
    if more:
        raise bad(where, "only role and content are supported by this back end")
    return Message(role=_ROLES[role], content=_content(f"{where}.content", message.get("content")))


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        texts = [
            part["text"]
            for part in content
            if isinstance(part, dict)
            and part.get("type") == "text"
            and isinstance(part.get("text"), str)
        ]
        if len(texts) == len(content):
            return "\n".join(texts)  # as vLLM joins them
    raise bad(where, "expected a string, or a list of parts of type text")
