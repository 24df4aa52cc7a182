"""A job that cannot run is refused with its reason before a run folder exists, and leaves nothing.

The messages' details are tested where they are made (spec, capture, data); here, that they reach
the user through the command, with the right exit code and without leftovers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.bad_input.conftest import luma, make_job, refused, write_job

pytestmark = pytest.mark.timeout(300)


def launch_refused(job: Path, code: int, *words: str) -> None:
    """Launch and check that it is refused and leaves nothing behind."""
    runs = job.parent / "runs"
    refused(luma("launch", job, "--yes", "--run", runs / "r"), code, *words)
    left = [path.name for path in runs.iterdir()] if runs.exists() else []
    assert [name for name in left if not name.endswith(".lock")] == []


def test_a_job_file_with_ten_mistakes_names_all_ten_at_once(tmp_path: Path) -> None:
    job = make_job()
    job["schema"] = "luma/v9"
    job["model"]["dtype"] = "fp8"
    job["colour"] = "red"
    job["compile"] = {"seal": "L2", "targets": ["abacus"]}
    job["train"] |= {"micro_batch": 0, "epochs": 2, "seq_len": "long"}
    job["train"]["optimizer"] = {"lr": -1}
    job["data"]["kind"] = "poems"
    job["recovery"]["heartbeat_timeout"] = "5"
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(job, indent=1))
    fields = (
        *("schema", "model.dtype", "colour", "compile.seal", "compile.targets"),
        *("train.micro_batch", "train.seq_len", "train.optimizer.lr", "data.kind"),
        "recovery.heartbeat_timeout",
    )
    done = luma("launch", path, "--yes", "--run", tmp_path / "runs" / "r")
    refused(done, 2, *fields)
    lines = [line for line in done.stderr.splitlines() if "job.yaml:" in line]
    assert len(lines) >= 10, done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_model_whose_python_branches_on_values(tmp_path: Path) -> None:
    job = write_job(tmp_path, model={"source": "./model.py:branching"})
    launch_refused(job, 1, "cannot be traced", "remedy: remove Python control flow")


def test_a_line_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "fine, and long enough"}\n{"text": \n')
    job = write_job(tmp_path, data={"source": "./d.jsonl"})
    launch_refused(job, 2, "d.jsonl:2", "JSON")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"model": {"source": "./model.py:double"}}, 1, ("not float32", "float64")),
        ({"model": {"source": "./model.py:broken"}}, 1, ("no weights today",)),
        ({"model": {"source": "./model.py:absent"}}, 2, ("absent",)),
        ({"model": {"source": "./no-such-folder"}}, 2, ("no-such-folder",)),
        ({"train": {"seq_len": 65}}, 1, ("train.seq_len: 65", "at most 64")),
        ({"model": {"source": "./model.py:few_tokens"}}, 2, ("token 256", "larger vocabulary")),
        ({"data": {"source": "./empty.txt"}}, 2, ("empty.txt", "nothing to learn")),
        ({"data": {"source": "./absent.jsonl"}}, 2, ("absent.jsonl",)),
    ],
    ids=[
        "double",
        "broken",
        "no-function",
        "no-folder",
        "seq-len",
        "vocabulary",
        "empty",
        "no-data",
    ],
)
def test_a_job_that_cannot_run(
    tmp_path: Path, changes: dict, code: int, words: tuple[str, ...]
) -> None:
    (tmp_path / "empty.txt").write_text("")
    launch_refused(write_job(tmp_path, **changes), code, *words)


@pytest.mark.slow
def test_an_older_run_survives_a_launch_that_is_refused(finished, tmp_path: Path) -> None:
    """A bad job launched over a good run's folder leaves the run as it was."""
    job = write_job(tmp_path, model={"source": "./model.py:branching"})
    before = sorted(path.name for path in finished.folder.parent.iterdir())
    refused(luma("launch", job, "--yes", "--run", finished.folder), 1, "cannot be traced")
    left = sorted(path.name for path in finished.folder.parent.iterdir())
    assert [n for n in left if not n.endswith(".lock")] == [
        n for n in before if not n.endswith(".lock")
    ]
    assert luma("status", finished.folder, "--json").returncode == 0
