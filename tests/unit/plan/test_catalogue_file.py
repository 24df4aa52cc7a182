"""The user's catalogue comes before the package's, is replaced whole, and is an error when broken."""

from __future__ import annotations

import pytest

from runtime.plan import catalogue_file
from runtime.plan.catalogue_file import (
    current_catalogue,
    read_catalogue,
    user_file,
    write_catalogue,
)
from runtime.spec import SpecError, load_catalogue


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Each test has a home of its own."""
    monkeypatch.setenv("LUMA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_without_a_file_it_is_the_packages() -> None:
    assert current_catalogue() is load_catalogue()


def test_what_is_written_is_read_and_comes_first(rows, row) -> None:
    own = rows(row("a.large"), updated="2026-11-30T10:00:00+00:00", updated_regions=["us-east-1"])
    path = write_catalogue(own)
    assert path == user_file()
    assert current_catalogue() == own
    assert (path.parent.stat().st_mode & 0o077) == 0
    assert write_catalogue(load_catalogue()) == path
    assert read_catalogue(path) == load_catalogue()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no catalogue"),
        (b"{}", "is no catalogue: about: field required"),
        (b'{"about": "", "sources": [], "rules": [], "accelerators": [1]}', "accelerators.0"),
        (b"\xff\xfe", "is no catalogue"),
    ],
)
def test_a_broken_file_is_an_error_and_not_passed_over(home, content, message) -> None:
    home.mkdir()
    user_file().write_bytes(content)
    with pytest.raises(SpecError, match=message) as caught:
        current_catalogue()
    assert "luma catalogue update" in caught.value.remedy


def test_a_huge_file_is_refused(home, monkeypatch) -> None:
    monkeypatch.setattr(catalogue_file, "MAX_BYTES", 10)
    home.mkdir()
    user_file().write_bytes(b"x" * 11)
    with pytest.raises(SpecError, match="larger than 10 bytes"):
        current_catalogue()


def test_a_disk_that_fails_leaves_the_old_file(rows, row, monkeypatch) -> None:
    own = rows(row("a.large"))
    path = write_catalogue(own)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(catalogue_file.os, "fsync", full)
    with pytest.raises(SpecError, match="cannot be written: No space left on device"):
        write_catalogue(load_catalogue())
    assert current_catalogue() == own
    assert [file.name for file in path.parent.iterdir()] == [path.name]
