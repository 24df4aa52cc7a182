"""A run whose files were damaged is refused by name, and goes on once they are whole again."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.coordinator.plan import RunPlan
from runtime.run.folder import run_lock
from tests.integration.bad_input.conftest import Ready, luma, refused, write_job

pytestmark = pytest.mark.timeout(300)


def flip(path: Path, where: int) -> None:
    """Flip a bit."""
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("artifact.luma", ("artifact.luma",)),
        ("data/input_ids.i32", ("input_ids.i32", "remedy")),
        ("constants.safetensors", ("constants.safetensors", "BLAKE3")),
    ],
)
def test_a_damaged_file_is_named_and_the_mended_run_goes_on(
    fresh: Callable[..., Ready],
    ends_as_it_should: Callable[[Ready], None],
    name: str,
    words: tuple[str, ...],
) -> None:
    run = fresh(copy=(name,))
    file = run.folder / name
    where = file.stat().st_size - 9  # in the content, not in a header
    flip(file, where)
    refused(run.resume(), 1, *words)
    assert luma("status", run.folder, "--json").returncode == 0
    flip(file, where)
    ends_as_it_should(run)


def test_a_damaged_key_file_is_named(
    fresh: Callable[..., Ready], ends_as_it_should: Callable[[Ready], None], tmp_path: Path
) -> None:
    run = fresh(copy=("plan.json",))
    plan = RunPlan.read(run.folder)
    assert plan.key_file is not None
    bad = tmp_path / "data.key"
    bad.write_bytes(Path(plan.key_file).read_bytes()[:-5])
    bad.chmod(0o600)
    dataclasses.replace(plan, key_file=str(bad)).write(run.folder)
    refused(run.resume(), 1, "data.key")
    bad.write_bytes(os.urandom(32))
    refused(run.resume(), 1, "key")
    plan.write(run.folder)
    ends_as_it_should(run)


@pytest.mark.parametrize("words", [("launch", "--resume"), ("status",), ("cancel",), ("events",)])
def test_a_run_folder_of_another_version_is_refused_and_untouched(
    fresh: Callable[..., Ready], words: tuple[str, ...]
) -> None:
    run = fresh(copy=("run.json",))
    record = json.loads((run.folder / "run.json").read_text()) | {"format": 99}
    (run.folder / "run.json").write_text(json.dumps(record))
    before = sorted(path.name for path in run.folder.rglob("*"))
    refused(luma(*words, run.folder), 1, "run folder format 99", "remedy")
    assert sorted(path.name for path in run.folder.rglob("*")) == before


@pytest.mark.parametrize("name", ["run.json", "plan.json"])
@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', "\x00\xff"])
def test_a_cut_run_or_plan_file_is_no_traceback(
    fresh: Callable[..., Ready], name: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    from runtime.cli import main

    run = fresh(copy=(name,))
    (run.folder / name).write_bytes(text.encode("latin-1"))
    for words in (("launch", "--resume"), ("status",)):
        code = main([*words, str(run.folder)])
        said = capsys.readouterr().err
        assert code in {0, 1}
        assert code == 0 or "luma: " in said
    assert not (run.folder / "log.sqlite").exists()


def test_two_launches_of_one_run_at_once(fresh: Callable[..., Ready], tmp_path: Path) -> None:
    run = fresh()
    job = write_job(tmp_path)
    with run_lock(run.folder):
        refused(run.resume(), 1, "in use by another launch", str(os.getpid()))
        again = luma("launch", job, "--yes", "--run", run.folder)
        refused(again, 1, "in use by another launch", "--run")
    assert not (run.folder / "log.sqlite").exists()


def test_a_damaged_commit_log_is_named(fresh: Callable[..., Ready]) -> None:
    run = fresh()
    (run.folder / "log.sqlite").write_bytes(b"SQLite format 3\0" + os.urandom(4096))
    refused(run.resume(), 1, "log.sqlite")
