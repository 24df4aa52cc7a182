"""The gateway's Prometheus metrics; every label comes from a closed set of ours."""

from __future__ import annotations

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from runtime.serve.back_ends.protocol import Usage

Side = Literal["none", "client", "back_end", "gateway"]
"""Who ended a request: nobody (it is complete), or the side that failed it."""

State = Literal["starting", "ready", "draining", "down"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
_BETWEEN_TOKENS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 10, 60)


class Metrics:
    """One gateway's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.endings = Counter(
            "luma_serve_endings",
            "Requests by how they ended; side none is a complete answer.",
            ["endpoint", "side", "reason"],
            registry=self._registry,
        )
        self._first = Histogram(
            "luma_serve_first_token_seconds",
            "Time from admission to the first event of the back end.",
            ["endpoint"],
            buckets=_FIRST_TOKEN_S,
            registry=self._registry,
        )
        self._between = Histogram(
            "luma_serve_between_tokens_seconds",
            "Time between two events of the back end.",
            ["endpoint"],
            buckets=_BETWEEN_TOKENS_S,
            registry=self._registry,
        )
        self._tokens = Counter(
            "luma_serve_tokens",
            "Tokens of complete answers, as the back end counts them.",
            ["kind"],
            registry=self._registry,
        )
        self.in_flight = Gauge(
            "luma_serve_in_flight", "Requests being served.", registry=self._registry
        )
        self._state = Gauge(
            "luma_serve_state", "1 for the gateway's state.", ["state"], registry=self._registry
        )
        self.restarts = Counter(
            "luma_serve_back_end_restarts",
            "Restarts of the back end after it died.",
            registry=self._registry,
        )

    def ended(self, endpoint: str, side: Side, reason: str) -> None:
        """Count one request's ending; `reason` must come from a closed set."""
        self.endings.labels(endpoint, side, reason).inc()

    def first_token(self, endpoint: str, seconds: float) -> None:
        """Record the wait for a first event, in seconds."""
        self._first.labels(endpoint).observe(seconds)

    def between_tokens(self, endpoint: str, seconds: float) -> None:
        """Record the wait for a later event, in seconds."""
        self._between.labels(endpoint).observe(seconds)

    def used(self, usage: Usage) -> None:
        """Count the tokens of one complete answer."""
        self._tokens.labels("prompt").inc(usage.prompt_tokens)
        self._tokens.labels("completion").inc(usage.completion_tokens)

    def state(self, current: State) -> None:
        """Show the gateway's state."""
        for state in ("starting", "ready", "draining", "down"):
            self._state.labels(state).set(state == current)

    def text(self) -> bytes:
        """Give the metrics in Prometheus' text format."""
        return generate_latest(self._registry)
