"""The product's command line, as its user would run it: in a home of its own, by exit code."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.emulator.node import ROOT

_LIMIT_S = 1200


class CommandFailedError(AssertionError):
    """A command ended with an error; the message holds what it wrote."""


class CommandLine:
    """`luma`, with its keys and caches below a folder.

    Args:
        work: the folder; `luma.log` in it keeps every output.
    """

    def __init__(self, work: Path):
        self._work = work

    def run(self, environment: Mapping[str, str], *arguments: Any) -> dict[str, Any]:
        """Run a command and read its JSON.

        Args:
            environment: variables on top of this process's own.
            arguments: with `--json` among them.

        Raises:
            CommandFailedError: its exit code is not 0.
        """
        words = [str(argument) for argument in arguments]
        ended = subprocess.run(
            [sys.executable, "-m", "runtime.cli", *words],
            cwd=ROOT,
            env={**os.environ, **environment, "LUMA_HOME": str(self._work / "home")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        with (self._work / "luma.log").open("a") as log:
            log.write(f"$ luma {' '.join(words)}\n{ended.stderr}{ended.stdout}\n")
        if ended.returncode != 0:
            raise CommandFailedError(f"luma {words[0]} ended {ended.returncode}:\n{ended.stderr}")
        return json.loads(ended.stdout)
