"""Compiling in a child process, and the cache: hits, waiting, tampering, kill -9."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import psutil
import pytest

import runtime
from runtime.agent.executable import load_program
from runtime.artifact.leaks import SCRUBBED_KINDS, leaks
from runtime.compiler import GraphPackage, child, compile_package
from runtime.compiler.cache import CompileCache
from runtime.compiler.child import Children
from runtime.compiler.graph import Graph, Node, Ref, TensorType
from runtime.compiler.service import CompileResult
from runtime.compiler.targets import find_target
from runtime.spec import ArtifactError, CompileError, LoweringError

KEY = bytes(range(32))


def compile_square(
    package: GraphPackage, folder: Path, *, shards: int = 4, key: bytes = KEY
) -> tuple[CompileResult, list[Mapping[str, object]]]:
    """Compile for this host; give the result and the events."""
    events: list[Mapping[str, object]] = []
    result = compile_package(
        package,
        target="cpu",
        micro_shards=shards,
        cache_dir=folder,
        data_key=key,
        progress=events.append,
    )
    return result, events


@pytest.fixture(scope="module")
def compiled(
    square_package: GraphPackage, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, CompileResult, list[Mapping[str, object]]]:
    """A cache folder with one entry, and how it came."""
    folder = tmp_path_factory.mktemp("cache")
    return folder, *compile_square(square_package, folder)


def entries(folder: Path) -> list[Path]:
    """Give the entries of a cache folder."""
    return sorted(folder.glob("*.sealed"))


def test_a_compiled_package_runs_and_tells_its_cost(
    compiled: tuple[Path, CompileResult, list[Mapping[str, object]]],
) -> None:
    _, result, events = compiled
    assert not result.cached
    payload = result.payload
    assert payload.cpu_name
    assert "avx512f" not in payload.cpu_features
    # Programs are compiled at the same time: the order within each is what holds.
    stages = {
        name: [e["stage"] for e in events if e["program"] == name] for name in ("grad", "apply")
    }
    assert stages == {"grad": ["lower", "compile"], "apply": ["lower", "compile"]}
    assert len(events) == 4
    grad = payload.programs["grad"]
    assert grad.flops > 0
    assert grad.bytes_moved > 0
    arguments = sum(4 * int(np.prod(spec.shape)) for spec in grad.inputs)
    assert grad.peak_memory_bytes >= arguments
    given = [np.ones(spec.shape, spec.dtype) for spec in grad.inputs]
    out = dict(zip([s.role for s in grad.outputs], load_program(grad).run(given), strict=True))
    assert float(out["loss_sum"]) == 3 + 90 * 70
    assert int(out["tokens"]) == 4


def test_a_payload_that_calls_itself_scrubbed_holds_no_names_or_paths(
    compiled: tuple[Path, CompileResult, list[Mapping[str, object]]],
) -> None:
    payload = compiled[1].payload
    assert payload.scrubbed
    found = leaks(payload.to_bytes())
    assert [kind for kind in SCRUBBED_KINDS if found.get(kind)] == []


def test_the_same_package_is_compiled_once(
    square_package: GraphPackage,
    compiled: tuple[Path, CompileResult, list[Mapping[str, object]]],
) -> None:
    folder, first, _ = compiled
    again, events = compile_square(square_package, folder)
    assert again.cached
    assert events == [{"stage": "cached"}]
    assert again.payload == first.payload


def test_entries_are_sealed_and_their_names_need_the_key(
    compiled: tuple[Path, CompileResult, list[Mapping[str, object]]],
) -> None:
    folder, result, _ = compiled
    (entry,) = entries(folder)
    data = entry.read_bytes()
    assert b"layer.weight" not in data
    assert result.payload.programs["grad"].executable[:64] not in data
    assert entry.stat().st_mode & 0o077 == 0
    parts = {"package": "x"}
    names = {CompileCache(folder, bytes([i]) * 32).name(parts) for i in (1, 2)}
    assert len(names) == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap", "rename"])
def test_a_damaged_entry_does_not_open(tmp_path: Path, damage: str) -> None:
    cache = CompileCache(tmp_path, KEY)
    cache.store("a" * 64, b"payload" * 100)
    entry = cache.path("a" * 64)
    whole = entry.read_bytes()
    broken = {
        "flip": whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:],
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "swap": whole[:16] + os.urandom(len(whole) - 16),
        "rename": whole,
    }
    name = "b" * 64 if damage == "rename" else "a" * 64
    cache.path(name).write_bytes(broken[damage])
    with pytest.raises(ArtifactError):
        cache.load(name)
    assert CompileCache(tmp_path, bytes(32)).load("c" * 64) is None


def test_an_entry_that_cannot_be_trusted_is_compiled_again_and_said(
    square_package: GraphPackage, tmp_path: Path
) -> None:
    first, _ = compile_square(square_package, tmp_path)
    (entry,) = entries(tmp_path)
    entry.write_bytes(entry.read_bytes()[:-1])
    result, events = compile_square(square_package, tmp_path)
    assert not result.cached
    assert "cannot be trusted" in result.notes[0]
    assert events[0]["stage"] == "note"
    assert result.payload.programs["grad"].inputs == first.payload.programs["grad"].inputs
    assert compile_square(square_package, tmp_path)[0].cached


def test_two_calls_at_once_compile_once(square_package: GraphPackage, tmp_path: Path) -> None:
    outcomes: list[tuple[CompileResult, list[Mapping[str, object]]]] = []

    def call() -> None:
        outcomes.append(compile_square(square_package, tmp_path))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.cached for result, _ in outcomes) == [False, True]
    waited = next(events for result, events in outcomes if result.cached)
    assert waited[0] == {"stage": "waiting"}


COMPILE = """
import signal, sys, time
from pathlib import Path
from runtime.compiler import GraphPackage, compile_package
from runtime.compiler.child import Children

class Stopped(Children):
    def add(self, child):
        super().add(child)
        child.send_signal(signal.SIGSTOP)
        print("stopped", flush=True)

def hold(event):  # the result is not taken: whoever reads the event is never too late
    print(event, flush=True)
    time.sleep(600)

package = GraphPackage.from_bytes(Path(sys.argv[1]).read_bytes())
compile_package(package, target="cpu", micro_shards=4, cache_dir=Path(sys.argv[2]),
                data_key=bytes(range(32)), progress=hold,
                children=Stopped() if sys.argv[3:] else None)
"""


def test_a_kill_in_a_compile_leaves_no_entry_and_no_lock(
    square_package: GraphPackage, tmp_path: Path
) -> None:
    source = tmp_path / "square.graph"
    source.write_bytes(square_package.to_bytes())
    folder = tmp_path / "cache"
    child = subprocess.Popen(
        [sys.executable, "-c", COMPILE, str(source), str(folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(runtime.__file__).parents[1])},
        start_new_session=True,
    )
    assert child.stdout is not None
    child.stdout.readline()  # it has lowered the first program: the compile is under way
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert entries(folder) == []
    result, _ = compile_square(square_package, folder)
    assert not result.cached
    assert compile_square(square_package, folder)[0].cached


def test_a_compile_ends_with_the_process_that_asked_for_it(
    square_package: GraphPackage, tmp_path: Path
) -> None:
    source = tmp_path / "square.graph"
    source.write_bytes(square_package.to_bytes())
    parent = subprocess.Popen(
        [sys.executable, "-c", COMPILE, str(source), str(tmp_path / "cache"), "stopped"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(runtime.__file__).parents[1])},
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"stopped\n"  # it cannot end before its parent has
    (worker,) = psutil.Process(parent.pid).children()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    worker.resume()
    worker.wait(timeout=60)
    assert entries(tmp_path / "cache") == []


def test_a_writer_that_died_before_the_rename_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, KEY)
    stale = tmp_path / ".abc.12345"
    stale.write_bytes(b"half of an entry")
    assert cache.load("abc") is None
    cache.store("abc", b"whole")
    assert cache.load("abc") == b"whole"
    assert not stale.exists()


def test_the_folders_own_key_is_private_and_kept(
    square_package: GraphPackage, tmp_path: Path
) -> None:
    first = compile_package(square_package, target="cpu", micro_shards=2, cache_dir=tmp_path)
    again = compile_package(square_package, target="cpu", micro_shards=2, cache_dir=tmp_path)
    assert (first.cached, again.cached) == (False, True)
    assert (tmp_path / "cache.key").stat().st_mode & 0o077 == 0


def test_what_cannot_be_lowered_is_named_by_the_parent(
    square_package: GraphPackage, tmp_path: Path
) -> None:
    graph = square_package.graphs["grad"]
    scalar = TensorType((), "float32")
    odd = Node("odd", "aten.no_such_op.default", (Ref("loss"),), {}, scalar, "layers.7")
    outputs = (("loss_sum", Ref("odd")), *graph.outputs[1:])
    broken = Graph(graph.inputs, (*graph.nodes, odd), outputs)
    package = dataclasses.replace(square_package, graphs={"grad": broken})
    with pytest.raises(LoweringError, match=r"aten\.no_such_op\.default.*layers\.7") as caught:
        compile_square(package, tmp_path)
    assert caught.value.remedy
    assert entries(tmp_path) == []


def test_a_child_that_dies_gives_an_error_not_an_entry(
    square_package: GraphPackage, tmp_path: Path
) -> None:
    class Killed(Children):
        """Kills a child as soon as it is known, so that none can be faster."""

        def add(self, child: subprocess.Popen[bytes]) -> None:
            super().add(child)
            child.kill()

    with pytest.raises(CompileError, match="killed by signal 9"):
        compile_package(
            square_package,
            target="cpu",
            micro_shards=8,
            cache_dir=tmp_path,
            data_key=KEY,
            children=Killed(),
        )
    assert entries(tmp_path) == []


@pytest.mark.parametrize("target", ["gpu", "", "cuda-sm75", "gpux8"])
def test_an_unknown_target_is_refused_with_the_list(
    square_package: GraphPackage, tmp_path: Path, target: str
) -> None:
    with pytest.raises(CompileError, match=r"expected one of cpu, cuda-sm80"):
        compile_package(square_package, target=target, micro_shards=4, cache_dir=tmp_path)


def test_a_cache_folder_that_cannot_be_made_is_an_error(
    square_package: GraphPackage, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CompileError, match="cannot be made"):
        compile_square(square_package, blocked / "cache")


WHO = r"""
printf '{"stage": "who", "uid": %s, "gid": %s, "groups": "%s"}\n' "$(id -u)" "$(id -g)" "$(id -G)"
cat "/proc/$PPID/environ" > /dev/null 2>&1 && echo '{"stage": "reads", "what": "environ"}'
echo "$HOME" >&2
"""
"""What a compiling process can do to the service, asked by a shell in its place: Python itself may
lie where another user cannot read it, as it does in a home folder."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a process as another user")
def test_a_compiling_process_of_another_user_cannot_look_into_the_service(
    square_package: GraphPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_command", lambda *_: ["/bin/sh", "-c", WHO])
    monkeypatch.chdir("/")

    def ask(user: int | None) -> tuple[dict[str, Mapping[str, object]], str]:
        events: list[Mapping[str, object]] = []
        with pytest.raises(CompileError) as refused:
            child.run_worker(
                square_package.to_bytes(),
                target=find_target("cpu"),
                micro_shards=4,
                emit=events.append,
                children=Children(user),
            )
        return {str(event["stage"]): event for event in events}, str(refused.value)

    events, said = ask(20_007)
    assert events["who"] == {"stage": "who", "uid": 20_007, "gid": 20_007, "groups": "20007"}
    assert "reads" not in events
    assert tempfile.gettempdir() in said, "its home is a folder that it may write to"
    events, _ = ask(None)
    assert events["who"]["uid"] == 0
    assert "reads" in events, "else the check above would show nothing"
