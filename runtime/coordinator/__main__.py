"""`python -m runtime.coordinator --run DIR`: the coordinator's process.

Exit codes: 0 done or stopped, 1 failed, 4 a bug, 6 the log's store did not answer (start another
coordinator; the islands wait for it), 7 another coordinator has taken over (nothing is to be done).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from runtime.coordinator.commit_log import SupersededError
from runtime.coordinator.open_log import TablePlace
from runtime.coordinator.server import LOOPBACK, CoordinatorServer
from runtime.spec.aws import AwsError
from runtime.spec.errors import LumaError

NO_STORE = 6
SUPERSEDED = 7


def main() -> int:
    """Run the coordinator of one run folder; give the process's exit code."""
    options = _parser().parse_args()
    try:
        phase = asyncio.run(_serve(options))
    except LumaError as error:
        print(error.diagnostics(), file=sys.stderr)  # noqa: T201 - the process's own log
        return _exit_code(error)
    return 1 if phase == "failed" else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runtime.coordinator", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the run folder")
    parser.add_argument("--restart", action="store_true", help="its islands may be alive")
    parser.add_argument(
        "--log", metavar="PLACE", help="dynamodb:TABLE/RUN; default: log.sqlite in the run folder"
    )
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on and to publish")
    return parser


async def _serve(options: argparse.Namespace) -> str:
    place = None if options.log is None else TablePlace.parse(options.log)
    server = CoordinatorServer(options.run, restart=options.restart, place=place, host=options.host)
    return await server.serve()


def _exit_code(error: LumaError) -> int:
    if isinstance(error, SupersededError):
        return SUPERSEDED
    if isinstance(error, AwsError) and error.elsewhere:
        return NO_STORE
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
