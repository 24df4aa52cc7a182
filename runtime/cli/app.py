"""The command line's root: commands, and how every error becomes a message and an exit code.

Exit codes: 0 fine, 1 a failed job or verification, 2 a usage mistake, 130 after Ctrl-C. Data goes
to standard output, progress and messages to standard error. A user's mistake never shows a
traceback; `LUMA_DEBUG=1` shows it for any error.

Modules with heavy imports are imported by the command that needs them: `luma --help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from cyclopts import App, CycloptsError

from runtime.cli import artifacts, jobs, launching, runs, serving
from runtime.cli.output import note
from runtime.spec.errors import LumaError

_HELP = """One stack, every accelerator: a model spec goes in, a sealed artifact comes out, and one
logical job trains through interruptions to a served model.

Start with `luma init`, then `luma check job.yaml`, then `luma launch job.yaml`."""

_USAGE_ERROR = 2
_INTERRUPTED = 130


def _version() -> str:
    try:
        return f"luma {version('luma')}"
    except PackageNotFoundError:
        return "luma (not installed)"


def make_app() -> App:
    """Give the app with all its commands."""
    app = App(
        name="luma",
        help=_HELP,
        version=_version,
        help_format="markdown",
        print_error=False,
        exit_on_error=False,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for module in (launching, jobs, artifacts, runs, serving):
        module.register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the words after `luma`; None takes those of the process.

    Returns:
        The exit code.
    """
    debug = os.environ.get("LUMA_DEBUG", "") not in {"", "0"}
    try:
        code = make_app()(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except CycloptsError as error:
        _say(f"{error}\n  remedy: see `luma --help` and `luma COMMAND --help`")
        return _USAGE_ERROR
    except LumaError as error:
        if debug:
            raise
        _say(error.diagnostics())
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (`| head`) has gone: that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code if isinstance(code, int) else 0


def _say(text: str) -> None:
    note(f"luma: {text}")
