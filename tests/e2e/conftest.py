"""A place with its own keys and caches, and a first finished launch of the tiny job, for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

JOB = Path(__file__).resolve().parents[2] / "examples" / "tiny" / "job.yaml"


@dataclass
class Launch:
    """A finished launch: its folder, what it printed, and its certificate."""

    folder: Path
    stderr: str
    certificate: dict


@dataclass
class Workplace:
    """A home of keys and caches, and a folder of runs."""

    path: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every process of this place."""
        return {**os.environ, "LUMA_HOME": str(self.path / "home"), "NO_COLOR": "1"}

    def luma(
        self, *arguments: str | Path, timeout: float = 420
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line in this place."""
        return subprocess.run(
            [sys.executable, "-m", "runtime.cli", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=self.environment,
            stdin=subprocess.DEVNULL,
        )

    def launch(self, name: str, *options: str) -> Launch:
        """Launch the tiny job and read its JSON."""
        folder = self.path / "runs" / name
        done = self.luma("launch", JOB, "--yes", "--json", "--run", folder, *options)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document["run"] == str(folder.resolve())
        return Launch(folder, done.stderr, document["certificate"])


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Workplace:
    """Give an empty place."""
    return Workplace(tmp_path_factory.mktemp("tiny-launch"))


@pytest.fixture(scope="session")
def first(place) -> Launch:
    """The first launch: one island is killed; the reference is run."""
    return place.launch("first", "--chaos", "kill:1@step=12", "--reference")
