"""Small jobs of each kind, launched once per session when a test asks for them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from runtime.coordinator.events import read_events
from runtime.coordinator.log import LOG_FILE, Commit, SqliteCommitLog
from runtime.spec import JobSpec

STEPS = 20
LONG = 120
"""Steps of the job that is killed twice: a step takes 10 ms, and a fault may be ten steps late."""
SHARDS, MICRO_BATCH = 4, 2
SEED = 3
MODELS = Path(__file__).parent / "models.py"
TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def job(source: str, **changes: dict[str, Any]) -> dict[str, Any]:
    """Give a job as its file says it; `changes` are merged into its sections."""
    document: dict[str, Any] = {
        "schema": "luma/v1",
        "name": "parity",
        "model": {"source": source, "dtype": "fp32"},
        "compile": {"seal": "L1", "targets": ["cpu"]},
        "train": {
            "steps": STEPS,
            "micro_shards": SHARDS,
            "micro_batch": MICRO_BATCH,
            "seq_len": 48,
            "seed": SEED,
            "optimizer": {"name": "adamw", "lr": 3e-3, "weight_decay": 0.1, "grad_clip": 1.0},
            "schedule": {"kind": "cosine", "warmup_steps": 4, "min_lr_ratio": 0.1},
            "checkpoint": {"every": 10, "keep": 3},
        },
        # 20 steps of 8 samples: three passes and a part of a fourth.
        "data": {"source": "python://pydoc_data.topics", "packing": True, "max_samples": 50},
        "resources": {"islands": 1, "max_workers": 3, "threads_per_island": 1},
        "recovery": {"heartbeat_timeout": "2s", "max_restarts": 2},
    }
    for section, fields in changes.items():
        document[section] = {**document.get(section, {}), **fields}
    return document


KINDS: dict[str, dict[str, Any]] = {
    "packed": job("./model.py:qwen3"),
    "unpacked": job("./model.py:qwen3", data={"packing": False}),
    "dropout": job("./model.py:gpt2", data={"packing": False}),
    "long": job(
        "./model.py:gpt2",
        data={"packing": False},
        train={"steps": LONG, "checkpoint": {"every": 5, "keep": 6}},
    ),
    "buffer": job("./model.py:scaled"),
    "lora": job(
        "./base",
        adapter={
            "kind": "lora",
            "r": 4,
            "alpha": 8.0,
            "dropout": 0.1,
            "target_modules": ["q_proj", "v_proj"],
        },
        data={"source": "./text.jsonl", "packing": False},
    ),
    "chat": job("./base", data={"source": "./chat.jsonl", "kind": "chat", "packing": True}),
}


@dataclass(frozen=True)
class Launched:
    """A job that was launched, and its run."""

    place: Path
    folder: Path

    @property
    def spec(self) -> JobSpec:
        """The job."""
        return JobSpec.from_yaml(self.place / "job.yaml")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Give the run's events of one kind."""
        return [event for event in read_events(self.folder) if event["kind"] == kind]

    def commits(self) -> list[Commit]:
        """Give the log's commits."""
        return SqliteCommitLog(self.folder / LOG_FILE, read_only=True).commits()

    def certificate(self) -> dict[str, Any]:
        """Read the certificate."""
        return json.loads((self.folder / "certificate.json").read_text())

    def checkpoint(self, step: int) -> Path:
        """Give a checkpoint's folder."""
        return self.folder / "checkpoints" / f"step-{step:06d}"


def luma(*words: str | Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run(
        [sys.executable, "-m", "runtime.cli", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: a random Llama with a tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("hf") / "base"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([topics[name] for name in sorted(topics)[:4]], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def chats() -> list[list[dict[str, str]]]:
    """Give small chats about Python's topics."""
    found = []
    for name in sorted(topics)[:60]:
        words = topics[name].split()
        found.append(
            [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": f"What is {name}?"},
                {"role": "assistant", "content": " ".join(words[:8])},
                {"role": "user", "content": "And more?"},
                {"role": "assistant", "content": " ".join(words[8:14])},
            ]
        )
    return found


def write_data(place: Path) -> None:
    """Write the text and chat data of the jobs."""
    texts = [json.dumps({"text": topics[name][:300]}) for name in sorted(topics)[:60]]
    (place / "text.jsonl").write_text("\n".join(texts) + "\n")
    lines = [json.dumps({"messages": chat}) for chat in chats()]
    (place / "chat.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def make_place(
    tmp_path_factory: pytest.TempPathFactory, base_folder: Path
) -> Callable[[str], Path]:
    """Give a maker of folders that hold one kind of job and all that it names."""

    def make(kind: str) -> Path:
        place = tmp_path_factory.mktemp(f"job-{kind}")
        shutil.copy(MODELS, place / "model.py")
        shutil.copytree(base_folder, place / "base")
        write_data(place)
        (place / "job.yaml").write_text(json.dumps(KINDS[kind], indent=1))
        return place

    return make


@pytest.fixture(scope="session")
def launched(make_place: Callable[[str], Path], luma_home: Path) -> Callable[[str], Launched]:
    """Give finished runs by kind of job; each is launched once."""
    runs: dict[str, Launched] = {}

    def launch(kind: str) -> Launched:
        if kind not in runs:
            place = make_place(kind)
            done = luma("launch", place / "job.yaml", "--yes", "--run", place / "run")
            assert done.returncode == 0, done.stderr
            runs[kind] = Launched(place, place / "run")
        return runs[kind]

    return launch
