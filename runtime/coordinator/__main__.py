"""`python -m runtime.coordinator --run DIR`: the coordinator's process."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from runtime.coordinator.server import CoordinatorServer
from runtime.spec.errors import LumaError


def main() -> int:
    """Run the coordinator of one run folder; 0 when done or stopped, 1 when failed."""
    parser = argparse.ArgumentParser(prog="runtime.coordinator", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the run folder")
    parser.add_argument("--restart", action="store_true", help="its islands may be alive")
    options = parser.parse_args()
    try:
        phase = asyncio.run(_serve(options.run, restart=options.restart))
    except LumaError as error:
        print(error.diagnostics(), file=sys.stderr)  # noqa: T201 - the process's own log
        return error.exit_code
    return 1 if phase == "failed" else 0


async def _serve(run_dir: Path, *, restart: bool) -> str:
    return await CoordinatorServer(run_dir, restart=restart).serve()


if __name__ == "__main__":
    sys.exit(main())
