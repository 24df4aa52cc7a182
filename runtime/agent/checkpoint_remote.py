"""Checkpoints in the account's bucket: what survives when every node is gone.

A checkpoint goes up file by file, `luma/manifest.json` last and on condition that there is none;
before that it does not count, whatever else of it is there. Nothing is overwritten: a second writer
of the same state finds its own bytes and is done, one of another state is refused. A checkpoint
comes down into a hidden folder, is verified to the last byte, and only then gets its name.

Removing goes the other way round, manifest first: what a kill leaves is then a torn checkpoint,
which the next pruning takes away.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

from blake3 import blake3

from runtime.agent.bucket import Bucket
from runtime.agent.checkpoint import remove_abandoned, temp_folder
from runtime.agent.checkpoint_files import FileRecord, sync_folder
from runtime.agent.checkpoint_manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    CheckpointInfo,
    Manifest,
    RejectedCheckpoint,
    folder_name,
    read_manifest,
    verify,
)
from runtime.agent.checkpoint_prune import MIN_KEEP, remember_whole
from runtime.spec.errors import CheckpointError

CHECKPOINTS = "checkpoints/"
_NAME = re.compile(r"step-(\d{6,})")


class RemoteCheckpoints:
    """The checkpoints of one run in its bucket.

    Args:
        bucket: the run's prefix.
        job_digest: the job that they must belong to; None accepts any.
    """

    def __init__(self, bucket: Bucket, *, job_digest: str | None) -> None:
        self._bucket = bucket
        self._job_digest = job_digest

    def push(self, path: Path) -> None:
        """Make a whole local checkpoint durable in the bucket.

        Args:
            path: its folder.

        Raises:
            CheckpointError: another state of this step is there already, or a file cannot be read.
            AwsError: AWS refuses.
        """
        manifest, digest = read_manifest(path)
        folder = f"{CHECKPOINTS}{folder_name(manifest.step)}/"
        try:
            for name, record in sorted(manifest.files.items()):
                self._bucket.put_file(folder + name, path / name, record)
            data = (path / MANIFEST).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
        self._bucket.put_bytes(
            folder + MANIFEST, data, FileRecord(size_bytes=len(data), blake3=digest)
        )

    def pull_newest(
        self, root: Path, *, report: list[RejectedCheckpoint] | None = None
    ) -> CheckpointInfo | None:
        """Bring the newest whole checkpoint into a local folder, verified.

        Args:
            root: the local `checkpoints` folder; made if absent. One that lies there already with
                the same manifest is verified, and not fetched again.
            report: gets an entry for each newer one that could not be used, with the reason.

        Raises:
            CheckpointError: the local disk refused.
            AwsError: AWS refuses.
        """
        root.mkdir(parents=True, exist_ok=True)
        remove_abandoned(root)
        for step in self.steps():
            try:
                return self._pull(root, step)
            except CheckpointError as error:
                if report is not None:
                    rejected = RejectedCheckpoint(
                        path=root / folder_name(step), reason=error.message
                    )
                    report.append(rejected)
        return None

    def steps(self) -> list[int]:
        """Give the steps of all checkpoints in the bucket, whole or not, newest first."""
        matches = map(_NAME.fullmatch, self._bucket.folders(CHECKPOINTS))
        steps = [int(match[1]) for match in matches if match]
        return sorted(steps, reverse=True)

    def prune(self, keep: int) -> list[int]:
        """Remove all but the newest checkpoints that have their manifest.

        Args:
            keep: how many stay, at least 2. If fewer are there, nothing is removed.

        Returns:
            The steps that were removed.

        Raises:
            CheckpointError: `keep` is below 2.
            AwsError: AWS refuses.
        """
        if keep < MIN_KEEP:
            raise CheckpointError(
                f"keep={keep}; at least {MIN_KEEP} checkpoints are kept, in case the newest is torn"
            )
        kept, removed = 0, []
        for step in self.steps():
            if kept < keep:
                kept += self._manifest(step) is not None
            else:
                self._remove(step)
                removed.append(step)
        return removed

    def _manifest(self, step: int) -> bytes | None:
        name = f"{CHECKPOINTS}{folder_name(step)}/{MANIFEST}"
        return self._bucket.read(name, max_bytes=MAX_MANIFEST_BYTES)

    def _remove(self, step: int) -> None:
        folder = f"{CHECKPOINTS}{folder_name(step)}/"
        self._bucket.delete([folder + MANIFEST])
        self._bucket.delete([folder + name for name in self._bucket.names(folder)])

    def _pull(self, root: Path, step: int) -> CheckpointInfo:
        data = self._manifest(step)
        if data is None:
            raise CheckpointError(f"{MANIFEST}: missing, its writer did not come to the end")
        manifest = Manifest.from_bytes(data)
        if self._job_digest is not None and manifest.job_digest != self._job_digest:
            raise CheckpointError(
                f"it belongs to job {manifest.job_digest}, not to {self._job_digest}"
            )
        final = root / folder_name(step)
        if _same(final, blake3(data).hexdigest()):
            return verify(final, self._job_digest)
        return self._fetch(final, data, manifest)

    def _fetch(self, final: Path, data: bytes, manifest: Manifest) -> CheckpointInfo:
        try:
            with temp_folder(final.parent, final.name) as temp:
                inner = temp / final.name  # `verify` compares the folder's name with the step
                self._download(inner, data, manifest)
                verify(inner, self._job_digest)
                _put_in_place(inner, final, temp / "replaced")
        except OSError as error:
            raise CheckpointError(f"{final}: cannot be written ({error.strerror})") from error
        return remember_whole(final)

    def _download(self, folder: Path, data: bytes, manifest: Manifest) -> None:
        for name in (MANIFEST, *manifest.files):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).write_bytes(data)
        for name in manifest.files:
            self._bucket.fetch(f"{CHECKPOINTS}{folder.name}/{name}", folder / name)


def _put_in_place(folder: Path, final: Path, aside: Path) -> None:
    """Give a verified folder its name; what has it and is not the bucket's goes aside."""
    if final.exists():
        final.rename(aside)
    try:
        folder.rename(final)
    except OSError as error:
        if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
            raise
        # Another island of this machine fetched the same one a moment ago.
    sync_folder(final.parent)


def _same(path: Path, digest: str) -> bool:
    """Say whether a local folder has the manifest with this digest."""
    try:
        return read_manifest(path)[1] == digest
    except CheckpointError:
        return False
