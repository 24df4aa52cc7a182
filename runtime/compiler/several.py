"""Compile a package for several targets at once, each in a process of its own.

One target's failure leaves the others, and each has its own cache entry, so a later call compiles
only what failed. How many run at a time is bounded by cores and memory. An interrupt ends all
compiling processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from runtime.compiler.child import Children
from runtime.compiler.graph import GraphPackage
from runtime.compiler.service import CompileResult, Progress, compile_package
from runtime.spec import LumaError

__all__ = ["TargetOutcome", "compile_targets", "parallel_compiles"]

_PROCESS_BYTES = 700 << 20
"""Memory of a compiling process with a small graph: interpreter, jax and a target's compiler.
Measured: 350 MiB for cpu, 560 for cuda, 510 for tpu."""

_BYTES_PER_GRAPH_BYTE = 700
"""And with a large one, for each byte of its package. Measured on cpu between 0.22 MB (six layers,
486 MiB) and 0.92 MB (SmolLM2-135M, thirty layers, 904 MiB): 630."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutcome:
    """How the compile of one target ended.

    Attributes:
        target: the target.
        result: what came out; None where it failed.
        error: why it failed; None where it did not.
        seconds: how long it took, failed or not.
    """

    target: str
    result: CompileResult | None
    error: LumaError | None
    seconds: float


def compile_targets(
    package: GraphPackage,
    targets: Sequence[str],
    *,
    micro_shards: int,
    cache_dir: Path,
    data_key: bytes | None = None,
    progress: Progress | None = None,
    workers: int = 1,
) -> tuple[TargetOutcome, ...]:
    """Compile a package for several targets, `workers` at a time.

    Args:
        package: the captured graphs.
        targets: their names, each once.
        micro_shards: M of the job.
        cache_dir: where sealed payloads are kept.
        data_key: as in `compile_package`.
        progress: called with each event of `compile_package` and its "target", one call at a
            time, from several threads.
        workers: processes at a time; see `parallel_compiles`.

    Returns:
        One outcome a target, in the order of `targets`.
    """
    children, lock = Children(), threading.Lock()

    def tell(target: str, event: Mapping[str, object]) -> None:
        if progress is not None:
            with lock:
                progress({"target": target, **event})

    def work(target: str) -> TargetOutcome:
        started = time.perf_counter()
        result, failure = None, None
        try:
            result = compile_package(
                package,
                target=target,
                micro_shards=micro_shards,
                cache_dir=cache_dir,
                data_key=data_key,
                progress=lambda event: tell(target, event),
                children=children,
            )
            tell(target, {"stage": "done", "cached": result.cached, "seconds": result.seconds})
        except LumaError as error:
            failure = error
            tell(target, {"stage": "failed", "message": error.message})
        seconds = time.perf_counter() - started
        return TargetOutcome(target=target, result=result, error=failure, seconds=seconds)

    with ThreadPoolExecutor(max_workers=max(1, min(workers, len(targets)))) as pool:
        try:
            return tuple(pool.map(work, targets))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            children.end()
            raise


def parallel_compiles(package_bytes: int, *, cores: int, memory_bytes: int) -> int:
    """Give how many targets can be compiled at a time.

    Args:
        package_bytes: size of the graph package.
        cores: cores that may be used; a compile keeps one busy most of the time.
        memory_bytes: memory that may be used.
    """
    each = _PROCESS_BYTES + _BYTES_PER_GRAPH_BYTE * package_bytes
    return max(1, min(cores, memory_bytes // each))
