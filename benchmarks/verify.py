"""Verifying an artifact of 100 MB, against SHA-256 over it and AES-GCM over it.

The artifact is sealed under a key file: one payload of random bytes that calls itself unscrubbed, so
nothing but the format is judged. Two ways, each in a process of its own, in turns with the baseline:

- `stream`: open it, and check every chunk as it passes by, as a node does while it fetches;
- `whole`: `verify_artifact`, as `luma verify` does, which also judges the payload's form.

The baseline reads a file of the same chunks, takes SHA-256 of what is stored, and opens each chunk
with AES-256-GCM of `cryptography`. Memory is told as growth of the process's peak, for a quarter of
the size too: what is constant does not follow the size.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.children import Child, serve
from benchmarks.context import Context
from benchmarks.result import Goal, Result
from runtime.artifact import open_artifact, verify_artifact, write_artifact
from runtime.artifact.keys import public_key_bytes, public_key_from_bytes
from runtime.artifact.program import BlockTable, Program, TargetPayload, TensorSpec
from runtime.artifact.writer import DEFAULT_CHUNK_BYTES

_GOAL = Goal(limit=1.2)
_SIDES = ("stream", "whole", "baseline")
_TARGET = "cpu"
_TAG_BYTES = 16
_MODULE = "benchmarks.verify"


def measure(context: Context) -> list[Result]:
    """Time the three in turns; then look at the memory of each at two sizes."""
    size = context.pick(100_000_000, 4_000_000)
    files = _files(context.work / "verify", size)
    small = _files(context.work / "verify-small", size // 4)
    with (
        context.child(_MODULE) as stream,
        context.child(_MODULE) as whole,
        context.child(_MODULE) as baseline,
    ):
        children = dict(zip(_SIDES, (stream, whole, baseline), strict=True))
        seconds = _in_turns(children, files, context.pick(11, 3))
    growth = {
        side: [_growth(context, side, chosen) for chosen in (small, files)] for side in _SIDES
    }
    return [
        Result(
            name=f"verify/{side}",
            unit="s",
            luma=seconds[side],
            baselines={"sha256_and_aes_gcm": seconds["baseline"]},
            goal=_GOAL,
            notes={
                "payload_bytes": size,
                "chunk_bytes": DEFAULT_CHUNK_BYTES,
                "peak_growth_bytes": growth[side][1],
                "peak_growth_bytes_of_a_quarter": growth[side][0],
                "baseline_peak_growth_bytes": growth["baseline"][1],
            },
        )
        for side in ("stream", "whole")
    ]


def _in_turns(
    children: dict[str, Child], files: dict[str, str], rounds: int
) -> dict[str, list[float]]:
    """Give each side's seconds; the first round warms up and does not count."""
    seconds: dict[str, list[float]] = {side: [] for side in children}
    for number in range(rounds + 1):
        for side, child in children.items():
            taken = child.ask(side, **files)
            if number:
                seconds[side].append(taken)
    return seconds


def _growth(context: Context, side: str, files: dict[str, str]) -> int:
    """Give by how many bytes a side's peak memory grows, in a fresh process."""
    with context.child(_MODULE) as child:
        return child.ask("growth", side=side, files=files)


def _files(folder: Path, size: int) -> dict[str, str]:
    """Make an artifact, and the baseline's file, of about `size` bytes; give where all of it lies."""
    folder.mkdir(exist_ok=True)
    signer, key = ec.generate_private_key(ec.SECP384R1()), os.urandom(32)
    payload = _payload(os.urandom(size)).to_bytes()
    artifact, plain = folder / "artifact.luma", folder / "baseline"
    write_artifact(
        artifact,
        {_TARGET: payload},
        level="L1",
        signing_key=signer,
        data_key=key,
        graph_digest="0" * 64,
        statistics={},
        versions={},
    )
    cipher = AESGCM(key)
    with plain.open("wb") as file:
        for number, start in enumerate(range(0, len(payload), DEFAULT_CHUNK_BYTES)):
            chunk = payload[start : start + DEFAULT_CHUNK_BYTES]
            file.write(cipher.encrypt(_nonce(number), chunk, None))
    return {
        "artifact": str(artifact),
        "plain": str(plain),
        "key": key.hex(),
        "signer": public_key_bytes(signer.public_key()).hex(),
    }


def _payload(executable: bytes) -> TargetPayload:
    """Give a payload that the format accepts, whatever its executable is."""
    scalar = (TensorSpec(role="loss_sum", name="", shape=(), dtype="float32"),)
    program = Program(
        name="forward",
        inputs=(),
        outputs=scalar,
        donated=(),
        executable=executable,
        peak_memory_bytes=0,
        flops=0.0,
        bytes_moved=0.0,
    )
    return TargetPayload(
        target=_TARGET,
        programs={"forward": program},
        blocks=BlockTable(block_size=1, rows=()),
        cpu_name="",
        cpu_features=(),
        scrubbed=False,
    )


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


class _Side:
    """A child's work, each a method of its own: it gives its seconds."""

    def stream(self, artifact: str, plain: str, key: str, signer: str) -> float:
        """Check every chunk of the artifact, and keep none."""
        del plain
        trusted = public_key_from_bytes(bytes.fromhex(signer), "signer")
        started = time.perf_counter()
        opened = open_artifact(Path(artifact), trusted_signer=trusted, key=bytes.fromhex(key))
        for _ in opened.chunks(_TARGET):
            pass
        return time.perf_counter() - started

    def whole(self, artifact: str, plain: str, key: str, signer: str) -> float:
        """Verify the artifact as the command does."""
        del plain
        trusted = public_key_from_bytes(bytes.fromhex(signer), "signer")
        started = time.perf_counter()
        found = verify_artifact(Path(artifact), trusted_signer=trusted, key=bytes.fromhex(key))
        taken = time.perf_counter() - started
        assert found.level == "L1"
        return taken

    def baseline(self, artifact: str, plain: str, key: str, signer: str) -> float:
        """Hash and open the same bytes, and nothing else."""
        del artifact, signer
        started = time.perf_counter()
        cipher, digest, number = AESGCM(bytes.fromhex(key)), hashlib.sha256(), 0
        with open(plain, "rb") as file:
            while chunk := file.read(DEFAULT_CHUNK_BYTES + _TAG_BYTES):
                digest.update(chunk)
                cipher.decrypt(_nonce(number), chunk, None)
                number += 1
        digest.digest()
        return time.perf_counter() - started

    def growth(self, side: str, files: dict[str, str]) -> int:
        """Give by how many bytes the peak of this process's memory grows in a side's work."""
        before = _peak_bytes()
        getattr(self, side)(**files)
        return _peak_bytes() - before


def _peak_bytes() -> int:
    """Give the largest resident size of this process so far (`VmHWM` of proc(5))."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/self/status tells no VmHWM")


def _handlers() -> dict[str, Any]:
    side = _Side()
    return {name: getattr(side, name) for name in (*_SIDES, "growth")}


if __name__ == "__main__":
    serve(_handlers())
