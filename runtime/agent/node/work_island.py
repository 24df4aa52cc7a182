"""The work `island`: be one island of a run, until the run ends or this node must leave.

The scratch folder gets what the run's folder in the bucket holds but its checkpoints, which the
island's store reads and writes there by itself. `coordinator.json` follows the item COORDINATOR, so
that the island finds a coordinator that was started again elsewhere.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any, Final

from runtime.agent.exit_codes import ExitCode
from runtime.agent.node.child import Command
from runtime.agent.node.notes import NoteWriter
from runtime.agent.node.tasks import Failure, Success
from runtime.agent.node.work import Given, failure_of, last_commit, private_write, read_run
from runtime.agent.threads import ALLOCATOR
from runtime.coordinator.log_items import address_of
from runtime.coordinator.plan import PLAN_FILE, RunPlan
from runtime.spec.account import (
    ARTIFACT_OBJECT,
    ARTIFACT_RECORD,
    COORDINATOR_ITEM,
    INTERRUPTED,
    JOB_FAILED,
    LOGS_PREFIX,
    REFUSED,
    RETRYABLE,
    key_parameter,
    run_key,
    run_object,
    run_prefix,
    slot_item,
)
from runtime.spec.aws import AwsError, aws_client, aws_errors
from runtime.spec.errors import LumaError, RunError
from runtime.spec.objects import Cancelled
from runtime.spec.table import ConditionFailed

__all__ = ["IslandWork"]

_NOT_NEEDED: Final = ("checkpoints/", "export/", "logs/", "model.graph", "events.jsonl")
_KEY_FILE: Final = "data.key"
_LOG_EVERY_S: Final = 10.0
_PATIENCE_S: Final = 600.0
"""A coordinator that was lost needs an instance, its start, and the table's log."""

_MEANINGS: Final[dict[int, tuple[str, str]]] = {
    ExitCode.FAILED: (RETRYABLE, "the coordinator let this island go"),
    ExitCode.FATAL: (JOB_FAILED, "an error that no other island would escape"),
    ExitCode.LOST_COORDINATOR: (RETRYABLE, "no coordinator answered"),
    ExitCode.REFUSED: (REFUSED, "this island is of another chip class than the run's"),
}
"""What an exit code means; any other one is a crash of this island, and another may go on."""


class IslandWork:
    """One island of a run."""

    graceful = True

    def __init__(self, given: Given) -> None:
        self._given, self._place, self._run = given, given.place, given.work.run
        self._folder = given.folder
        # Never used before in this run, whoever had the slot.
        self.name = f"island-{given.work.slot}-{secrets.token_hex(3)}"
        self._notes = NoteWriter(self._place.table, self._run)
        self._address: dict[str, Any] | None = None
        self._logged = (0, 0.0)
        self._plan: RunPlan | None = None

    # ---------------------------------------------------------------- fetching

    def prepare(self) -> Success | Failure | None:
        """Fetch the run; see `WorkDoer`."""
        try:
            ended = self._ended_already()
            if ended is not None:
                return ended
            count = self._place.bucket.download_tree(
                run_prefix(self._run),
                self._folder,
                wanted=lambda path: not path.startswith(_NOT_NEEDED),
                cancelled=self._given.cancelled,
            )
            refusal = self._not_here(count)
            if refusal is not None:
                return refusal
            self._write_plan()
            self._follow_coordinator()
            self._take_slot()
        except Cancelled:
            return Failure(INTERRUPTED, "given up while it was fetched")
        except LumaError as error:
            return failure_of(error, JOB_FAILED, RETRYABLE)
        return None

    def _ended_already(self) -> Success | None:
        """Give the answer for a run that needs no island any more."""
        item = read_run(self._place, self._run)
        if item.get("cancel"):
            return Success({"ended": "stopped"})
        total = item.get("total_steps")
        if isinstance(total, int) and last_commit(self._place, self._run) + 1 >= total:
            final = self._place.table.get(run_key(self._run), f"CHECKPOINT#{total:010d}")
            if final is not None:
                return Success({"ended": "done"})
        return None

    def _not_here(self, count: int) -> Failure | None:
        """Give the failure of a run that is not whole, or whose programs this fleet cannot run."""
        if not count or not (self._folder / PLAN_FILE).is_file():
            return Failure(JOB_FAILED, f"run '{self._run}' is not prepared: it has no {PLAN_FILE}")
        if not (self._folder / ARTIFACT_OBJECT).is_file():
            return Failure(RETRYABLE, f"run '{self._run}' has no {ARTIFACT_OBJECT} yet")
        try:
            record = json.loads((self._folder / ARTIFACT_RECORD).read_text())
            targets = list(record["targets"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            return Failure(JOB_FAILED, f"{ARTIFACT_RECORD} cannot be read ({error})")
        if self._place.target not in targets:
            return Failure(
                REFUSED,
                f"fleet '{self._place.fleet}' runs {self._place.target}, and the artifact has "
                f"{', '.join(targets)}",
            )
        return None

    def _write_plan(self) -> None:
        """Fit the run's plan to this node: its fleet's target, its cores, its key file."""
        plan = RunPlan.read(self._folder)
        key_file = None
        if plan.key_file is not None:
            key_file = self._folder / _KEY_FILE
            private_write(key_file, self._data_key())
        self._plan = dataclasses.replace(
            plan,
            target=self._place.target or plan.target,
            threads_per_island=plan.threads_per_island or len(os.sched_getaffinity(0)),
            key_file=None if key_file is None else str(key_file),
        )
        self._plan.write(self._folder)

    def _data_key(self) -> bytes:
        return read_data_key(self._place.config.stack, self._run, self._place.config.region)

    def _take_slot(self) -> None:
        """Say who works for this slot and what it costs; the run's cost is added up from it."""
        values: dict[str, Any] = {"node": self._place.identity.instance, "island": self.name}
        if self._place.usd_per_hour is not None:
            values["usd_per_hour"] = self._place.usd_per_hour
        self._place.table.update(
            run_key(self._run), slot_item(self._given.work.slot), values, exists=False
        )

    # ----------------------------------------------------------------- running

    def command(self) -> Command:
        """Give the island's process."""
        place = self._place
        return Command(
            module="runtime.agent",
            arguments=(
                "--run",
                str(self._folder),
                "--name",
                self.name,
                "--store",
                f"s3://{place.bucket.name}/{run_prefix(self._run).removesuffix('/')}",
                "--host",
                place.identity.address,
                "--patience-s",
                str(_PATIENCE_S),
            ),
            log=self._log,
            environment={**ALLOCATOR, **self._job_environment()},
        )

    @property
    def _log(self) -> Path:
        return self._folder / "islands" / f"{self.name}.log"

    def _job_environment(self) -> dict[str, str]:
        """Give the job's `envs`."""
        try:
            record = json.loads((self._folder / "run.json").read_text())
            return {str(name): str(value) for name, value in record.get("envs", {}).items()}
        except (OSError, ValueError, AttributeError) as error:
            raise RunError(f"run.json of '{self._run}' cannot be read ({error})") from error

    def side(self) -> None:
        """Follow the coordinator, and keep the log's copy in the bucket fresh."""
        self._follow_coordinator()
        size, uploaded = self._logged
        now = time.monotonic()
        if now - uploaded >= _LOG_EVERY_S and self._log.exists():
            new_size = self._log.stat().st_size
            if new_size != size:
                self._upload_log()
            self._logged = (new_size, now)

    def _follow_coordinator(self) -> None:
        item = self._place.table.get(run_key(self._run), COORDINATOR_ITEM)
        if item is None or item == self._address:
            return
        address = address_of(item)
        if address is not None:
            address.write(self._folder)
            self._address = item

    def _upload_log(self) -> None:
        key = run_object(self._run, f"{LOGS_PREFIX}{self.name}.log")
        self._place.bucket.upload(self._log, key)

    # --------------------------------------------------------------------- end

    def judge(self, code: int, tail: str) -> Success | Failure:
        """Give what the exit code means; see `WorkDoer`."""
        if code == ExitCode.DONE:
            return self._left_in_order()
        error, why = _MEANINGS.get(code, (RETRYABLE, "the island crashed"))
        return Failure(error, f"{self.name} ended with exit code {code}: {why}\n{tail}")

    def _left_in_order(self) -> Success | Failure:
        """Tell the run's end from an island that was asked to leave."""
        assert self._plan is not None  # noqa: S101 - written before the process started
        if last_commit(self._place, self._run) + 1 >= self._plan.total_steps:
            return Success({"ended": "done"})
        if read_run(self._place, self._run).get("cancel"):
            return Success({"ended": "stopped"})
        return Failure(RETRYABLE, f"{self.name} left before the run's end")

    def noticed(self, kind: str) -> None:
        """Record the interruption for the run's certificate."""
        step = last_commit(self._place, self._run) + 1
        self._notes.tell(
            "interruption",
            island=self.name,
            how=kind,
            at_step=step,
            pid=0,
            instance=self._place.identity.instance,
        )

    def close(self) -> None:
        """Upload the log, and leave the slot if it is still ours."""
        try:
            if self._log.exists():
                self._upload_log()
            self._place.table.update(
                run_key(self._run),
                slot_item(self._given.work.slot),
                {},
                remove=("node", "island", "usd_per_hour"),
                where={"island": (self.name,)},
            )
        except ConditionFailed:
            return  # another island has it by now
        except AwsError as error:
            self._given.complain(error.diagnostics())


def read_data_key(stack: str, run: str, region: str) -> bytes:
    """Read the data key file of a run that is sealed with one, from its SecureString.

    Raises:
        AwsError: the parameter is missing, or this role may not read it.
    """
    name = key_parameter(stack, run)
    with aws_errors(f"read the parameter {name}"):
        answer = aws_client("ssm", region=region).get_parameter(Name=name, WithDecryption=True)
    return str(answer["Parameter"]["Value"]).encode()
