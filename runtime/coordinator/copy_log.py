"""Bring a run's log from the account's table into a run folder, where the certificate reads it.

python -m runtime.coordinator.copy_log --log dynamodb:TABLE/RUN --run DIR
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from runtime.coordinator.commit_log import CommitLog
from runtime.coordinator.log import LOG_FILE, SqliteCommitLog
from runtime.coordinator.log_dynamodb import DynamoCommitLog
from runtime.coordinator.open_log import TablePlace
from runtime.spec.errors import CoordinationError, LumaError


def copy_log(source: CommitLog, target: SqliteCommitLog) -> None:
    """Copy every row of a log, with its time, into an empty one: all of them or none.

    Raises:
        CoordinationError: the target is not empty, or cannot be written.
        LumaError: the source cannot be read.
    """
    target.fill(source.rows())


def bring_home(place: TablePlace, run_dir: Path) -> None:
    """Write a run's log into the file that a run folder has it in.

    The file appears whole, and replaces an older copy.

    Raises:
        LumaError: the table cannot be read, or the folder cannot be written.
    """
    hidden = run_dir / f".{LOG_FILE}.copy"
    try:
        _remove(hidden)  # what a killed copy left
        _copy_into(hidden, place)
        # A file beside the old log that held its newest rows would be taken for the new log's.
        _remove(run_dir / LOG_FILE)
        hidden.rename(run_dir / LOG_FILE)
    except OSError as error:
        raise CoordinationError(
            f"{run_dir / LOG_FILE}: cannot be written ({error.strerror})"
        ) from error


def _copy_into(path: Path, place: TablePlace) -> None:
    source = DynamoCommitLog(place.table, place.run, read_only=True)
    target = SqliteCommitLog(path)
    try:
        copy_log(source, target)
    finally:
        source.close()
        target.close()  # puts all rows into the one file


def _remove(path: Path) -> None:
    for end in ("-wal", "-shm", ""):
        path.with_name(path.name + end).unlink(missing_ok=True)


def main() -> int:
    """Copy one run's log; 0 when done."""
    parser = argparse.ArgumentParser(prog="runtime.coordinator.copy_log", description=__doc__)
    parser.add_argument("--log", required=True, metavar="PLACE", help="dynamodb:TABLE/RUN")
    parser.add_argument("--run", type=Path, required=True, help="the run folder")
    options = parser.parse_args()
    try:
        bring_home(TablePlace.parse(options.log), options.run)
    except LumaError as error:
        print(error.diagnostics(), file=sys.stderr)  # noqa: T201 - the process's own log
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
