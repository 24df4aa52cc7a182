"""The command line's root: commands, and how every error becomes a message and an exit code.

Exit codes: 0 fine, 1 a failed job or verification, 2 a usage mistake, 130 after Ctrl-C. Data goes
to standard output, progress and messages to standard error. No error shows a traceback: that of
an unforeseen one goes to a file which the message names; `LUMA_DEBUG=1` shows it for any error.

Modules with heavy imports are imported by the command that needs them: `luma --help` is quick.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cyclopts import App, CycloptsError

from runtime.cli import (
    artifacts,
    catalogue,
    enclave,
    jobs,
    launching,
    offers,
    runs,
    service,
    serving,
)
from runtime.cli.output import OutputGoneError, flush_output, note
from runtime.spec.errors import LumaError

_HELP = """One stack, every accelerator: a model spec goes in, a sealed artifact comes out, and one
logical job trains through interruptions to a served model.

Start with `luma init`, then `luma check job.yaml`, then `luma launch job.yaml`."""

_USAGE_ERROR = 2
_INTERRUPTED = 130
_READS = frozenset({"status", "logs", "events", "inspect", "offers", "catalogue", "cost"})
"""Commands that only show something: whoever reads of it may stop reading at any time."""


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
    for module in (launching, jobs, offers, catalogue, artifacts, runs, serving, enclave, service):
        module.register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the words after `luma`; None takes those of the process.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = os.environ.get("LUMA_DEBUG", "") not in {"", "0"}
    try:
        code = make_app()(words)
        flush_output()
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
    except OutputGoneError as gone:
        return _without_output(gone, words)
    except Exception as error:
        if debug:
            raise
        _say(_unforeseen(error))
        return 1
    return code if isinstance(code, int) else 0


def _say(text: str) -> None:
    note(f"luma: {text}")


def _without_output(gone: OutputGoneError, words: list[str]) -> int:
    """Judge a command whose standard output went away: `| head` of a list is nothing wrong."""
    from runtime.run.quiet import hush

    hush(sys.stdout)
    if gone.by_reader and words[:1] and words[0] in _READS:
        return 0
    _say(f"standard output cannot be written ({gone.reason}); what the command did stands")
    return 1


def _unforeseen(error: Exception) -> str:
    """Give the message of an error that nobody foresaw, and put its traceback into a file."""
    text = " ".join(str(error).split())[:300]
    what = f"unexpected {type(error).__name__}: {text}"
    remedy = "LUMA_DEBUG=1 shows the traceback; please report it"
    details = "".join(traceback.format_exception(error))
    name = f"error-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    for make in (_report_folder, lambda: Path(tempfile.gettempdir())):
        try:
            path = make() / name
            path.write_text(details, encoding="utf-8")
        except (OSError, LumaError):
            continue
        return f"{what}\n  details: {path}\n  remedy: {remedy}"
    return f"{what}\n  remedy: {remedy}"


def _report_folder() -> Path:
    from runtime.artifact import default_home, private_folder

    return private_folder(default_home() / "logs")
