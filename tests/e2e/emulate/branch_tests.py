"""The state machines' own tests, run beside the story: they drive what one story cannot."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.emulator.branches import FOLDER_VARIABLE
from tests.emulator.node import ROOT

TESTS = "tests/integration/state_machines"


class BranchTests:
    """One run of them, in the background from the moment it is entered.

    They mostly wait for state machines, in emulated accounts of their own.

    Args:
        work: folder for their log and for the records of branches.
    """

    def __init__(self, work: Path):
        self._records = work / "branches"
        self._log = work / "state_machines.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        shutil.rmtree(self._records, ignore_errors=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-q", TESTS],
                cwd=ROOT,
                env={**os.environ, FOLDER_VARIABLE: str(self._records)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def passed(self) -> bool:
        """Wait for their end; whether all of them passed."""
        return self._process is not None and self._process.wait() == 0

    def records(self) -> list[Path]:
        """What they saw, for `BranchRecord.merge`."""
        return sorted(self._records.glob("*.json"))
