"""Several targets at once: one failure leaves the others, and an interrupt leaves no process."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from runtime.compiler import GraphPackage, compile_targets
from runtime.compiler.cache import CompileCache
from runtime.compiler.child import Children
from runtime.compiler.several import parallel_compiles
from runtime.compiler.targets import cuda
from runtime.spec import CompileError

KEY = bytes(range(32))


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CUDA compiler be missing, whether it is or not."""
    monkeypatch.setattr(cuda, "_PLUGIN", "no_such_package")


def test_a_target_that_fails_leaves_the_others_and_each_is_cached_on_its_own(
    square_package: GraphPackage, tmp_path: Path
) -> None:
    events: list[Mapping[str, object]] = []

    def compile_again(*targets: str):
        return compile_targets(
            square_package,
            targets,
            micro_shards=4,
            cache_dir=tmp_path,
            data_key=KEY,
            progress=events.append,
            workers=2,
        )

    failed, plain, mesh = compile_again("cuda-sm90", "cpu", "cpux3")
    assert [o.target for o in (failed, plain, mesh)] == ["cuda-sm90", "cpu", "cpux3"]
    assert failed.result is None
    assert isinstance(failed.error, CompileError)
    assert "no_such_package" in failed.error.message
    for outcome in (plain, mesh):
        assert outcome.error is None
        assert outcome.result is not None
        assert not outcome.result.cached
        assert outcome.result.payload.target == outcome.target
    assert {e["target"] for e in events} == {"cuda-sm90", "cpu", "cpux3"}
    stages = [(e["target"], e["stage"]) for e in events]
    assert ("cuda-sm90", "failed") in stages
    assert stages.count(("cpu", "compile")) == 2
    assert stages.index(("cpu", "done")) > stages.index(("cpu", "compile"))
    again = compile_again("cpux3", "cpu")
    assert [o.result.cached for o in again if o.result] == [True, True]


def test_an_interrupt_ends_the_compiling_processes(
    square_package: GraphPackage, tmp_path: Path
) -> None:
    started = threading.Event()

    def interrupt(event: Mapping[str, object]) -> None:
        if event["stage"] == "lower":
            started.set()
            raise KeyboardInterrupt

    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        compile_targets(
            square_package,
            ("cpu", "cpux2", "cpux3"),
            micro_shards=8,
            cache_dir=tmp_path,
            data_key=KEY,
            progress=interrupt,
            workers=2,
        )
    assert started.is_set()
    assert time.monotonic() - before < 60
    workers = [c for c in psutil.Process().children() if "runtime.compiler.worker" in c.cmdline()]
    assert workers == []
    assert list(tmp_path.glob("*.sealed")) == []


def test_a_call_that_waits_for_another_can_be_ended(tmp_path: Path) -> None:
    cache, children, told = CompileCache(tmp_path, KEY), Children(), threading.Event()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            with cache.locked("a", told.set, stopped=children.ended):
                pass
        except CompileError as error:
            ended.append(error)

    with cache.locked("a", lambda: None):
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert told.wait(timeout=10)
        children.end()
        waiter.join(timeout=10)
    assert not waiter.is_alive()
    assert "given up" in str(ended[0])


def test_a_child_that_starts_after_the_end_is_killed() -> None:
    import subprocess
    import sys

    children = Children()
    children.end()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    children.add(child)
    assert child.wait(timeout=10) == -9


def test_as_many_at_a_time_as_cores_and_memory_allow() -> None:
    gib, small, large = 1 << 30, 1_000, 10_000_000
    assert parallel_compiles(small, cores=4, memory_bytes=64 * gib) == 4
    assert parallel_compiles(small, cores=8, memory_bytes=3 * gib // 2) == 2
    assert parallel_compiles(small, cores=8, memory_bytes=0) == 1
    fewer = parallel_compiles(large, cores=99, memory_bytes=64 * gib)
    assert 1 <= fewer < parallel_compiles(small, cores=99, memory_bytes=64 * gib)
