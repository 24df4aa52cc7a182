"""A dozen diverse architectures come all the way: `python -m tests.coverage --fast`.

The whole mapping takes long (`make coverage`); its result is in docs/coverage.md. This keeps the
path from a transformers model to a right step of a compiled program working.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.coverage.architectures import FAST

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> dict[str, dict]:
    """Cover the dozen in a process of its own, whose environment is the CPU target's."""
    results = tmp_path_factory.mktemp("coverage")
    command = [sys.executable, "-m", "tests.coverage", "--fast", f"--results={results}"]
    command += ["--micro-batch=1", "--seq-len=20", "--time-limit=300"]
    environment = {k: v for k, v in os.environ.items() if k not in {"XLA_FLAGS", "JAX_PLATFORMS"}}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    found = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    assert found, done.stderr
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("model_type", FAST)
def test_the_compiled_step_gives_eagers_loss_and_gradients(model_type, rows):
    row = rows[model_type]
    assert (row["status"], row["error"]) == ("correct", "")
    assert row["gradient_error"] < 1e-4
    assert row["nodes"] > 100


@pytest.mark.timeout(900)
@pytest.mark.parametrize("model_type", FAST)
def test_nothing_is_left_that_neuron_could_not_compile(model_type, rows):
    row = rows[model_type]
    assert (row["neuron"], row["neuron_left"]) == ("none left", {})
