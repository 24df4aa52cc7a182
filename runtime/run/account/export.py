"""`python -m runtime.run.account.export --folder DIR`: what a finished run leaves to its owner.

The work `export` of a node starts it (`runtime.agent.node.work_stage`). It fetches the run's folder
with its last checkpoint, writes the commit log and the events out into it, and certifies the folder
exactly as a run on one machine is certified. Into the bucket go `certificate.json`, `events.jsonl`,
and under `export/` the model in Hugging Face format (a LoRA run: the adapter), without the
optimizer's state.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from runtime.agent.bucket import Bucket as WrittenOnce
from runtime.agent.bucket import BucketPlace
from runtime.agent.checkpoint_manifest import folder_name
from runtime.agent.checkpoint_remote import RemoteCheckpoints
from runtime.agent.node.work import may_pass
from runtime.agent.node.work_stage import ANSWER_FILE, MAY_PASS, REQUEST_FILE
from runtime.coordinator.copy_log import bring_home
from runtime.coordinator.open_log import TablePlace
from runtime.coordinator.plan import RunPlan
from runtime.run.certificate import certify
from runtime.run.files import disk_errors, write_json
from runtime.run.folder import RUN_FILE, RunFolder
from runtime.spec.account import (
    ARTIFACT_RECORD,
    CERTIFICATE_OBJECT,
    EVENTS_OBJECT,
    EXPORT_PREFIX,
    run_key,
    run_object,
    run_prefix,
)
from runtime.spec.errors import LumaError, RunError
from runtime.spec.objects import Bucket
from runtime.spec.table import Table

_NOT_NEEDED: Final = ("checkpoints/", "export/", "logs/", "data/", "model.graph", "tls/")
_OF_LUMA: Final = "luma/"


def main() -> int:
    """Export a run; 0 done, 75 for what may pass, another code for a run that cannot be exported."""
    parser = argparse.ArgumentParser(prog="runtime.run.account.export", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="the scratch folder")
    folder: Path = parser.parse_args().folder
    try:
        answer = export_run(folder, json.loads((folder / REQUEST_FILE).read_text()))
        write_json(folder / ANSWER_FILE, answer)
    except LumaError as error:
        print(error.diagnostics(), file=sys.stderr)  # noqa: T201 - the stage's own log
        return MAY_PASS if may_pass(error) else 1
    return 0


def export_run(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Certify a run of the account and export its model.

    Args:
        path: the scratch folder.
        request: `run`, `region`, `bucket` and `table`.

    Returns:
        `state_hash`, `certificate` (its key) and `export` (a prefix).

    Raises:
        LumaError: the run is not done, its records are damaged, or AWS refuses.
    """
    run, folder = request["run"], RunFolder(path / "run")
    bucket = Bucket(request["bucket"], region=request["region"])
    table = Table(request["table"], region=request["region"])
    fetch_run(folder, run, bucket, table)
    certificate = certify(folder)
    checkpoint = folder.checkpoints_dir / folder_name(RunPlan.read(folder.path).total_steps)
    for file in sorted(item for item in checkpoint.rglob("*") if item.is_file()):
        name = file.relative_to(checkpoint).as_posix()
        if not name.startswith(_OF_LUMA):
            bucket.upload(file, run_object(run, EXPORT_PREFIX + name))
    bucket.upload(folder.events_file, run_object(run, EVENTS_OBJECT))
    bucket.upload(folder.certificate_file, run_object(run, CERTIFICATE_OBJECT))
    return {
        "state_hash": certificate["state_hash"],
        "certificate": run_object(run, CERTIFICATE_OBJECT),
        "export": run_object(run, EXPORT_PREFIX),
    }


def fetch_run(folder: RunFolder, run: str, bucket: Bucket, table: Table) -> None:
    """Make a run folder of a run of the account: as if it had run on this machine.

    Args:
        folder: gets it; anything there is removed.
        run: the run's name.
        bucket: the bucket of runs.
        table: the table of runs.

    Raises:
        LumaError: the run is not whole, or AWS refuses.
    """
    with disk_errors(folder.path):
        shutil.rmtree(folder.path, ignore_errors=True)
        folder.path.mkdir(parents=True)
    wanted = bucket.download_tree(
        run_prefix(run), folder.path, wanted=lambda name: not name.startswith(_NOT_NEEDED)
    )
    if not wanted or not (folder.path / RUN_FILE).is_file():
        raise RunError(f"run '{run}' is not in bucket '{bucket.name}'")
    _put_artifact_in_record(folder)
    bring_home(TablePlace(table.name, run), folder.path)
    _write_events(folder, run, table)
    place = BucketPlace(bucket.name, run_prefix(run))
    remote = RemoteCheckpoints(WrittenOnce(place, client=bucket.client), job_digest=None)
    with disk_errors(folder.checkpoints_dir):
        folder.checkpoints_dir.mkdir()
    remote.pull_newest(folder.checkpoints_dir)


def _put_artifact_in_record(folder: RunFolder) -> None:
    """Put what the compiler made into `run.json`, which was written before it."""
    record = folder.record()
    if record["artifact"]:
        return
    try:
        made = json.loads((folder.path / ARTIFACT_RECORD).read_text())
    except (OSError, ValueError) as error:
        raise RunError(f"{ARTIFACT_RECORD}: cannot be read ({error})") from None
    write_json(folder.path / RUN_FILE, {**record, "artifact": made})


def _write_events(folder: RunFolder, run: str, table: Table) -> None:
    """Write the run's notes out as its events."""
    lines = [str(item["event"]) for item in table.query(run_key(run), "NOTE#")]
    with disk_errors(folder.events_file):
        folder.events_file.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
