"""A full disk: the run says so and ends; with space again it goes on and loses no step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.bad_input.conftest import Ready, luma, refused, write_job

pytestmark = pytest.mark.timeout(400)

PAGE = os.sysconf("SC_PAGE_SIZE")


def pages(folder: Path) -> int:
    """Give the bytes that a folder takes on a file system of pages."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(-(-path.stat().st_size // PAGE) * PAGE for path in files)


def test_no_space_for_a_checkpoint_in_the_middle_of_training(
    fresh: Callable[..., Ready],
    finished: Ready,
    small_disk: Callable[[int], Path],
    ends_as_it_should: Callable[[Ready], None],
) -> None:
    run = fresh(small_disk(64 << 20) / "run")
    checkpoint = pages(finished.folder / "checkpoints" / "step-000002")
    # The log and the events fit, and one checkpoint, but not a second one.
    small_disk(pages(run.folder) + checkpoint + checkpoint // 2 + (1 << 18))
    refused(run.resume(), 1, "the checkpoint was not written", "space", "luma launch --resume")
    status = luma("status", run.folder, "--json")
    assert status.returncode == 0, status.stderr
    kept = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    assert all(name.startswith("step-") for name in kept), kept
    small_disk(64 << 20)
    ends_as_it_should(run)


def test_no_space_for_log_and_events(
    fresh: Callable[..., Ready],
    small_disk: Callable[[int], Path],
    ends_as_it_should: Callable[[Ready], None],
) -> None:
    disk = small_disk(64 << 20)
    run = fresh(disk / "run")
    small_disk(pages(run.folder) + 3 * PAGE)
    refused(run.resume(), 1)
    small_disk(64 << 20)
    ends_as_it_should(run)


@pytest.mark.slow
def test_no_space_for_the_run_folder(small_disk: Callable[[int], Path], tmp_path: Path) -> None:
    disk, job = small_disk(200 << 10), write_job(tmp_path)
    refused(luma("launch", job, "--yes", "--run", disk / "run"), 1, "space")
    assert [p.name for p in disk.iterdir() if not p.name.endswith(".lock")] == []
    small_disk(64 << 20)
    done = luma("launch", job, "--yes", "--run", disk / "run")
    assert done.returncode == 0, done.stderr
