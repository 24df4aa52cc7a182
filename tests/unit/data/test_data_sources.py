"""Sources: what a name means, and what is said when it means nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet

from runtime.run.data import prepare_data
from runtime.run.data.readers import Reader
from runtime.run.data.sources import FileSource, HubSource, resolve_sources
from runtime.spec import DataError
from runtime.spec.job import JobSpec


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf://imdb", ("imdb", None, None, "train")),
        ("hf://a/b-c.d@main", ("a/b-c.d", "main", None, "train")),
        ("hf://a/b:en#test", ("a/b", None, "en", "test")),
        ("hf://a/b@refs/x:en#train[:10%]", ("a/b", "refs/x", "en", "train[:10%]")),
    ],
)
def test_names_of_hub_data_sets(name: str, expected: tuple) -> None:
    (source,) = resolve_sources((name,), Path(), "auto")
    assert isinstance(source, HubSource)
    assert (source.name, source.revision, source.config, source.split) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.txt", "does not exist"),
        ("empty", r"holds no data file; looked for \*\.txt"),
        ("d.bin", r"the suffix '\.bin' tells no format"),
        ("s3://bucket/x", "unknown kind"),
        ("python://os", r"the only module that is data is python://pydoc_data\.topics"),
        ("hf://a/b/c", "is no data set"),
        ("hf://", "is no data set"),
        ("/dev/null", "is neither a file nor a folder"),
    ],
)
def test_a_source_that_cannot_be_used_is_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "picture.png").write_text("")
    (tmp_path / "d.bin").write_text("x")
    with pytest.raises(DataError, match=message) as caught:
        resolve_sources((name,), tmp_path, "auto")
    assert caught.value.message.startswith("data.source: ")
    assert caught.value.exit_code == 2


def test_a_named_format_goes_before_the_suffix(tmp_path: Path) -> None:
    (tmp_path / "d.bin").write_text("x")
    (tmp_path / "e.txt").write_text("x")
    (tmp_path / "f.jsonl").write_text("{}")
    (source,) = resolve_sources(("d.bin",), tmp_path, "text")
    assert source == FileSource(path=tmp_path / "d.bin", format="text")
    assert len(resolve_sources((".",), tmp_path, "text")) == 1
    assert len(resolve_sources((".",), tmp_path, "auto")) == 2


def test_a_text_that_is_no_utf8_is_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "d.txt"
    path.write_bytes(b"one\ntwo \xff\n")
    reader = Reader(FileSource(path=path, format="text"), field="text", kind="text")
    with pytest.raises(DataError, match=r"d\.txt:2: not UTF-8 \(byte 0xff\)"):
        list(reader.documents())


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing"])
def test_a_broken_parquet_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "d.parquet"
    path.write_bytes(content)
    reader = Reader(FileSource(path=path, format="parquet"), field="text", kind="text")
    with pytest.raises(DataError, match=r"d\.parquet: cannot be read as Parquet"):
        list(reader.documents())


def test_a_missing_column_and_a_null_are_named(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    parquet.write_table(pa.table({"body": ["a", None]}), path)
    source = FileSource(path=path, format="parquet")
    with pytest.raises(DataError, match=r"d\.parquet: no field 'text'; present: body"):
        list(Reader(source, field="text", kind="text").documents())
    with pytest.raises(DataError, match=r"d\.parquet: row 1: field 'body' is null"):
        list(Reader(source, field="body", kind="text").documents())


def test_a_file_that_goes_away_is_told(tmp_path: Path) -> None:
    source = FileSource(path=tmp_path / "gone.jsonl", format="jsonl")
    reader = Reader(source, field="text", kind="text")
    with pytest.raises(DataError, match="cannot be read"):
        reader.digest()
    with pytest.raises(DataError, match="cannot be read"):
        list(reader.documents())


def test_without_a_hub_the_message_says_what_to_do(
    tmp_path: Path, make_spec: Callable[..., JobSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"hf://luma-no/such-set cannot be loaded") as caught:
        prepare_data(make_spec("hf://luma-no/such-set"), None, tmp_path / "data")
    assert "download the files and name their folder" in caught.value.diagnostics()
    assert caught.value.exit_code == 2


def test_rows_of_a_hub_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data set is a real one of the library; only the download is left out."""
    loaded = datasets.Dataset.from_dict({"body": ["one", "two"], "other": [1, 2]})
    asked = []
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *names, **options: asked.append((names, options)) or loaded
    )
    source = HubSource(name="a/b", revision="v1", config=None, split="test")
    reader = Reader(source, field="body", kind="text")
    assert [(document.content, document.where) for document in reader.documents()] == [
        ("one", "hf://a/b: row 0"),
        ("two", "hf://a/b: row 1"),
    ]
    assert asked == [(("a/b", None), {"split": "test", "revision": "v1"})]
    loaded = datasets.Dataset.from_dict({"body": ["one", "other"], "other": [1, 2]})
    assert Reader(source, field="body", kind="text").digest() != reader.digest()
    with pytest.raises(DataError, match=r"hf://a/b: no field 'text'; present: body, other"):
        list(Reader(source, field="text", kind="text").documents())
