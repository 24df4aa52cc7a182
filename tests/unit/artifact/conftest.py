"""Keys and small payloads for the tests of the artifact."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime.artifact import (
    BlockTable,
    LocalKeys,
    Program,
    TargetPayload,
    TensorSpec,
    load_or_create_keys,
    write_artifact,
)

CHUNK_BYTES = 1024
GRAPH_DIGEST = "5a" * 32


def make_payload(
    target: str,
    seed: int,
    size: int = 3000,
    executable: bytes | None = None,
    *,
    scrubbed: bool = False,
) -> TargetPayload:
    """Make a payload whose executable is random bytes: the format does not look into it."""
    weight = TensorSpec(role="param", name="model.w", shape=(4, 8), dtype="float32")
    program = Program(
        name="forward",
        inputs=(weight, TensorSpec(role="batch", name="input_ids", shape=(2, 4), dtype="int32")),
        outputs=(TensorSpec(role="logits", name="", shape=(2, 4, 8), dtype="float32"),),
        donated=(),
        executable=executable or random.Random(seed).randbytes(size),
        peak_memory_bytes=4096,
        flops=512.0,
        bytes_moved=384.0,
    )
    return TargetPayload(
        target=target,
        programs={"forward": program},
        blocks=BlockTable(block_size=4096, rows=(("model.w", 0, 1),)),
        cpu_name="haswell",
        cpu_features=("avx2", "fma"),
        scrubbed=scrubbed,
    )


@dataclass(frozen=True)
class Bench:
    """A folder, its keys, and a way to write artifacts there."""

    folder: Path
    keys: LocalKeys

    def write(self, name: str, level: str, seed: int = 1, **changes) -> Path:
        """Write an artifact for two targets."""
        path = self.folder / name
        arguments = {
            "level": level,
            "signing_key": self.keys.signing_key,
            "data_key": None if level == "L0" else self.keys.data_key,
            "graph_digest": GRAPH_DIGEST,
            "statistics": {"parameters": 32, "loss": 0.5, "tied": True, "family": "tiny"},
            "versions": {"jax": "0.10.2"},
            "chunk_bytes": CHUNK_BYTES,
        } | changes
        payloads = {
            target: make_payload(target, seed + i).to_bytes()
            for i, target in enumerate(("cpu", "tpu"))
        }
        write_artifact(path, payloads, **arguments)
        return path

    def key_for(self, level: str) -> bytes | None:
        """Give the data key where the level needs one."""
        return self.keys.data_key if level == "L1" else None


@pytest.fixture(scope="session")
def bench(tmp_path_factory) -> Bench:
    """One folder with keys for the whole session; each test takes its own file names."""
    folder = tmp_path_factory.mktemp("artifacts")
    return Bench(folder=folder, keys=load_or_create_keys(folder / "home"))


@pytest.fixture(scope="session")
def payload_maker():
    """Give the function that makes small payloads."""
    return make_payload
