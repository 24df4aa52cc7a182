"""The run folder: whole or absent, older ones moved aside, other versions refused, one launch."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.run.files import write_bytes, write_json
from runtime.run.folder import RunFolder, RunFolderBuilder, run_lock
from runtime.spec import RunError, SpecError


def hidden(parent: Path) -> list[str]:
    """Give the names of hidden entries."""
    return sorted(path.name for path in parent.iterdir() if path.name.startswith("."))


@pytest.mark.parametrize("place", ["/proc/nope/x", "/proc/x"])
def test_a_place_where_no_folder_can_be_made_is_a_message(place):
    with pytest.raises(RunError, match=f"{place}: cannot be written"), run_lock(Path(place)):
        raise AssertionError
    with pytest.raises(RunError, match="cannot be written"), RunFolderBuilder(Path(place)):
        raise AssertionError


def test_a_committed_folder_stands_under_its_name_and_opens(tmp_path):
    with RunFolderBuilder(tmp_path / "runs" / "one") as builder:
        (builder.folder.path / "model.graph").write_bytes(b"graph")
        assert not (tmp_path / "runs" / "one").exists()
        folder = builder.commit({"name": "one"})
    assert folder.graph_file.read_bytes() == b"graph"
    assert RunFolder.open(folder.path).record()["name"] == "one"
    assert hidden(tmp_path / "runs") == []


def test_a_failed_preparation_leaves_nothing_and_the_older_run_in_place(tmp_path):
    target = tmp_path / "one"
    with RunFolderBuilder(target) as builder:
        builder.commit({"name": "older"})
    with pytest.raises(ZeroDivisionError), RunFolderBuilder(target) as builder:
        (builder.folder.path / "half").write_text("half")
        raise ZeroDivisionError
    assert RunFolder.open(target).record()["name"] == "older"
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_an_older_run_is_moved_aside_and_not_lost(tmp_path):
    target = tmp_path / "one"
    for name in ("first", "second", "third"):
        with RunFolderBuilder(target) as builder:
            builder.commit({"name": name})
    assert RunFolder.open(target).record()["name"] == "third"
    aside = sorted(path for path in tmp_path.iterdir() if path != target)
    assert sorted(RunFolder.open(path).record()["name"] for path in aside) == ["first", "second"]
    assert all(path.name.startswith("one.old-") for path in aside)


def test_what_a_killed_preparation_left_is_removed_by_the_next(tmp_path):
    (tmp_path / ".one.preparing-12345").mkdir()
    (tmp_path / ".one.preparing-12345" / "half").write_text("half")
    (tmp_path / ".other.preparing-1").mkdir()
    with RunFolderBuilder(tmp_path / "one") as builder:
        builder.commit({"name": "one"})
    assert hidden(tmp_path) == [".other.preparing-1"]


def test_a_folder_with_foreign_files_is_refused_and_untouched(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(SpecError, match="not a run") as caught:
        RunFolderBuilder(tmp_path)
    assert caught.value.exit_code == 2
    assert (tmp_path / "thesis.txt").read_text() == "precious"
    with pytest.raises(SpecError, match="is a file"):
        RunFolderBuilder(tmp_path / "thesis.txt")


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "one").mkdir()
    with RunFolderBuilder(tmp_path / "one") as builder:
        builder.commit({"name": "one"})
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


@pytest.mark.parametrize(
    "content", ['{"format": 99}', "{}", "[]", "{", '"format"', '{"format": "1"}']
)
def test_a_run_folder_of_another_version_is_refused(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunError) as caught:
        RunFolder.open(tmp_path)
    assert "run.json" in caught.value.message
    assert caught.value.exit_code == 1


def test_a_folder_that_is_no_run_is_named_as_such(tmp_path):
    with pytest.raises(RunError, match="not a run folder"):
        RunFolder.open(tmp_path)
    with pytest.raises(RunError, match="not a run folder"):
        RunFolder.open(tmp_path / "absent")


def test_two_launches_cannot_have_one_run_folder(tmp_path):
    script = (
        "import sys; from pathlib import Path; from runtime.run.folder import run_lock\n"
        "with run_lock(Path(sys.argv[1])):\n    print('locked', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "one")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"
    with pytest.raises(RunError, match=f"process {other.pid}"), run_lock(tmp_path / "one"):
        pass
    other.kill()
    other.wait()
    other.stdin.close()
    other.stdout.close()
    with run_lock(tmp_path / "one"):  # the lock of a killed launch is gone with it
        pass


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "certificate.json"
    write_json(path, {"level": "exact"})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="no space is left") as caught:
        write_bytes(path, b"x" * 100)
    assert str(path) in caught.value.message
    assert json.loads(path.read_text()) == {"level": "exact"}
    assert [item.name for item in tmp_path.iterdir()] == ["certificate.json"]


def test_a_read_only_place_is_an_error_that_names_it(tmp_path):
    with pytest.raises(RunError, match=r"cannot be written"):
        write_bytes(tmp_path / "absent" / "file", b"x")
