"""The works `compile` and `export`: a process of the runtime that does it all and leaves an answer.

The agent imports neither the compiler nor what makes certificates: each is a module of a layer
above, started by its name, with one JSON file of what it needs. It writes `answer.json`, and says by
its exit code what it came to: 0 done, 75 (sysexits' EX_TEMPFAIL) for something that may pass, any
other one for a job that cannot be done.
"""

from __future__ import annotations

import json
from typing import Any, Final

from runtime.agent.node.child import Command
from runtime.agent.node.tasks import Failure, Success
from runtime.agent.node.work import Given, failure_of, private_write
from runtime.agent.node.work_island import read_data_key
from runtime.coordinator.plan import RunPlan
from runtime.spec.account import JOB_FAILED, LOGS_PREFIX, RETRYABLE, run_object
from runtime.spec.aws import AwsError
from runtime.spec.errors import LumaError
from runtime.spec.objects import Cancelled

__all__ = ["MAY_PASS", "StageWork"]

MAY_PASS: Final = 75
"""Exit code of a stage that met something that may pass, such as a throttled request."""

MODULES: Final = {
    "compile": "runtime.cli.account_compile",
    "export": "runtime.run.account.export",
}
ANSWER_FILE: Final = "answer.json"
REQUEST_FILE: Final = "request.json"


class StageWork:
    """A work that one process does from its beginning to its end."""

    graceful = False

    def __init__(self, given: Given) -> None:
        self._given, self._place = given, given.place
        self._kind, self._run = given.work.kind, given.work.run
        self._folder = given.folder
        self._log = given.folder / f"{self._kind}.log"

    def prepare(self) -> Success | Failure | None:
        """Write the request; the process fetches by itself. See `WorkDoer`."""
        try:
            if self._kind == "compile":
                self._fetch_key()
            request = {
                "run": self._run,
                "stack": self._place.config.stack,
                "region": self._place.config.region,
                "bucket": self._place.bucket.name,
                "table": self._place.table.name,
            }
            private_write(self._folder / REQUEST_FILE, json.dumps(request).encode())
        except Cancelled:
            return Failure(RETRYABLE, "given up while it was fetched")
        except LumaError as error:
            return failure_of(error, JOB_FAILED, RETRYABLE)
        return None

    def _fetch_key(self) -> None:
        """Put the data key of a run that is sealed with a key file beside the request."""
        self._place.bucket.download(
            run_object(self._run, "plan.json"),
            self._folder / "plan.json",
            cancelled=self._given.cancelled,
        )
        if RunPlan.read(self._folder).key_file is not None:
            key = read_data_key(self._place.config.stack, self._run, self._place.config.region)
            private_write(self._folder / "data.key", key)

    def command(self) -> Command:
        """Give the stage's process."""
        return Command(
            module=MODULES[self._kind], arguments=("--folder", str(self._folder)), log=self._log
        )

    def side(self) -> None:
        """Nothing: the process does it all."""

    def judge(self, code: int, tail: str) -> Success | Failure:
        """Give what the process's end means; see `WorkDoer`."""
        if code == 0:
            answer = self._read_answer()
            if answer is not None:
                return Success(answer)
            return Failure(RETRYABLE, f"the {self._kind} left no {ANSWER_FILE}\n{tail}")
        error = RETRYABLE if code == MAY_PASS or code < 0 else JOB_FAILED
        return Failure(error, f"the {self._kind} ended with exit code {code}\n{tail}")

    def _read_answer(self) -> dict[str, Any] | None:
        try:
            answer = json.loads((self._folder / ANSWER_FILE).read_text())
        except (OSError, ValueError):
            return None
        return answer if isinstance(answer, dict) else None

    def noticed(self, kind: str) -> None:
        """Nothing to record: another node does it from the beginning."""

    def close(self) -> None:
        """Upload the log."""
        try:
            if self._log.exists():
                key = run_object(self._run, f"{LOGS_PREFIX}{self._kind}.log")
                self._place.bucket.upload(self._log, key)
        except AwsError as error:
            self._given.complain(error.diagnostics())
