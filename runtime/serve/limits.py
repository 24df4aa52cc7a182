"""The gateway's limits: sizes, counts and deadlines, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request and one gateway may take.

    Attributes:
        body_bytes: the largest request body; more is a 413.
        body_s: seconds in which the whole body must have come; a 408 after.
        in_flight: requests served at a time; more get a 503 with `Retry-After`.
        max_tokens: the most tokens an answer may ask for; also a chat's default, as OpenAI has none.
        first_token_s: seconds from sending a request to the back end to its first event.
        between_tokens_s: seconds between two events of an answer.
        request_s: seconds for the whole of a request.
        comment_s: seconds of silence in a stream after which a comment is sent, so that nothing
            between us and the client takes it for dead.
        start_s: seconds for a back end to become ready.
        notice_s: seconds between turning readiness off and refusing connections at a shutdown.
        drain_s: seconds that requests in flight get at a shutdown.
        restarts: restarts of a dead back end within `restart_window_s`; one more ends the gateway.
        restart_window_s: see `restarts`.
    """

    body_bytes: int = 4 * 1024 * 1024
    body_s: float = 30.0
    in_flight: int = 64
    max_tokens: int = 1024
    first_token_s: float = 120.0
    between_tokens_s: float = 60.0
    request_s: float = 900.0
    comment_s: float = 10.0
    start_s: float = 300.0
    notice_s: float = 0.5
    drain_s: float = 30.0
    restarts: int = 3
    restart_window_s: float = 600.0
