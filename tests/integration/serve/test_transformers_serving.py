"""`transformers serve` behind the gateway, for real: read by the official client."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

pytestmark = pytest.mark.timeout(120)

MESSAGES: Any = [{"role": "user", "content": "What is a lambda expression?"}]
PROMPT = "The with statement is used to"
GREEDY: Any = {"model": "tiny", "temperature": 0, "max_tokens": 12}
ENDLESS: Any = {**GREEDY, "prompt": PROMPT, "max_tokens": 16_000}


@pytest.fixture
def api(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60)


def reference(folder: Path, prompt: str | Any, tokens: int) -> str:
    """What transformers' own `generate` answers, without any server."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    if isinstance(prompt, str):
        inputs = tokenizer(prompt, return_tensors="pt")
    else:
        inputs = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    out = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_the_model_is_listed_by_its_name(api, server) -> None:
    assert [m.id for m in api.models.list()] == ["tiny"]
    assert api.models.retrieve("tiny").id == "tiny"
    assert server.status("/health") == server.status("/ready") == 200


def test_greedy_answers_equal_generate_and_do_not_begin_with_the_prompt(api, tiny_llama) -> None:
    """The last characters may be bytes of an unfinished character, which a stream cannot send."""
    text = api.completions.create(prompt=PROMPT, **GREEDY)
    expected = reference(tiny_llama, PROMPT, 12).rstrip("\ufffd")
    assert text.choices[0].text.rstrip("\ufffd") == expected
    assert not text.choices[0].text.startswith(PROMPT)
    assert text.choices[0].finish_reason == "length"
    assert text.usage is not None
    assert text.usage.completion_tokens == 12
    chat = api.chat.completions.create(messages=MESSAGES, **GREEDY)
    expected = reference(tiny_llama, MESSAGES, 12).rstrip("\ufffd")
    assert (chat.choices[0].message.content or "").rstrip("\ufffd") == expected


def test_streams_say_the_same_as_whole_answers(api) -> None:
    whole = api.chat.completions.create(messages=MESSAGES, **GREEDY)
    chunks = list(
        api.chat.completions.create(
            messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == "length"
    plain = list(api.completions.create(prompt=PROMPT, stream=True, **GREEDY))
    assert plain[-1].choices[0].finish_reason == "length"
    joined = "".join(c.choices[0].text for c in plain)
    assert joined == api.completions.create(prompt=PROMPT, **GREEDY).choices[0].text


def test_each_request_keeps_its_own_sampling_in_one_batch(api) -> None:
    """transformers alone would give every request the first one's temperature and seed."""
    hot: Any = {"model": "tiny", "temperature": 1.5, "max_tokens": 24, "prompt": PROMPT}
    cold: Any = {**GREEDY, "prompt": PROMPT, "max_tokens": 24}
    alone = {
        "cold": api.completions.create(**cold).choices[0].text,
        1: api.completions.create(seed=1, **hot).choices[0].text,
        2: api.completions.create(seed=2, **hot).choices[0].text,
    }
    assert len(set(alone.values())) == 3
    assert api.completions.create(**hot).choices[0].text not in alone.values()
    asked: list[Any] = ["cold", 1, 2, 1, "cold", 2]
    with ThreadPoolExecutor(6) as pool:
        together = pool.map(
            lambda k: api.completions.create(**(cold if k == "cold" else {**hot, "seed": k})),
            asked,
        )
        assert [c.choices[0].text for c in together] == [alone[k] for k in asked]


def test_a_stop_string_ends_the_answer_before_itself(api) -> None:
    full = api.completions.create(prompt=PROMPT, **GREEDY)
    text = full.choices[0].text
    stop = text[5:8]
    stopped = api.completions.create(prompt=PROMPT, stop=[stop, "never there"], **GREEDY)
    assert stopped.choices[0].text == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert 0 < stopped.usage.completion_tokens < full.usage.completion_tokens
    chunks = list(api.completions.create(prompt=PROMPT, stop=stop, stream=True, **GREEDY))
    assert "".join(c.choices[0].text for c in chunks) == stopped.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_what_does_not_fit_is_refused_and_a_default_shrinks(api) -> None:
    long_prompt = "word " * 2000
    with pytest.raises(openai.BadRequestError) as failure:
        api.completions.create(model="tiny", prompt=long_prompt, max_tokens=15_000)
    assert failure.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as failure:
        api.chat.completions.create(model="tiny", messages=[{"role": "assistant", "content": "x"}])
    assert "user first" in str(failure.value)


def test_metrics_count_tokens_and_endings(api, server) -> None:
    def metrics() -> dict[str, float]:
        with urllib.request.urlopen(server.url + "/metrics") as response:
            lines = response.read().decode().splitlines()
        pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return {name: float(value) for name, _, value in pairs}

    before = metrics()
    usage = api.completions.create(prompt=PROMPT, **GREEDY).usage
    after = metrics()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown('luma_serve_tokens_total{kind="completion"}') == usage.completion_tokens
    assert grown('luma_serve_tokens_total{kind="prompt"}') == usage.prompt_tokens
    label = '{endpoint="completions",reason="complete",side="none"}'
    assert grown(f"luma_serve_endings_total{label}") == 1
    assert grown('luma_serve_first_token_seconds_count{endpoint="completions"}') == 1
    assert after['luma_serve_state{state="ready"}'] == 1
    assert after["luma_serve_in_flight"] == 0


def busy(process: psutil.Process, seconds: float) -> float:
    """The share of one core that a process uses over a while."""
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / seconds


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_the_engine(api, server, stream: bool) -> None:
    if stream:
        chunks = api.completions.create(stream=True, **ENDLESS)
        next(iter(chunks))
        chunks.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            api.with_options(timeout=0.5).completions.create(**ENDLESS)
    deadline = time.monotonic() + 5  # the answer alone would take longer
    while busy(server.engine(), 0.5) > 0.3:
        assert time.monotonic() < deadline, "the engine goes on for a client that has left"
    with urllib.request.urlopen(server.url + "/metrics") as response:
        assert "luma_serve_in_flight 0.0" in response.read().decode()


def test_a_killed_engine_is_an_error_in_both_modes_and_comes_back(api, server) -> None:
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(lambda: api.completions.create(**ENDLESS))
        chunks = iter(api.completions.create(stream=True, **ENDLESS))
        got = [next(chunks) for _ in range(5)]
        server.engine().send_signal(signal.SIGKILL)
        with pytest.raises(openai.APIError):
            got.extend(chunks)
        with pytest.raises(openai.APIStatusError) as failure:
            whole.result(10)
        assert failure.value.status_code in (502, 503)
    assert all(chunk.choices[0].finish_reason is None for chunk in got)
    assert server.status("/ready") == 503
    assert server.status("/health") == 200
    server.wait_ready()
    assert api.completions.create(prompt=PROMPT, **GREEDY).choices[0].finish_reason == "length"


def test_logs_hold_no_prompt_and_no_answer(api, server) -> None:
    marker = "Zanzibar-4711"
    answer = api.completions.create(prompt=marker, model="tiny", temperature=0, max_tokens=16)
    number, deadline = answer.id.removeprefix("cmpl-"), time.monotonic() + 60
    while number not in (log := server.log.read_text()):  # its line may come after its answer
        assert time.monotonic() < deadline, log
        time.sleep(0.01)
    assert marker not in log
    assert answer.choices[0].text not in log


@pytest.mark.slow
def test_sigterm_finishes_a_stream_then_leaves_no_process(start_server) -> None:
    with start_server() as served:
        engine = served.engine()
        body = json.dumps({**GREEDY, "prompt": PROMPT, "max_tokens": 300, "stream": True}).encode()
        request = urllib.request.Request(
            served.url + "/v1/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            first = response.readline()
            served.process.send_signal(signal.SIGTERM)
            rest = response.read()
        assert first.startswith(b"data: {")
        assert rest.endswith(b"data: [DONE]\n\n")
        assert served.process.wait(20) == 0
        assert not engine.is_running()


@pytest.mark.slow
def test_a_gateway_killed_with_sigkill_leaves_no_engine_behind(start_server) -> None:
    with start_server() as served:
        engine = served.engine()
        served.process.kill()
        engine.wait(5)


@pytest.mark.slow
def test_a_checkpoint_that_the_engine_cannot_load_is_an_error_with_its_words(
    tiny_llama: Path, tmp_path: Path
) -> None:
    import shutil

    from runtime.serve import serve
    from runtime.spec import ServeError

    broken = tmp_path / "broken"
    shutil.copytree(tiny_llama, broken)
    (broken / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(ServeError, match="ended at start") as failure:
        serve(broken, model_name="m", host="127.0.0.1", port=0)
    assert "last lines" in failure.value.diagnostics()
