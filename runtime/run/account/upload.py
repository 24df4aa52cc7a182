"""A prepared run into the bucket: resumable, and whole only when `run.json` is there.

Files go up one by one, `run.json` last. Whoever resumes a killed upload finds the objects that are
there already and sends the rest: an object counts as sent where it has the file's size and, in its
metadata, the file's BLAKE3. The initial checkpoint goes the way of every checkpoint, its manifest
last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from runtime.agent.bucket import Bucket as WrittenOnce
from runtime.agent.bucket import BucketPlace
from runtime.agent.checkpoint_remote import RemoteCheckpoints
from runtime.run.account.stack import Stack
from runtime.run.folder import RUN_FILE, RunFolder
from runtime.spec.account import run_object, run_prefix
from runtime.spec.errors import RunError

__all__ = ["Sent", "upload_run"]

_KEPT_HERE: Final = ("islands/", "prepare.log", "events.jsonl", "log.", "checkpoints/")
"""What is of this machine, or goes another way."""

_DIGEST: Final = "blake3"


@dataclass(frozen=True, slots=True)
class Sent:
    """What an upload came to.

    Attributes:
        bytes_sent: bytes that went now.
        bytes_there: bytes that were there already.
    """

    bytes_sent: int
    bytes_there: int


def upload_run(
    folder: RunFolder, run: str, stack: Stack, *, progress: Callable[[int, int], None]
) -> Sent:
    """Upload a prepared run folder.

    Args:
        folder: the run folder.
        run: the run's name.
        stack: where to.
        progress: called with (bytes done, bytes in all) after each file.

    Raises:
        RunError: another run of that name is there, or a file cannot be read.
        AwsError: the bucket refuses.
    """
    _check_same_run(folder, run, stack)
    files = _files(folder)
    total = sum(path.stat().st_size for path in files.values()) + _checkpoint_bytes(folder)
    sent = there = 0
    for name, path in files.items():
        size = path.stat().st_size
        if _upload_file(path, run_object(run, name), stack):
            sent += size
        else:
            there += size
        progress(sent + there, total)
    place = BucketPlace(stack.bucket.name, run_prefix(run))
    remote = RemoteCheckpoints(WrittenOnce(place, client=stack.bucket.client), job_digest=None)
    for path in sorted(folder.checkpoints_dir.glob("step-*")):
        remote.push(path)
    progress(total, total)
    _upload_file(folder.path / RUN_FILE, run_object(run, RUN_FILE), stack)
    return Sent(sent, there)


def _files(folder: RunFolder) -> dict[str, Path]:
    """Give what goes up, but `run.json`, by its name in the run."""
    found = {
        path.relative_to(folder.path).as_posix(): path
        for path in sorted(folder.path.rglob("*"))
        if path.is_file()
    }
    return {
        name: path
        for name, path in found.items()
        if name != RUN_FILE and not name.startswith(_KEPT_HERE) and not path.name.startswith(".")
    }


def _checkpoint_bytes(folder: RunFolder) -> int:
    files = (path for path in folder.checkpoints_dir.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files)


def _upload_file(path: Path, key: str, stack: Stack) -> bool:
    """Upload a file unless it is there; say whether it went."""
    digest = _digest(path)
    if _is_there(stack, key, path.stat().st_size, digest):
        return False
    stack.bucket.upload(path, key, metadata={_DIGEST: digest})
    return True


def _is_there(stack: Stack, key: str, size: int, digest: str) -> bool:
    head: Any = stack.bucket.head(key)
    return (
        head is not None
        and head["ContentLength"] == size
        and head.get("Metadata", {}).get(_DIGEST) == digest
    )


def _digest(path: Path) -> str:
    try:
        return blake3().update_mmap(path).hexdigest()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error


def _check_same_run(folder: RunFolder, run: str, stack: Stack) -> None:
    """Refuse to mix two runs under one name.

    Raises:
        RunError: the bucket has another run of that name.
    """
    data = stack.bucket.read(run_object(run, "plan.json"))
    if data is None:
        return
    if (folder.path / "plan.json").read_bytes() != data:
        raise RunError(
            f"run '{run}' is in bucket '{stack.bucket.name}' already, and is another one",
            remedy=f"go on with it (`luma launch --resume {run} {stack.options}`), or name another "
            "run with --run",
        )
