"""Every way an engine's answer can end, seen by the official client: complete, or an error."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any

import aiohttp
import openai
import pytest

from runtime.serve.limits import Limits

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def client(url: str, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0, **options)


async def streamed(url: str) -> tuple[str, list[str | None]]:
    """Stream one chat; give its text and the finish reasons."""
    text, reasons = "", []
    async with client(url) as api:
        async for chunk in await api.chat.completions.create(stream=True, **CHAT):
            text += chunk.choices[0].delta.content or ""
            reasons.append(chunk.choices[0].finish_reason)
    return text, reasons


async def raw_stream(url: str, **more: Any) -> bytes:
    """The bytes of a streamed chat, also of a broken one."""
    got = bytearray()
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + "/v1/chat/completions", json={**CHAT, "stream": True, **more}) as r,
    ):
        with contextlib.suppress(aiohttp.ClientPayloadError):
            async for chunk in r.content.iter_any():
                got += chunk
    return bytes(got)


def endings(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line.startswith("luma_serve_endings_total")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_a_complete_answer_streams_and_assembles_to_the_same(running, parts) -> None:
    script = parts.plays(
        parts.head, parts.chat("Hel"), parts.chat("lo"), parts.chat(None, "stop", usage=True)
    )

    async def main() -> None:
        async with running(script) as run, client(run.url) as api:
            text, reasons = await streamed(run.url)
            assert (text, reasons[-1]) == ("Hello", "stop")
            whole = await api.chat.completions.create(**CHAT)
            assert whole.choices[0].message.content == "Hello"
            assert whole.choices[0].finish_reason == "stop"
            assert whole.usage is not None
            assert whole.usage.total_tokens == 5
            assert whole.model == "tiny"
            raw = await raw_stream(run.url)
            assert raw.endswith(b"data: [DONE]\n\n")
            assert b'"usage"' not in raw
            assert b"secret" not in raw
            with_usage = await raw_stream(run.url, stream_options={"include_usage": True})
            assert b'"choices":[],"usage":{"prompt_tokens":3' in with_usage

    asyncio.run(main())


BROKEN = {
    "ends without finish_reason": "no_finish_reason",
    "ends without finish_reason but with DONE": "no_finish_reason",
    "cut mid stream": "cut",
    "aborted": "aborted",
    "error event": "error_event",
    "error text that is not JSON": "bad_data",
    "finish without usage": "bad_data",
    "no token within the deadline": "between_tokens_timeout",
}


def broken_script(parts, name: str):
    first = parts.chat("Hel")
    chunk = b"%x\r\n%s\r\n" % (len(first), first)
    return {
        "ends without finish_reason": parts.plays(parts.head, first),
        "ends without finish_reason but with DONE": parts.plays(
            parts.head, first, b"data: [DONE]\n\n"
        ),
        "cut mid stream": parts.plays(parts.chunked, chunk),
        "aborted": parts.plays(
            parts.head, first, parts.chat(None, "abort", usage=True), b"data: [DONE]\n\n"
        ),
        "error event": parts.plays(parts.head, first, b'data: {"error": "boom"}\n\n'),
        "error text that is not JSON": parts.plays(
            parts.head, first, b'data: {"error": "said "x""}\n\n'
        ),
        "finish without usage": parts.plays(parts.head, first, parts.chat(None, "stop")),
        "no token within the deadline": parts.hangs_after(parts.head, first),
    }[name]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_is_never_shown_as_complete(running, parts, name: str) -> None:
    limits = Limits(between_tokens_s=0.3)

    async def main() -> None:
        async with running(broken_script(parts, name), limits=limits) as run:
            with pytest.raises(openai.APIError):
                await streamed(run.url)
            async with client(run.url) as api:
                with pytest.raises(openai.APIStatusError) as failure:
                    await api.chat.completions.create(**CHAT)
                assert failure.value.status_code in (502, 504)
                assert isinstance(failure.value.code, str)
            raw = await raw_stream(run.url)
            assert b'"Hel"' in raw
            assert b'data: {"error":{"message":' in raw
            assert b"[DONE]" not in raw
            assert b'"finish_reason":"' not in raw
            counted = endings(run.gateway.metrics.text().decode())
            side = f'endpoint="chat",reason="{BROKEN[name]}",side="back_end"'
            assert counted == {f"luma_serve_endings_total{{{side}}}": 3.0}

    asyncio.run(main())


def test_a_broken_stream_cuts_the_connection(running, parts) -> None:
    """A clean end of the body would be read as success."""

    async def main() -> None:
        async with (
            running(parts.plays(parts.head, parts.chat("x"))) as run,
            aiohttp.ClientSession() as session,
            session.post(
                run.url + "/v1/chat/completions", json={**CHAT, "stream": True}
            ) as response,
        ):
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()

    asyncio.run(main())


def test_a_failure_before_the_first_token_is_a_status(running, parts) -> None:
    async def main() -> None:
        async with running(parts.hangs_after(parts.head), limits=Limits(first_token_s=0.2)) as run:
            with pytest.raises(openai.APIStatusError) as failure:
                await streamed(run.url)
            assert failure.value.status_code == 504
            assert failure.value.response.headers["x-should-retry"] == "false"
            await asyncio.wait_for(run.engine.closed.wait(), 1)

    asyncio.run(main())


def test_an_engine_that_cannot_be_reached_is_a_503(running, parts) -> None:
    async def main() -> None:
        async with running(parts.plays()) as run:
            run.engine._server.close()
            await run.engine._server.wait_closed()
            with pytest.raises(openai.InternalServerError) as failure:
                await streamed(run.url)
            assert failure.value.status_code == 503
            assert failure.value.response.headers["retry-after"] == "1"

    asyncio.run(main())


def test_an_engine_status_before_the_stream_is_passed_in_openai_form(running, parts) -> None:
    detail = json.dumps({"detail": {"message": "too long", "code": "context_length_exceeded"}})
    answer = (
        f"HTTP/1.1 400 Bad Request\r\ncontent-length: {len(detail)}\r\nconnection: close\r\n\r\n"
    )

    async def main() -> None:
        async with running(parts.plays((answer + detail).encode())) as run:
            with pytest.raises(openai.BadRequestError) as failure:
                await streamed(run.url)
            assert failure.value.code == "context_length_exceeded"
            assert failure.value.body["message"] == "too long"
            assert len(run.engine.requests) == 1  # a 4xx is sent once

    asyncio.run(main())


def test_utf8_one_byte_a_packet_and_line_separators_arrive_whole(running, parts) -> None:
    text = "größer \u2028 \u2029 \x85 日本 🙂"
    events = b": comment\r\n\r\n" + parts.chat(text) + parts.chat(None, "length", usage=True)
    every_byte = [bytes([b]) for b in events.replace(b"\n", b"\r\n")]

    async def main() -> None:
        async with running(parts.plays(parts.head, *every_byte)) as run:
            assert await streamed(run.url) == (text, [None, None, "length"])

    asyncio.run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_closes_the_engines_work_within_a_second(
    running, parts, stream: bool
) -> None:
    async def main() -> None:
        async with running(parts.hangs_after(parts.head, parts.chat("Hel"))) as run:
            async with aiohttp.ClientSession() as session:
                call = session.post(
                    run.url + "/v1/chat/completions", json={**CHAT, "stream": stream}
                )
                if stream:
                    response = await call
                    await response.content.readany()
                    response.close()
                else:
                    task = asyncio.ensure_future(call)
                    await run.engine.asked.wait()
                    task.cancel()
                await asyncio.wait_for(run.engine.closed.wait(), 1)
            await asyncio.wait_for(run.gateway._idle.wait(), 1)
            label = 'endpoint="chat",reason="disconnected",side="client"'
            counted = endings(run.gateway.metrics.text().decode())
            assert counted == {f"luma_serve_endings_total{{{label}}}": 1.0}

    asyncio.run(main())


def test_comments_flow_while_the_first_token_is_awaited(running, parts) -> None:
    async def script(_reader, writer) -> None:
        await asyncio.sleep(0.5)
        writer.write(parts.head + parts.chat("x") + parts.chat(None, "stop", usage=True))
        await writer.drain()

    async def main() -> None:
        async with running(script, limits=Limits(comment_s=0.1)) as run:
            raw = await raw_stream(run.url)
            assert raw.startswith(b": waiting\n\n")
            assert raw.endswith(b"[DONE]\n\n")
            assert await streamed(run.url) == ("x", [None, None, "stop"])

    asyncio.run(main())


def test_the_request_deadline_and_the_drain_deadline_fail_visibly(running, parts) -> None:
    script = parts.hangs_after(parts.head, parts.chat("Hel"))

    async def main() -> None:
        async with running(script, limits=Limits(request_s=0.3)) as run:
            assert b"request_timeout" in await raw_stream(run.url)
        async with running(script) as run:
            call = asyncio.ensure_future(raw_stream(run.url))
            await run.engine.asked.wait()
            run.gateway.enter("draining")
            async with aiohttp.ClientSession() as session:
                async with session.get(run.url + "/ready") as ready:
                    assert ready.status == 503
                async with session.get(run.url + "/health") as health:
                    assert health.status == 200
                async with session.post(run.url + "/v1/chat/completions", json=CHAT) as refused:
                    assert refused.status == 503
            assert not await run.gateway.drain(0.2)
            raw = await call
            assert b"shuts down" in raw
            assert b"[DONE]" not in raw

    asyncio.run(main())


def test_no_slot_leaks_after_many_failures(running, parts) -> None:
    """litellm#20256: after many broken requests a limit of one still admits."""
    script = parts.plays(parts.head, parts.chat("x"))

    async def main() -> None:
        async with running(script, limits=Limits(in_flight=1)) as run:
            for _ in range(50):
                assert b'"error"' in await raw_stream(run.url)
            assert run.gateway._in_flight == 0

    asyncio.run(main())


def test_more_than_the_limit_is_refused_with_retry_after(running, parts) -> None:
    async def main() -> None:
        limits = Limits(in_flight=1)
        async with running(parts.hangs_after(parts.head), limits=limits) as run:
            first = asyncio.ensure_future(raw_stream(run.url))
            await run.engine.asked.wait()
            with pytest.raises(openai.InternalServerError) as failure:
                await streamed(run.url)
            assert failure.value.response.headers["retry-after"] == "1"
            first.cancel()

    asyncio.run(main())


def test_nothing_of_the_client_reaches_logs_or_the_engine(running, parts, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    marker = "MARKER-7f3a"

    async def main() -> None:
        script = parts.plays(parts.head, parts.chat(marker), b'data: {"error": "x"}\n\n')
        async with running(script, api_key=marker) as run, aiohttp.ClientSession() as session:
            body = {**CHAT, "messages": [{"role": "user", "content": marker}]}
            for key, extra in ((marker, {}), ("wrong " + marker, {}), (marker, {marker: 1})):
                headers = {"authorization": f"Bearer {key}", "x-request-id": marker}
                async with session.post(
                    run.url + "/v1/chat/completions", json={**body, **extra}, headers=headers
                ) as response:
                    await response.read()
                    assert response.headers["x-request-id"].startswith("req_")
            assert all(marker.encode() not in request for request in run.engine.requests)

    asyncio.run(main())
    ours = [r for r in caplog.records if not r.name.startswith("asyncio")]
    assert all(marker not in record.getMessage() for record in ours)
    assert any("req_" in record.getMessage() for record in ours)
