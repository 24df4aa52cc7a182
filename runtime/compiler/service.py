"""Compile a graph package for a target: look it up, else compile it once in a child process.

`compile_package` promises: the same package, target, M, versions and kind of host give a payload
from the cache without compiling; two calls at once compile once; a call that is killed leaves
nothing that a later call trips over.
"""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

import runtime
from runtime.artifact.keys import generate_data_key, load_data_key
from runtime.artifact.program import TargetPayload
from runtime.compiler.blocks import shard_bits
from runtime.compiler.cache import CompileCache
from runtime.compiler.child import Children, run_worker
from runtime.compiler.graph import GraphPackage
from runtime.compiler.targets import Target, back_end, find_target
from runtime.spec import ArtifactError

Progress = Callable[[Mapping[str, object]], None]
"""Takes {"stage": "cached" | "waiting" | "note" | "lower" | "compile", and stage by stage
"program", "seconds", "message"}."""

_KEY_FILE = "cache.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileResult:
    """A compiled package.

    Attributes:
        payload: the programs of the target.
        cached: whether it came from the cache.
        seconds: how long the call took.
        notes: what the user should know, such as a cache entry that had to be replaced.
    """

    payload: TargetPayload
    cached: bool
    seconds: float
    notes: tuple[str, ...] = ()


def compile_package(
    package: GraphPackage,
    *,
    target: str,
    micro_shards: int,
    cache_dir: Path,
    data_key: bytes | None = None,
    progress: Progress | None = None,
    children: Children | None = None,
) -> CompileResult:
    """Compile a package for one target, or take the payload from the cache.

    Args:
        package: the captured graphs.
        target: such as "cpu", "cuda-sm90" or "tpu-v5ex4".
        micro_shards: M of the job, a constant of the compiled program.
        cache_dir: where sealed payloads are kept.
        data_key: 32 bytes that entries are sealed under. Default: the folder's own `cache.key`,
            made on first use and readable by its owner only.
        progress: called with each event, from this thread.
        children: knows the compiling process while it runs, so that another thread can end it.

    Raises:
        CompileError: the target or M is not allowed, the target's compiler is missing or failed.
        LoweringError: ops have no lowering for the target.
        ArtifactError: the cache's key file cannot be used.
    """
    started = time.perf_counter()
    chosen = find_target(target)
    shard_bits(micro_shards)
    cache = CompileCache(cache_dir, data_key or _folder_key(cache_dir))
    name = cache.name(_identity(package, chosen, micro_shards))
    emit = progress or (lambda _event: None)
    notes: list[str] = []
    known = children or Children()
    with cache.locked(name, lambda: emit({"stage": "waiting"}), stopped=known.ended):
        payload = _from_cache(cache, name, notes)
        cached = payload is not None
        if payload is None:
            for note in notes:
                emit({"stage": "note", "message": note})
            payload = _compile(package, chosen, micro_shards, emit, known)
            cache.store(name, payload.to_bytes())
        else:
            emit({"stage": "cached"})
    seconds = time.perf_counter() - started
    return CompileResult(payload=payload, cached=cached, seconds=seconds, notes=tuple(notes))


def _from_cache(cache: CompileCache, name: str, notes: list[str]) -> TargetPayload | None:
    """Give the cached payload; note an entry that cannot be trusted."""
    try:
        data = cache.load(name)
        return None if data is None else TargetPayload.from_bytes(data)
    except ArtifactError as error:
        notes.append(f"the compile cache's entry cannot be trusted and is replaced: {error}")
        return None


def _compile(
    package: GraphPackage,
    target: Target,
    micro_shards: int,
    emit: Progress,
    children: Children,
) -> TargetPayload:
    """Compile in a child process."""
    lacking = back_end(target).missing(target)
    if lacking is not None:
        raise lacking.error(target)
    data = run_worker(
        package.to_bytes(),
        target=target,
        micro_shards=micro_shards,
        emit=emit,
        children=children,
    )
    return TargetPayload.from_bytes(data)


def _folder_key(cache_dir: Path) -> bytes:
    """Give the folder's own key, made on first use."""
    path = cache_dir / _KEY_FILE
    if not path.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        try:
            return generate_data_key(path)
        except ArtifactError:
            if not path.exists():  # else another process made it in this moment
                raise
    return load_data_key(path)


def _identity(package: GraphPackage, target: Target, micro_shards: int) -> dict[str, str]:
    """Give everything that decides the payload's bytes."""
    return {
        "package": package.digest(),
        "target": target.name,
        "micro_shards": str(micro_shards),
        "environment": repr(sorted(target.environment.items())),
        "topology": target.topology,
        "description": target.description,
        "versions": repr(sorted(back_end(target).versions().items())),
        "code": _code_digest(),
        "host": _host_digest() if target.family == "cpu" else "",
    }


@functools.cache
def _code_digest() -> str:
    """Give a digest of our own compiler's source: a changed lowering is another compiler."""
    root = Path(runtime.__file__).parent
    digest = blake3()
    folders = (root / "compiler", root / "kernels", root / "artifact")
    for path in sorted(file for folder in folders for file in folder.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(blake3(path.read_bytes()).digest())
    return digest.hexdigest()


@functools.cache
def _host_digest() -> str:
    """Give a digest of this host's CPU: a CPU payload is for its class only."""
    info = Path("/proc/cpuinfo")
    kept = ("vendor_id", "cpu family", "model\t", "flags", "Features", "CPU part")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor()]
    chosen = sorted({line for line in lines if line.startswith(kept)}) or lines[:1]
    return blake3("\n".join([platform.machine(), *chosen]).encode()).hexdigest()
