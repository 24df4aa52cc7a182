"""`python -m runtime.agent.node`: the daemon of one node; see `runtime.agent.node`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from runtime.agent.node.daemon import Daemon
from runtime.agent.node.imds import Imds
from runtime.agent.node.place import find_place
from runtime.spec.errors import LumaError

_PATIENCE = {"AWS_METADATA_SERVICE_TIMEOUT": "5", "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "5"}
"""How long botocore, here and in the processes of works, waits for the role's credentials. Its own
choice of one attempt of a second gives a whole run's fate to one slow answer."""


def main() -> int:
    """Serve a fleet until told to leave; 0 then, 1 or 2 where it cannot even begin."""
    options = _parser().parse_args()
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    try:
        imds = Imds.from_environment()
        place = find_place(imds, options.scratch)
        daemon = Daemon(
            place,
            imds,
            once=options.once,
            wait_s=options.wait_s,
            notice_every_s=options.notice_every_s,
        )
        return daemon.run()
    except LumaError as error:
        print(error.diagnostics(), file=sys.stderr)  # noqa: T201 - the daemon's own log
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runtime.agent.node", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after one work")
    parser.add_argument(
        "--scratch",
        type=Path,
        default=Path(os.environ.get("LUMA_SCRATCH") or Path(tempfile.gettempdir()) / "luma-node"),
        metavar="DIR",
        help="folder of scratch files (default: LUMA_SCRATCH, or luma-node in the temporary folder)",
    )
    parser.add_argument(
        "--wait-s", type=int, default=10, metavar="S", help="seconds of one look into the queue"
    )
    parser.add_argument(
        "--notice-every-s",
        type=float,
        default=float(os.environ.get("LUMA_NOTICE_EVERY_S", "5")),
        metavar="S",
        help="seconds between two looks for a notice (default: LUMA_NOTICE_EVERY_S, or 5)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
