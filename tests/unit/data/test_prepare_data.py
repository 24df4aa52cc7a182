"""From files to samples: every supervised token once, nothing across documents, whole or nothing."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from transformers import PreTrainedTokenizerFast

from runtime.agent.samples import IGNORE, SampleFile
from runtime.run.data import prepare_data
from runtime.spec import DataError
from runtime.spec.job import JobSpec

MakeSpec = Callable[..., JobSpec]


def write_jsonl(path: Path, texts: list[str], field: str = "text") -> None:
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))


def rows_of(folder: Path) -> dict[str, np.ndarray]:
    samples = SampleFile.open(folder)
    return samples.batch(np.arange(samples.count))


def documents_of(rows: dict[str, np.ndarray]) -> list[list[tuple[int, int]]]:
    """Read the (token, label) pairs of each segment back."""
    found = []
    for tokens, labels, segments in zip(
        rows["input_ids"], rows["labels"], rows["segment_ids"], strict=True
    ):
        for segment in range(1, segments.max() + 1):
            inside = segments == segment
            found.append(list(zip(tokens[inside].tolist(), labels[inside].tolist(), strict=True)))
    return found


def pairs_of(text: str) -> list[tuple[int, int]]:
    """The pairs of a document as bytes, from the definition."""
    ids = [*text.encode(), 256]
    return list(itertools.pairwise(ids))


def pieces(pairs: list[tuple[int, int]], width: int) -> list[list[tuple[int, int]]]:
    return [pairs[start : start + width] for start in range(0, len(pairs), width)]


@given(
    texts=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
        min_size=1,
        max_size=8,
    ),
    packing=st.booleans(),
    seq_len=st.integers(2, 20),
)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_supervised_token_is_a_label_exactly_once(
    tmp_path: Path, make_spec: MakeSpec, texts: list[str], packing: bool, seq_len: int
) -> None:
    write_jsonl(tmp_path / "d.jsonl", texts)
    spec = make_spec("d.jsonl", seq_len=seq_len, packing=packing)
    info = prepare_data(spec, None, tmp_path / "data")
    rows = rows_of(tmp_path / "data")
    expected = [piece for text in texts for piece in pieces(pairs_of(text), seq_len)]
    assert sorted(documents_of(rows)) == sorted(expected)
    supervised = int((rows["labels"] != IGNORE).sum())
    assert supervised == sum(len(text.encode()) for text in texts)
    assert info.supervised_tokens == supervised
    assert info.largest_token == 256
    padding = rows["segment_ids"] == 0
    assert (rows["labels"][padding] == IGNORE).all()
    assert (rows["input_ids"][padding] == 0).all()
    if not packing:
        assert rows["segment_ids"].max() == 1
        assert documents_of(rows) == expected


def test_no_document_predicts_the_next_ones_first_token(
    tmp_path: Path, make_spec: MakeSpec
) -> None:
    write_jsonl(tmp_path / "d.jsonl", ["abc", "xy"])
    prepare_data(make_spec("d.jsonl", packing=True, seq_len=8), None, tmp_path / "data")
    rows = rows_of(tmp_path / "data")
    assert rows["input_ids"].tolist() == [[97, 98, 99, 120, 121, 0, 0, 0]]
    assert rows["labels"].tolist() == [[98, 99, 256, 121, 256, -100, -100, -100]]
    assert rows["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 0, 0, 0]]
    assert rows["position_ids"].tolist()[0][:5] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet", "folder", "list"])
def test_the_same_documents_in_any_format_give_the_same_samples(
    tmp_path: Path, make_spec: MakeSpec, tokenizer: PreTrainedTokenizerFast, kind: str
) -> None:
    texts = ["One line.\nAnother line.\n", "Ein zweiter Text: äöü 🙂.", "third " * 30]
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / ".hidden.jsonl").write_text("not JSON")
    if kind in ("text", "list"):
        for number, text in enumerate(texts):
            (folder / f"{number}.txt").write_text(text)
    elif kind == "parquet":
        parquet.write_table(pa.table({"other": [1, 2, 3], "text": texts}), folder / "d.parquet")
    else:
        (folder / "part").mkdir()
        write_jsonl(folder / "a.jsonl", texts[:1])
        write_jsonl(folder / "part" / "b.ndjson", texts[1:])
    source = [f"files/{number}.txt" for number in range(3)] if kind == "list" else "files"
    info = prepare_data(make_spec(source), tokenizer, tmp_path / "data")
    found = documents_of(rows_of(tmp_path / "data"))
    expected = []
    for text in texts:
        ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        expected += pieces(list(itertools.pairwise(ids)), 16)
    assert found == expected
    assert info.documents == 3
    assert info.largest_token < len(tokenizer)


def test_pythons_own_topics_need_no_file(tmp_path: Path, make_spec: MakeSpec) -> None:
    from pydoc_data.topics import topics

    spec = make_spec("python://pydoc_data.topics", seq_len=128, shards=8, packing=True)
    info = prepare_data(spec, None, tmp_path / "data")
    assert info.documents == len(topics)
    assert info.supervised_tokens == sum(len(text.encode()) for text in topics.values())
    filled = (rows_of(tmp_path / "data")["segment_ids"] > 0).mean()
    assert filled > 0.99


def test_a_long_text_is_tokenised_in_pieces_and_loses_nothing(
    tmp_path: Path, make_spec: MakeSpec, tokenizer: PreTrainedTokenizerFast
) -> None:
    text = "".join(f"line {number} of a long text\n" for number in range(30_000))
    (tmp_path / "d.txt").write_text(text)
    info = prepare_data(make_spec("d.txt", seq_len=512), tokenizer, tmp_path / "data")
    rows = rows_of(tmp_path / "data")
    ids = rows["input_ids"][rows["segment_ids"] > 0]
    assert tokenizer.decode(ids) == text
    assert info.documents == 1
    assert (rows["labels"] == tokenizer.eos_token_id).sum() == 1


def test_empty_documents_are_counted_and_left_out(tmp_path: Path, make_spec: MakeSpec) -> None:
    write_jsonl(tmp_path / "d.jsonl", ["", "ab", ""])
    (tmp_path / "d.jsonl").write_text((tmp_path / "d.jsonl").read_text() + "\n  \n")
    info = prepare_data(make_spec("d.jsonl"), None, tmp_path / "data")
    assert (info.documents, info.unused_documents, info.count) == (3, 2, 1)


@pytest.mark.parametrize("packing", [True, False])
def test_max_samples_takes_the_first_rows(
    tmp_path: Path, make_spec: MakeSpec, packing: bool
) -> None:
    write_jsonl(tmp_path / "d.jsonl", [chr(97 + number) * 11 for number in range(20)])
    spec = make_spec("d.jsonl", packing=packing, max_samples=3, seq_len=12)
    assert prepare_data(spec, None, tmp_path / "data").count == 3
    assert rows_of(tmp_path / "data")["input_ids"][:, 0].tolist() == [97, 98, 99]


def test_the_digest_depends_on_the_samples_only(tmp_path: Path, make_spec: MakeSpec) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["some text", "more"])
    write_jsonl(tmp_path / "b.jsonl", ["some text", "more"], field="body")
    first = prepare_data(make_spec("a.jsonl"), None, tmp_path / "x")
    second = prepare_data(make_spec("b.jsonl", text_field="body"), None, tmp_path / "y")
    other = prepare_data(make_spec("a.jsonl", packing=True), None, tmp_path / "z")
    assert first.digest == second.digest != other.digest


def test_prepared_samples_are_used_again_until_something_changes(
    tmp_path: Path, make_spec: MakeSpec, tokenizer: PreTrainedTokenizerFast
) -> None:
    path, out = tmp_path / "d.jsonl", tmp_path / "data"
    write_jsonl(path, ["some text", "more"])
    lines: list[str] = []
    first = prepare_data(make_spec("d.jsonl"), tokenizer, out, lines.append)
    assert not first.cached
    again = prepare_data(make_spec("d.jsonl"), tokenizer, out, lines.append)
    assert again.cached
    assert (again.digest, again.count) == (first.digest, first.count)
    assert lines[0].startswith("tokenised 2 documents")
    assert "prepared already" in lines[1]
    assert not prepare_data(make_spec("d.jsonl"), None, out).cached
    assert not prepare_data(make_spec("d.jsonl", seq_len=8), None, out).cached
    write_jsonl(path, ["some text", "more", "new"])
    assert not prepare_data(make_spec("d.jsonl", seq_len=8), None, out).cached
    (out / "labels.i32").write_bytes(b"damaged")
    assert not prepare_data(make_spec("d.jsonl", seq_len=8), None, out).cached
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"text": \n', r"d\.jsonl:2: not JSON: Expecting value at column"),
        ('{"text": "a"}\n\n{"txet": "b"}\n', r"d\.jsonl:3: no field 'text'; present: txet"),
        ('["a"]\n', r"d\.jsonl:1: the line is a list; expected an object with a field 'text'"),
        ('{"text": 5}\n', r"d\.jsonl:1: field 'text' is a number; expected text"),
        ('{"text": null}\n', r"d\.jsonl:1: field 'text' is null; expected text"),
        ('{"text": "\\ud800"}\n', r"d\.jsonl:1: field 'text' holds '\\ud800'"),
        ('{"text": "a"}\n{"text": "\udc80"}\n', r"d\.jsonl:2: not UTF-8 \(byte 0x80\)"),
        ("[" * 100_000, r"d\.jsonl:1: "),
        ("", r"nothing to learn from in 0 documents"),
        ('{"text": ""}\n', r"nothing to learn from in 1 documents"),
    ],
)
def test_bad_data_is_named_by_file_line_and_field(
    tmp_path: Path,
    make_spec: MakeSpec,
    content: str,
    message: str,
) -> None:
    (tmp_path / "d.jsonl").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=message) as caught:
        prepare_data(make_spec("d.jsonl"), None, tmp_path / "data")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "data").exists()
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []


def test_a_failed_preparation_leaves_the_older_one(tmp_path: Path, make_spec: MakeSpec) -> None:
    write_jsonl(tmp_path / "d.jsonl", ["some text"])
    first = prepare_data(make_spec("d.jsonl"), None, tmp_path / "data")
    (tmp_path / "d.jsonl").write_text("{")
    with pytest.raises(DataError):
        prepare_data(make_spec("d.jsonl"), None, tmp_path / "data")
    assert SampleFile.open(tmp_path / "data").digest == first.digest


def test_fewer_samples_than_a_step_needs_are_refused(tmp_path: Path, make_spec: MakeSpec) -> None:
    write_jsonl(tmp_path / "d.jsonl", ["some text", "more"])
    message = r"2 samples of 16 tokens, fewer than the 4 of one step"
    with pytest.raises(DataError, match=message) as caught:
        prepare_data(make_spec("d.jsonl", shards=4), None, tmp_path / "data")
    assert "a smaller seq_len or batch" in caught.value.diagnostics()


def test_a_folder_of_other_files_is_not_replaced(tmp_path: Path, make_spec: MakeSpec) -> None:
    write_jsonl(tmp_path / "d.jsonl", ["some text"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="holds other files"):
        prepare_data(make_spec("d.jsonl"), None, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_file_that_may_not_grow_leaves_no_samples(tmp_path: Path, make_spec: MakeSpec) -> None:
    """A full disk: the limit on a file's size stands in for it, as it raises in the same calls."""
    write_jsonl(tmp_path / "d.jsonl", ["some text " * 400])
    make_spec("d.jsonl")
    code = """
        import resource, signal, sys
        from pathlib import Path
        from runtime.run.data import prepare_data
        from runtime.spec import DataError
        from runtime.spec.job import JobSpec
        folder = Path(sys.argv[1])
        spec = JobSpec.from_yaml(folder / "job.yaml")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            prepare_data(spec, None, folder / "data")
        except DataError as error:
            print(error.exit_code, error.diagnostics())
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert answer.startswith("1 ")
    assert "the samples were not written (File too large)" in answer
    assert "remedy: free space" in answer
    assert sorted(item.name for item in tmp_path.iterdir()) == ["d.jsonl", "job.yaml"]
