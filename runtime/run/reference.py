"""The uninterrupted reference: the same job once more, on one island, from the same files.

It lives in `RUN/reference`, a run folder of its own whose unchanging files are hard links to the
run's. Its final hash is what an exact run must have.
"""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING

from runtime.coordinator.plan import RunPlan, new_run_id
from runtime.run.files import disk_errors, link_tree, write_json
from runtime.run.folder import RUN_FILE, RunFolder
from runtime.run.history import History
from runtime.run.supervisor import FleetOptions, Supervisor
from runtime.spec import RunError

if TYPE_CHECKING:
    from runtime.run.interrupt import StopSwitch
    from runtime.run.progress import Reporter

_SHARED = (
    "model",
    "data",
    "model.graph",
    "artifact.luma",
    "signer.pem",
    "constants.safetensors",
    "job.yaml",
)
_FIRST_CHECKPOINT = "step-000000"


def prepare_reference(folder: RunFolder) -> RunFolder:
    """Make the reference's folder unless it is there; needs the run's first checkpoint.

    A launch that wants a reference calls this before training, since old checkpoints are pruned.

    Raises:
        RunError: the first checkpoint is gone, or the disk refuses.
    """
    reference = RunFolder(folder.reference_dir)
    if (reference.path / RUN_FILE).exists():
        return reference
    first = folder.checkpoints_dir / _FIRST_CHECKPOINT
    if not first.exists():
        raise RunError(
            f"no reference can be run: {first} was pruned",
            remedy="launch the job again with --reference from the start",
        )
    with disk_errors(reference.path):
        if reference.path.exists():
            shutil.rmtree(reference.path)
        reference.islands_dir.mkdir(parents=True)
        reference.checkpoints_dir.mkdir()
        for name in _SHARED:
            if (folder.path / name).exists():
                link_tree(folder.path / name, reference.path / name)
        link_tree(first, reference.checkpoints_dir / _FIRST_CHECKPOINT)
    plan = dataclasses.replace(
        RunPlan.read(folder.path), run_id=new_run_id(), islands=1, min_islands=1
    )
    plan.write(reference.path)
    write_json(reference.path / RUN_FILE, folder.record())  # last: a torn folder is made anew
    return reference


def run_reference(folder: RunFolder, reporter: Reporter, stop: StopSwitch) -> str | None:
    """Run the reference of a run, or go on with one that was stopped.

    Returns:
        The hash of its final state, or None when it was asked to stop.

    Raises:
        RunError: it failed, or its folder cannot be made.
    """
    reference = prepare_reference(folder)
    plan, record = RunPlan.read(reference.path), reference.record()
    options = FleetOptions(
        islands=1, max_restarts=record["max_restarts"], environment=record["envs"]
    )
    supervisor = Supervisor(reference, options, on_event=reporter.event, stop_asked=stop.asked)
    reporter.start_training(plan.total_steps)
    try:
        with stop.armed():
            outcome = supervisor.run()
    finally:
        reporter.end_training()
    return reference_hash(folder) if outcome == "done" else None


def reference_hash(folder: RunFolder) -> str | None:
    """Give the final hash of the reference beside a run, None where none was finished."""
    reference = RunFolder(folder.reference_dir)
    if not (reference.path / RUN_FILE).exists() or not reference.log_file.exists():
        return None
    ending = History.read(reference.path).final()
    return ending["state_hash"] if ending is not None and ending["kind"] == "done" else None
