"""Kills and full disks while a checkpoint is written: in processes of their own, with real signals."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from runtime.agent.checkpoint import latest_checkpoint, load_checkpoint

JOB = "job"
PROGRAM = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import numpy as np
    from runtime.agent.checkpoint import prune, write_checkpoint
    from runtime.agent.state import TrainState
    from runtime.spec import CheckpointError

    def state(step, mib):
        arrays = {f"l{i}": np.full((mib, 1 << 14), step + i / 8, np.float32) for i in range(4)}
        blocks = np.full(8, step, np.int32)
        return TrainState(
            step=step, params=arrays, moment1=arrays, moment2=arrays, block_exponents=blocks
        )
    """
)


def start(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )


def visible(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_transformers_35782_kill_9_at_random_moments_of_a_write(tmp_path: Path) -> None:
    """transformers#35782, #31283, #40790; Lightning#688: the last whole one always loads.

    A writer makes checkpoint after checkpoint, prunes, and is killed at a random moment; another
    takes over in the same folder. After each kill every folder with a checkpoint's name is whole.
    """
    code = """
        root = Path(sys.argv[1])
        step = int(sys.argv[2])
        while True:
            step += 1
            write_checkpoint(root, state(step, 4), job_digest="job")
            prune(root, 2)
            print(step, flush=True)
    """
    generator = random.Random(0)
    step = 0
    for _ in range(4):
        writer = start(code, tmp_path, step)
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(generator.uniform(0, 0.25))
        writer.send_signal(signal.SIGKILL)
        printed = [first, *writer.stdout.read().splitlines()]
        writer.wait(20)
        acknowledged = int(printed[-1])
        report: list = []
        info = latest_checkpoint(tmp_path, JOB, report=report)
        assert report == []
        assert info is not None
        assert info.step in {acknowledged, acknowledged + 1}
        loaded = load_checkpoint(info)
        assert loaded.step == info.step
        assert float(loaded.params["l1"][0, 0]) == info.step + 1 / 8
        step = info.step
    # What dead writers left is gone after the next write; live checkpoints are all there.
    code = "write_checkpoint(Path(sys.argv[1]), state(1000, 4), job_digest='job')\n"
    code += "prune(Path(sys.argv[1]), 2)"
    assert start(code, tmp_path).wait(60) == 0
    assert len(visible(tmp_path)) == 2
    assert visible(tmp_path)[-1] == "step-001000"


def test_a_live_writers_folder_is_left_alone(tmp_path: Path) -> None:
    code = """
        import runtime.agent.checkpoint as checkpoint
        commit = checkpoint._commit
        def slow(temp, final, *, durable):
            print("before the rename", flush=True)
            sys.stdin.readline()
            commit(temp, final, durable=durable)
        checkpoint._commit = slow
        write_checkpoint(Path(sys.argv[1]), state(1, 1), job_digest="job")
    """
    writer = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(code), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "before the rename\n"
    other = "write_checkpoint(Path(sys.argv[1]), state(2, 1), job_digest='job')"
    assert start(other, tmp_path).wait(60) == 0
    assert latest_checkpoint(tmp_path, JOB).step == 2  # type: ignore[union-attr]
    writer.communicate("\n", timeout=60)
    assert visible(tmp_path) == ["step-000001", "step-000002"]
    assert latest_checkpoint(tmp_path / ".", JOB).step == 2  # type: ignore[union-attr]


FULL = """
    root = Path(sys.argv[1])
    write_checkpoint(root, state(1, 2), job_digest="job")
    try:
        write_checkpoint(root, state(2, 8), job_digest="job")
    except CheckpointError as error:
        print(error.diagnostics())
    else:
        print("written")
"""


def check_full(root: Path, output: str) -> None:
    assert "the checkpoint was not written" in output
    assert "remedy: free space on that disk" in output
    assert visible(root) == ["step-000001"]
    info = latest_checkpoint(root, JOB)
    assert info is not None
    assert load_checkpoint(info).step == 1


def test_a_file_that_may_not_grow_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    limit = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
    """
    # The first state: files of 0.5 and 1 MiB; the second: of 2 and 4 MiB, and headers.
    code = textwrap.dedent(limit) + textwrap.dedent(FULL)
    output, _ = start(code, tmp_path).communicate(timeout=60)
    check_full(tmp_path, output)


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 6 MiB, where this process may mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "luma-test", str(path)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a file system is not allowed here; the test above covers the path")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_leaves_the_old_checkpoint(small_disk: Path) -> None:
    output, _ = start(FULL, small_disk).communicate(timeout=60)
    check_full(small_disk, output)
