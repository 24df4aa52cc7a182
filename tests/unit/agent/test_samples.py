"""The sample file: rows as they were written, or a clear refusal."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.agent.samples import INDEX, KEYS, SampleFile, file_name, position_ids, samples_digest
from runtime.spec import DataError


def write_samples(folder: Path, *, count: int = 5, seq_len: int = 8) -> dict[str, np.ndarray]:
    """Write a sample file by hand, from its format's description."""
    generator = np.random.default_rng(count * seq_len)
    columns = {
        "input_ids": generator.integers(0, 300, (count, seq_len), dtype=np.int32),
        "labels": generator.integers(-1, 300, (count, seq_len), dtype=np.int32),
        "segment_ids": np.sort(generator.integers(1, 4, (count, seq_len), dtype=np.int32), axis=1),
    }
    hashes = {}
    for key, array in columns.items():
        data = array.astype("<i4").tobytes()
        (folder / f"{key}.i32").write_bytes(data)
        hashes[key] = blake3(data).hexdigest()
    index = {
        "format": 1,
        "count": count,
        "seq_len": seq_len,
        "digest": samples_digest(count, seq_len, hashes),
        "files": hashes,
        "supervised_tokens": count * seq_len,
    }
    (folder / INDEX).write_text(json.dumps(index))
    return columns


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    columns = write_samples(tmp_path)
    samples = SampleFile.open(tmp_path)
    rows = np.array([4, 0, 4, 2])
    batch = samples.batch(rows)
    assert (samples.count, samples.seq_len, samples.supervised_tokens) == (5, 8, 40)
    assert set(batch) == {*KEYS, "position_ids"}
    for key in KEYS:
        assert batch[key].dtype == np.int32
        assert batch[key].flags.c_contiguous
        assert batch[key].flags.writeable
        assert np.array_equal(batch[key], columns[key][rows])
    assert np.array_equal(batch["position_ids"], position_ids(columns["segment_ids"][rows]))


@given(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=5), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_positions_restart_with_each_segment(rows: list[list[int]]) -> None:
    width = max(sum(row) for row in rows)
    segments, expected = np.zeros((2, len(rows), width), np.int32)
    for number, row in enumerate(rows):
        parts = [*row, width - sum(row)]
        ids = [*range(1, len(row) + 1), 0]
        segments[number] = np.repeat(ids, parts)
        expected[number] = np.concatenate([np.arange(part) for part in parts])
    assert np.array_equal(position_ids(segments), expected)


@pytest.mark.parametrize("rows", [[5], [-1], [0, 99]])
def test_a_row_outside_the_file_is_refused(tmp_path: Path, rows: list[int]) -> None:
    write_samples(tmp_path)
    with pytest.raises(IndexError, match=r"outside \[0, 5\)"):
        SampleFile.open(tmp_path).batch(np.array(rows))


@pytest.mark.parametrize("key", KEYS)
def test_one_flipped_bit_is_refused(tmp_path: Path, key: str) -> None:
    write_samples(tmp_path)
    path = tmp_path / file_name(key)
    data = bytearray(path.read_bytes())
    data[17] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"{key}\.i32 was changed") as caught:
        SampleFile.open(tmp_path)
    assert caught.value.exit_code == 2
    assert caught.value.remedy


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    write_samples(tmp_path)
    path = tmp_path / "labels.i32"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"labels\.i32: 156 bytes; expected 160"):
        SampleFile.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2 is not known"),
        ({"count": 0}, "count is 0"),
        ({"seq_len": True}, "seq_len is True"),
        ({"count": 4}, "bytes; expected 128"),
        ({"count": 8, "seq_len": 5}, "differ from their digest"),
        ({"digest": "00"}, r"samples\.json was changed"),
    ],
)
def test_a_changed_index_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    write_samples(tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    (tmp_path / INDEX).write_text(json.dumps(index | change))
    with pytest.raises(DataError, match=message):
        SampleFile.open(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_broken_index_is_refused(tmp_path: Path, text: str) -> None:
    write_samples(tmp_path)
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(DataError, match=r"samples\.json"):
        SampleFile.open(tmp_path)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        SampleFile.open(tmp_path / "none")
