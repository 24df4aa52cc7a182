"""The emulated account's process: `python -m tests.emulator.serve [--plain]`.

It listens on a free port of the loopback interface, prints `{"port": N}`, and ends when its
standard input does, so that it never outlives the test that started it, whatever ends that one.
`--plain` leaves moto as it is: the canaries ask such a server whether each gap is still there.
"""

import argparse
import json
import logging
import os
import sys
import threading

from flask import Flask
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server


class _QuietHandler(MotoRequestHandler):
    """One line a request would be thousands."""

    def log_request(self, *_args: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--region", default="us-east-1")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    # The interpreter writes pages about every error that a state catches.
    logging.getLogger("moto.stepfunctions.parser").setLevel(logging.CRITICAL)
    application = DomainDispatcherApplication(_service)
    if not options.plain:
        application = _bridged(application, options.region)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_QuietHandler)
    # The interpreter's tasks call the server they run in.
    os.environ["MOTO_PORT"] = str(server.server_port)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.stdout.write(json.dumps({"port": server.server_port}) + "\n")
    sys.stdout.flush()
    server.serve_forever()


def _service(name: str) -> Flask:
    """One service of moto; an error inside it reaches the log instead of vanishing in a 500."""
    service = create_backend_app(name)
    service.config["PROPAGATE_EXCEPTIONS"] = True
    return service


def _bridged(application: DomainDispatcherApplication, region: str) -> object:
    from tests.emulator import (
        bridge,
        capacity,
        commands,
        error_names,
        executions,
        resources,
        sdk_case,
        stacks,
        state_events,
    )
    from tests.emulator.control import Control

    for part in (
        bridge,
        executions,
        error_names,
        sdk_case,
        capacity,
        commands,
        state_events,
        resources,
        stacks,
    ):
        part.install()
    return Control(application, region)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
