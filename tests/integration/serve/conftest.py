"""A real engine behind the gateway: a tiny random Llama with a small real tokenizer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'assistant' and loop.first %}{{ raise_exception('user first') }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_SERVER = """
import logging, sys
from pathlib import Path
from runtime.serve import Limits, serve
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
sys.exit(serve(
    Path(sys.argv[1]), model_name="tiny", host="127.0.0.1", port=0,
    limits=Limits(notice_s=0.2, drain_s=float(sys.argv[2]), max_tokens=16000),
    on_ready=lambda url: print(url, flush=True),
))
"""


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    from pydoc_data.topics import topics

    tokenizer.train_from_iterator(list(topics.values())[:10], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder in HF format: 2 layers, 64 wide, 16,384 tokens of context.

    The end token's row of the head is zero, so its score is never the highest: a greedy answer
    goes on until its limit, however fast the machine.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-llama")
    _tokenizer(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16_384,
        eos_token_id=2, bos_token_id=None, pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[2] = 0
    model.save_pretrained(folder)
    return folder


@dataclass
class Served:
    """A gateway's process."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def engine(self) -> psutil.Process:
        """The back end's process."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def status(self, path: str) -> int:
        """The status of a GET."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code

    def wait_ready(self, seconds: float = 60) -> None:
        """Wait until requests would be answered."""
        deadline = time.monotonic() + seconds
        while self.status("/ready") != 200:
            assert time.monotonic() < deadline, "not ready again in time"
            time.sleep(0.1)


Start = Callable[..., contextlib.AbstractContextManager[Served]]


@contextlib.contextmanager
def _started(folder: Path, log: Path, *, drain_s: float = 10) -> Iterator[Served]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(folder), str(drain_s)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=log.parent,
        )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, log.read_text()
        yield Served(process=process, url=url, log=log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
        process.wait()


@pytest.fixture(scope="session")
def start_server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Start a gateway of one's own, as a context manager."""

    def start(**options: float) -> contextlib.AbstractContextManager[Served]:
        return _started(tiny_llama, tmp_path_factory.mktemp("serve") / "log.txt", **options)

    return start


@pytest.fixture(scope="module")
def shared_server(start_server: Start) -> Iterator[Served]:
    """One gateway for a module's tests."""
    with start_server() as served:
        yield served


@pytest.fixture
def server(shared_server: Served) -> Served:
    """The module's gateway, ready: an earlier test may have killed its engine."""
    shared_server.wait_ready()
    return shared_server
