"""`python -m runtime.agent --run DIR --name island-0`: one island's process."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from runtime.agent.exit_codes import ExitCode
from runtime.agent.settings import LOCAL, IslandSettings
from runtime.agent.threads import island_environment
from runtime.coordinator.fence import ISLANDS_LOCK, Fence
from runtime.coordinator.plan import RunPlan
from runtime.coordinator.tls import run_tls
from runtime.spec.aws import AwsError
from runtime.spec.errors import LumaError


def main() -> int:
    """Run one island; see `runtime.agent` for the exit codes."""
    options = _parser().parse_args()
    try:
        plan = RunPlan.read(options.run)
        # Held until this process ends: a launcher waits for it before it touches the folder.
        lock = Fence(options.run / ISLANDS_LOCK, shared=True)
        # XLA reads these once, when jax is first imported; the imports below rely on it.
        os.environ.update(island_environment(plan.threads_per_island, plan.target))
        code = asyncio.run(_serve(options, plan))
        del lock
        return code
    except LumaError as error:
        print(error.diagnostics(), file=sys.stderr)  # noqa: T201 - the process's own log
        elsewhere = isinstance(error, AwsError) and error.elsewhere
        return ExitCode.CRASHED if elsewhere else ExitCode.FATAL


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runtime.agent", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the run folder")
    parser.add_argument("--name", required=True, help="the island's name, unique in the run")
    parser.add_argument(
        "--host", default=LOCAL.host, help="address to listen on and to tell other islands"
    )
    parser.add_argument(
        "--store", metavar="URL", help="s3://BUCKET/PREFIX of the run; default: the run folder"
    )
    parser.add_argument(
        "--patience-s",
        type=float,
        default=LOCAL.patience_s,
        metavar="S",
        help="how long to look for a coordinator, in seconds",
    )
    return parser


async def _serve(options: argparse.Namespace, plan: RunPlan) -> int:
    from runtime.agent.start import open_island  # after the environment is set

    settings = IslandSettings(
        host=options.host,
        tls=run_tls(options.run, options.host),
        store=options.store,
        patience_s=options.patience_s,
    )
    return await open_island(options.run, options.name, plan, settings).run()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # compute threads may still be in a program; nobody waits for its result
