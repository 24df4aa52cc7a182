"""What a back end is: the events of one answer, how it may fail, and the interface to implement.

A back end owns one inference engine. The gateway asks it for one answer at a time as typed events,
and never sees the engine's wire format. The rule that everything else rests on: **an answer is
complete only if its events end with `Finished`**. Whatever else ends them, a clean end included, is
a failure, and the gateway shows it as one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol

from runtime.spec import ServeError

FinishReason = Literal["stop", "length"]

FailureReason = Literal[
    "unavailable",
    "rejected",
    "cut",
    "no_finish_reason",
    "aborted",
    "error_event",
    "bad_data",
    "first_token_timeout",
    "between_tokens_timeout",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation: who speaks, and the text."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn; every value is resolved, so no engine default applies.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token.
        top_p: share of probability kept, in (0, 1]; 1 keeps all.
        top_k: count of tokens kept; 0 keeps all.
        seed: makes the draws repeatable, whatever else runs at the time; None draws a fresh one.
    """

    temperature: float
    top_p: float
    top_k: int
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One answer to generate, as the back end gets it.

    Attributes:
        request_id: our own id; a client's is never sent upstream.
        prompt: a conversation for the model's chat template, or raw text to continue.
        max_tokens: the most tokens to generate.
        clamp_max_tokens: whether `max_tokens` is our default and so shrinks to what the model's
            context leaves; a client's own number that does not fit is refused instead.
        stop: the answer ends before any of these strings.
        sampling: how tokens are drawn.
    """

    request_id: str
    prompt: tuple[Message, ...] | str
    max_tokens: int
    clamp_max_tokens: bool
    stop: tuple[str, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an answer cost, in tokens as the engine counts them."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """The next piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event of a complete answer."""

    reason: FinishReason
    usage: Usage


Event = TextDelta | Finished


class BackEndError(ServeError):
    """An answer that is not complete, and why.

    Args:
        reason: the kind of failure; also a metric's label, hence a closed set.
        message: what a client may read; holds no text of a prompt or an answer.
        code: OpenAI's error code where one fits (`context_length_exceeded`), else None.
    """

    def __init__(self, reason: FailureReason, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.reason: FailureReason = reason
        self.code = code


class BackEnd(Protocol):
    """One inference engine behind the gateway."""

    async def start(self) -> None:
        """Start the engine and return when it has answered a request.

        Raises:
            ServeError: if the engine ended, or was not ready in time; holds the engine's last
                lines, which at this point cannot hold a client's text.
        """
        ...

    def ready(self) -> bool:
        """Tell whether a request sent now would be taken."""
        ...

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Generate one answer.

        Closing or cancelling the iterator stops the engine's work on it within a second.

        Raises:
            BackEndError: if the answer cannot be completed; raised by the iterator at any point.
        """
        ...

    async def wait_dead(self) -> str:
        """Wait until the engine ends by itself, and tell how it ended."""
        ...

    async def drain(self, deadline_s: float) -> bool:
        """Take no more requests; wait for those in flight.

        Args:
            deadline_s: seconds to wait at most.

        Returns:
            Whether all of them ended in time.
        """
        ...

    async def stop(self) -> None:
        """End the engine and all its processes, politely first; safe to call twice."""
        ...
