"""The run folder: where one run lives, and how it appears, moves aside and is locked.

A run folder appears whole or not at all: a launch prepares it under a hidden name beside its place
and renames it when everything up to the first step is there. A folder of the same name that holds
an older run is moved aside at that moment, never before and never deleted. What a killed
preparation leaves behind is a hidden folder that the next launch of the same name removes.

A lock beside the folder (an advisory file lock, so that it goes with its process) keeps two
launches off one run.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from runtime.run.files import disk_errors, write_json
from runtime.spec import RunError, SpecError

RUN_FORMAT = 1
"""Version of the run folder's layout; a folder of another version is refused."""

RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of one run.

    Attributes:
        path: the folder itself.
    """

    path: Path

    @property
    def job_file(self) -> Path:
        """The job's own copy of `job.yaml`."""
        return self.path / "job.yaml"

    @property
    def model_dir(self) -> Path:
        """Config and tokenizer files that go into each checkpoint; no weights."""
        return self.path / "model"

    @property
    def data_dir(self) -> Path:
        """The prepared samples."""
        return self.path / "data"

    @property
    def graph_file(self) -> Path:
        """The captured graph package."""
        return self.path / "model.graph"

    @property
    def artifact_file(self) -> Path:
        """The sealed artifact."""
        return self.path / "artifact.luma"

    @property
    def signer_file(self) -> Path:
        """The public key that the artifact must be signed by, PEM."""
        return self.path / "signer.pem"

    @property
    def checkpoints_dir(self) -> Path:
        """One folder a checkpoint."""
        return self.path / "checkpoints"

    @property
    def log_file(self) -> Path:
        """The coordinator's commit log."""
        return self.path / "log.sqlite"

    @property
    def events_file(self) -> Path:
        """What happened, a JSON object a line."""
        return self.path / "events.jsonl"

    @property
    def islands_dir(self) -> Path:
        """The logs of the run's processes."""
        return self.path / "islands"

    @property
    def certificate_file(self) -> Path:
        """The certificate of a finished run."""
        return self.path / "certificate.json"

    @property
    def reference_dir(self) -> Path:
        """The run folder of the uninterrupted reference, where one was run."""
        return self.path / "reference"

    def log_of(self, name: str) -> Path:
        """Give the log file of a process: `island-0`, `coordinator`, ..."""
        return self.islands_dir / f"{name}.log"

    def record(self) -> dict[str, Any]:
        """Read `run.json`.

        Raises:
            RunError: this is no run folder, or one of another format version.
        """
        path = self.path / RUN_FILE
        try:
            record = json.loads(path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(
                f"'{self.path}' is not a run folder: it has no {RUN_FILE}",
                remedy="name a folder that `luma launch --run DIR` made; they stand in runs/",
            ) from None
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: cannot be read ({error})") from None
        version = record.get("format") if isinstance(record, dict) else None
        if version != RUN_FORMAT:
            raise RunError(
                f"{path}: run folder format {version!r}, this version of luma reads {RUN_FORMAT}",
                remedy="use the luma that made it, or launch the job again in a new folder",
            )
        return record

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open the folder of an existing run.

        Raises:
            RunError: this is no run folder, or one of another format version.
        """
        folder = cls(path.resolve())
        folder.record()
        return folder


class RunFolderBuilder:
    """Makes a run folder under a hidden name, and puts it in place when it is whole.

    Use it as a context manager: leaving without `commit` removes the hidden folder.

    Args:
        target: the folder's final path; its parent is made.

    Raises:
        SpecError: the target is a file, or a non-empty folder that holds no run.
        RunError: its parent cannot be made or read.
    """

    def __init__(self, target: Path) -> None:
        self.target = target.resolve()
        self.moved_aside: Path | None = None
        with disk_errors(self.target):
            _check_place(self.target)
            self.target.parent.mkdir(parents=True, exist_ok=True)
        for stale in self.target.parent.glob(f".{self.target.name}.preparing-*"):
            shutil.rmtree(stale, ignore_errors=True)
        name = f".{self.target.name}.preparing-{os.getpid()}"
        self.folder = RunFolder(self.target.parent / name)

    def __enter__(self) -> Self:
        """Make the hidden folder."""
        with disk_errors(self.folder.path):
            self.folder.path.mkdir()
            self.folder.islands_dir.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the hidden folder unless it was committed."""
        shutil.rmtree(self.folder.path, ignore_errors=True)

    def commit(self, record: dict[str, Any]) -> RunFolder:
        """Write `run.json`, move an older run aside, and put the new one in place.

        Args:
            record: what `run.json` says beside the format version and the creation time.

        Returns:
            The folder under its final name.
        """
        document = {"format": RUN_FORMAT, "created": time.time(), **record}
        write_json(self.folder.path / RUN_FILE, document)
        with disk_errors(self.target):
            if self.target.is_dir() and not any(self.target.iterdir()):
                self.target.rmdir()
            if self.target.exists():
                self.moved_aside = _free_name(self.target)
                self.target.rename(self.moved_aside)
            self.folder.path.rename(self.target)
        return RunFolder(self.target)


def default_run_path(job_name: str, root: Path | None = None) -> Path:
    """Give `runs/NAME-YYYYMMDD-HHMMSS` below the working directory (or `root`)."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return (root or Path.cwd()) / "runs" / f"{job_name}-{stamp}"


@contextmanager
def run_lock(target: Path) -> Generator[None]:
    """Hold the lock of a run folder's name while a launch works on it.

    Raises:
        RunError: another process holds it, or there can be no folder of that name.
    """
    target = target.resolve()
    path = target.parent / f".{target.name}.lock"
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise RunError(
                f"run folder '{target}' is in use by another launch (process {holder})",
                remedy="wait for it, stop it with `luma cancel`, or name another folder with --run",
            ) from None
        with disk_errors(path):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _check_place(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise SpecError(f"--run: '{target}' is a file; expected a folder or a free name")
    if target.is_dir() and any(target.iterdir()) and not (target / RUN_FILE).exists():
        raise SpecError(
            f"--run: '{target}' holds files that are not a run of luma; it is left as it is",
            remedy="name another folder, or move its contents away",
        )


def _free_name(target: Path) -> Path:
    made = time.localtime((target / RUN_FILE).stat().st_mtime)
    stamp = time.strftime("%Y%m%d-%H%M%S", made)
    candidate = target.with_name(f"{target.name}.old-{stamp}")
    number = 1
    while candidate.exists():
        number += 1
        candidate = target.with_name(f"{target.name}.old-{stamp}-{number}")
    return candidate
