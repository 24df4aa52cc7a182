"""A small finished run, copies of it that have not begun, and the command line as a user has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.coordinator.events import read_events
from runtime.run.files import link_tree

STEPS = 6
MODEL = """
    from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM
    import torch

    def build():
        return Qwen3ForCausalLM(Qwen3Config(
            vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, head_dim=16,
            max_position_embeddings=64, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=256, pad_token_id=None))

    class Branching(Qwen3ForCausalLM):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            if output.logits.max() > 0:
                output.logits = output.logits * 2
            return output

    def branching():
        return Branching(build().config)

    def double():
        return build().double()

    def few_tokens():
        config = build().config
        config.vocab_size = 100
        return Qwen3ForCausalLM(config)

    def broken():
        raise RuntimeError("no weights today")
"""
_UNCHANGING = (
    "model",
    "data",
    "artifact.luma",
    "signer.pem",
    "constants.safetensors",
    "run.json",
    "plan.json",
    "job.yaml",
)


def make_job(**changes: Any) -> dict[str, Any]:
    """Give the job; `changes` are merged into its sections."""
    job: dict[str, Any] = {
        "schema": "luma/v1",
        "name": "bad-input",
        "model": {"source": "./model.py:build"},
        "train": {
            "steps": STEPS,
            "micro_shards": 4,
            "micro_batch": 1,
            "seq_len": 32,
            "optimizer": {"lr": 1e-3},
            "checkpoint": {"every": 2, "keep": 5},
        },
        "data": {
            "source": "python://pydoc_data.topics",
            "packing": True,
            "max_samples": 40,
        },
        "resources": {"islands": 1},
        "recovery": {"heartbeat_timeout": "2s", "max_restarts": 1},
    }
    for section, fields in changes.items():
        job[section] = {**job[section], **fields}
    return job


def write_job(place: Path, **changes: Any) -> Path:
    """Write the job's files into a folder."""
    (place / "model.py").write_text(textwrap.dedent(MODEL))
    path = place / "job.yaml"
    path.write_text(json.dumps(make_job(**changes), indent=1))
    return path


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


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """Check that a command refused: its code, its words, no traceback, nothing on stdout."""
    said = done.stderr
    assert done.returncode == code, said
    assert "Traceback" not in said
    assert "luma: " in said
    for word in words:
        assert word in said, f"{word!r} is not in:\n{said}"
    assert done.stdout == ""


@dataclass(frozen=True)
class Ready:
    """A run folder that has not begun, or has stopped."""

    folder: Path

    def resume(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Go on with it."""
        return luma("launch", "--resume", self.folder, *words)

    def last(self, *kinds: str) -> dict[str, Any]:
        """Give the newest event of some kinds."""
        return [event for event in read_events(self.folder) if event["kind"] in kinds][-1]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, luma_home: Path) -> Ready:
    """Launch the job once."""
    place = tmp_path_factory.mktemp("bad-input")
    done = luma("launch", write_job(place), "--yes", "--run", place / "run")
    assert done.returncode == 0, done.stderr
    return Ready(place / "run")


@pytest.fixture
def fresh(finished: Ready, tmp_path: Path) -> Callable[..., Ready]:
    """Give a maker of copies of that run as it was before its first step."""

    def make(folder: Path = tmp_path / "run", *, copy: tuple[str, ...] = ()) -> Ready:
        folder.mkdir(exist_ok=True)
        (folder / "islands").mkdir()
        (folder / "checkpoints").mkdir()
        for name in _UNCHANGING:
            link_tree(finished.folder / name, folder / name)
        first = "checkpoints/step-000000"
        link_tree(finished.folder / first, folder / first)
        for name in copy:  # what a test will change must be a file of its own
            data = (folder / name).read_bytes()
            (folder / name).unlink()
            (folder / name).write_bytes(data)
        return Ready(folder)

    return make


@pytest.fixture
def ends_as_it_should(finished: Ready) -> Callable[[Ready], None]:
    """Give a check: resumed, a run ends in the state of the undisturbed one."""

    def check(run: Ready) -> None:
        done = run.resume("--json")
        assert done.returncode == 0, done.stderr
        certificate = json.loads(done.stdout)["certificate"]
        assert certificate["level"] == "exact", certificate["problems"]
        assert certificate["state_hash"] == finished.last("done")["state_hash"]

    return check


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Give a maker of a small file system, and of a larger one of it; skip where that is forbidden."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = False

    def resize(size_bytes: int) -> Path:
        nonlocal mounted
        options = f"size={size_bytes}" + (",remount" if mounted else "")
        command = ["mount", "-t", "tmpfs", "-o", options, "luma-test", str(path)]
        done = subprocess.run(command, check=False, capture_output=True)
        if done.returncode:
            assert not mounted, done.stderr
            pytest.skip("mounting a file system is not allowed here")
        mounted = True
        return path

    yield resize
    if mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)
