"""Where a run's commit log lies: its file in the run folder, or `dynamodb:TABLE/RUN`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from runtime.coordinator.commit_log import CommitLog
from runtime.coordinator.log import LOG_FILE, SqliteCommitLog
from runtime.spec.errors import SpecError

_SCHEME = "dynamodb:"
# DynamoDB's rule for table names; a run's name is also a part of keys in the bucket.
_PLACE = re.compile(r"dynamodb:(?P<table>[A-Za-z0-9_.-]{3,255})/(?P<run>[a-z0-9][a-z0-9-]{0,62})")


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A run's place in a DynamoDB table.

    Attributes:
        table: the table's name.
        run: the run's name.
    """

    table: str
    run: str

    @classmethod
    def parse(cls, text: str) -> TablePlace:
        """Read `dynamodb:TABLE/RUN`.

        Raises:
            SpecError: it has another form.
        """
        match = _PLACE.fullmatch(text)
        if match is None:
            raise SpecError(
                f"--log: {text!r}; expected {_SCHEME}TABLE/RUN with a run of a-z, 0-9 and '-', "
                "63 characters at most",
                remedy="leave it out for the log in the run folder",
            )
        return cls(match["table"], match["run"])


def open_log(run_dir: Path, place: TablePlace | None) -> CommitLog:
    """Open a run's log for its coordinator.

    Args:
        run_dir: the run folder.
        place: where else than in the run folder the log lies.

    Raises:
        LumaError: it cannot be opened, or another coordinator took it over in this moment.
    """
    if place is None:
        return SqliteCommitLog(run_dir / LOG_FILE)
    from runtime.coordinator.log_dynamodb import DynamoCommitLog  # boto3 takes its time

    return DynamoCommitLog(place.table, place.run)
