"""The run's checkpoints as the island's process uses them: load, snapshot, write behind, prune.

With a remote place the bucket is what counts and the folder only scratch: a checkpoint is told of
once its manifest is in the bucket, and at a start the newest whole one there is fetched, whatever
lies in the folder. The trainer stalls for a memcpy either way.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from runtime.agent.checkpoint import (
    CheckpointBuffers,
    CheckpointInfo,
    RejectedCheckpoint,
    Snapshot,
    latest_checkpoint,
    load_checkpoint,
    prune,
    write_checkpoint,
)
from runtime.agent.checkpoint_remote import RemoteCheckpoints
from runtime.agent.state import Arrays, TrainState
from runtime.coordinator.wire import Message
from runtime.spec.aws import AwsError
from runtime.spec.errors import CheckpointError, LumaError

CHECKPOINTS_FOLDER = "checkpoints"
MODEL_FOLDER = "model"
# The last checkpoint of a run has no next one that would do: an outage must not fail the run.
_UPLOAD_PATIENCE_S = 600.0
_UPLOAD_PAUSE_S = 2.0


class CheckpointStore:
    """Checkpoints of one run in its folder.

    Args:
        run_dir: the run folder.
        job_digest: the job that they belong to.
        keep: how many to keep.
        constants: frozen parameters and persistent buffers, which are part of the model's weight
            files.
        threads: threads of the copy and of the hash.
        remote: the run's checkpoints in the account; None keeps them in the folder alone.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        job_digest: str,
        keep: int,
        constants: Arrays,
        threads: int,
        remote: RemoteCheckpoints | None = None,
    ) -> None:
        self._root = run_dir / CHECKPOINTS_FOLDER
        model = run_dir / MODEL_FOLDER
        self._model_files = model if model.is_dir() else None
        self._job_digest = job_digest
        self._keep = keep
        self._constants = constants
        self._threads = threads
        self._remote = remote
        self._buffers = CheckpointBuffers(threads=threads)

    def find_newest(self) -> CheckpointInfo:
        """Find the newest whole checkpoint, and bring it here; that may take long.

        Raises:
            CheckpointError: there is none; the message says why each newer one was refused.
            AwsError: the bucket cannot be read.
        """
        refused: list[RejectedCheckpoint] = []
        if self._remote is None:
            info = latest_checkpoint(self._root, self._job_digest, report=refused)
        else:
            info = self._remote.pull_newest(self._root, report=refused)
        for item in refused:
            _log(f"checkpoint {item.path.name} is left out: {item.reason}")
        if info is None:
            reasons = "; ".join(f"{r.path.name}: {r.reason}" for r in refused) or "it is empty"
            raise CheckpointError(f"'{self._root}' has no whole checkpoint of this job ({reasons})")
        return info

    def load(self, info: CheckpointInfo) -> TrainState:
        """Read a checkpoint that was found.

        Raises:
            CheckpointError: a byte differs from what was found.
        """
        return load_checkpoint(info, threads=self._threads)

    def take_snapshot(self, state: TrainState) -> Snapshot:
        """Copy a state; the trainer stalls for this only."""
        return self._buffers.capture(state)

    def write(self, snapshot: Snapshot, *, stall_s: float) -> Message:
        """Make a snapshot durable; give the event for the step logic."""
        begin = time.perf_counter()
        step = snapshot.state.step
        try:
            with snapshot:
                info = write_checkpoint(
                    self._root,
                    snapshot.state,
                    job_digest=self._job_digest,
                    model_files=self._model_files,
                    constants=self._constants,
                    threads=self._threads,
                    durable=self._remote is None,  # else the bucket is what lasts
                )
            if self._remote is not None:  # the snapshot is free again: the upload holds up nobody
                self._push(self._remote, info.path)
                self._prune_remote(self._remote)
            prune(self._root, self._keep)
        except LumaError as error:
            return {"type": "checkpoint_failed", "step": step, "error": error.diagnostics()}
        return {
            "type": "checkpointed",
            "step": step,
            "state_hash": info.state_hash,
            "path": f"{CHECKPOINTS_FOLDER}/{info.path.name}",
            "seconds": round(time.perf_counter() - begin, 4),
            "stall_s": round(stall_s, 4),
        }

    def _push(self, remote: RemoteCheckpoints, path: Path) -> None:
        """Upload a checkpoint; what is there already does not go up again.

        Raises:
            LumaError: it is refused, or the bucket did not answer for `_UPLOAD_PATIENCE_S`.
        """
        deadline = time.monotonic() + _UPLOAD_PATIENCE_S
        while True:
            try:
                return remote.push(path)
            except AwsError as error:
                if not error.transient or time.monotonic() > deadline:
                    raise
                _log(f"checkpoint {path.name} is tried again: {error.message}")
            time.sleep(_UPLOAD_PAUSE_S)

    def _prune_remote(self, remote: RemoteCheckpoints) -> None:
        """Remove old checkpoints; where that fails it is only room that is lost."""
        try:
            remote.prune(self._keep)
        except LumaError as error:
            _log(f"old checkpoints stay in the bucket: {error.message}")


def _log(text: str) -> None:
    """Write to the process's own log."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201
