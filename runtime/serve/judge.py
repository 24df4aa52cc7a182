"""Deadlines on a back end's progress: an engine that hangs still answers its health check."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator

from runtime.serve.back_ends.protocol import BackEndError, Event, Finished
from runtime.serve.limits import Limits
from runtime.serve.metrics import Metrics


async def judged(
    events: AsyncIterator[Event], *, limits: Limits, metrics: Metrics, endpoint: str
) -> AsyncGenerator[Event, None]:
    """Pass a back end's events on, within deadlines, and only up to a proper end.

    Args:
        events: as `BackEnd.stream` gives them.
        limits: `first_token_s` for the first event, `between_tokens_s` for each later one.
        metrics: gets the measured waits.
        endpoint: the metrics' label.

    Raises:
        BackEndError: if a deadline passes, or the events end without `Finished`.
    """
    began, first = time.monotonic(), True
    while True:
        event = await _next(events, limits, first=first)
        now = time.monotonic()
        record = metrics.first_token if first else metrics.between_tokens
        record(endpoint, now - began)
        began, first = now, False
        yield event
        if isinstance(event, Finished):
            return


async def _next(events: AsyncIterator[Event], limits: Limits, *, first: bool) -> Event:
    limit = limits.first_token_s if first else limits.between_tokens_s
    try:
        # Cancelling the wait runs the iterator's `finally`, which closes the upstream connection.
        async with asyncio.timeout(limit):
            return await anext(events)
    except TimeoutError as error:
        what = "first token" if first else "next token"
        message = f"the back end sent no {what} within {limit:g} s"
        reason = "first_token_timeout" if first else "between_tokens_timeout"
        raise BackEndError(reason, message) from error
    except StopAsyncIteration as error:
        message = "the back end's answer ended before it was complete"
        raise BackEndError("no_finish_reason", message) from error
