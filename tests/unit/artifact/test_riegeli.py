"""Riegeli files are read and written as the format's own documents give them, byte for byte."""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.artifact._highwayhash import highwayhash64
from runtime.artifact._snappy import NotSnappyError, compress, decompress
from runtime.artifact.protobuf import write_varint
from runtime.artifact.riegeli import SIGNATURE, NotRiegeliError, read_records, write_records

# The first 64 bytes of any file (riegeli_records_file_format.md, "File signature").
EMPTY_FILE = bytes.fromhex(
    "83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9"
    "0000000000000000e19f13c0e9b1c3727300000000000000" + "00" * 8
)

# HighwayHash's own test vectors: the key 00 01 .. 1f over the bytes 00 01 .. of these lengths.
HASHES = {
    0: 0x907A56DE22C26E53, 1: 0x7EAB43AAC7CDDD78, 2: 0xB8D0569AB0B53D62, 3: 0x5C6BEFAB8A463D80,
    4: 0xF205A46893007EDA, 5: 0x2B8A1668E4A94541, 15: 0x40793F86A449F33B, 16: 0xCFAB3489F97EB832,
    17: 0x19FE67D2C8C5C0E2, 31: 0x9FC7007CCF035A68, 32: 0xA0C964D9ECD580FC, 33: 0x2C90F73CA03181FC,
    34: 0x185CF84E5691EB9E, 63: 0xAB8EEBE9BF2139A0, 64: 0x75542C5D4CD2A6FF,
}  # fmt: skip
RECORD_SIZES = (0, 1, 7, 65000, 65408, 65409, 65410, 65432, 65433, 65434, 200_000)


def word(value: int) -> bytes:
    return value.to_bytes(8, "little")


def key() -> tuple[int, ...]:
    text = b"Riegeli/records\n" * 2
    return tuple(int.from_bytes(text[i : i + 8], "little") for i in range(0, 32, 8))


def chunk(kind: bytes, content: bytes, records: int, decoded: int) -> bytes:
    """Make a chunk that no block header divides."""
    rest = word(len(content)) + word(highwayhash64(key(), content)) + kind
    rest += records.to_bytes(7, "little") + word(decoded)
    return word(highwayhash64(key(), rest)) + rest + content


def snappy(*elements: bytes, size: int) -> bytes:
    return write_varint(size) + b"".join(elements)


def literal(data: bytes) -> bytes:
    assert 0 < len(data) <= 60
    return bytes([len(data) - 1 << 2]) + data


def copy(distance: int, size: int) -> bytes:
    return bytes([size - 1 << 2 | 2]) + distance.to_bytes(2, "little")


def snappy_chunk(records: list[bytes]) -> bytes:
    """Make a chunk as XLA writes it: sizes and values in snappy, each behind its plain size."""
    sizes = b"".join(write_varint(len(record)) for record in records)
    values = b"".join(records)
    parts = [
        write_varint(len(data)) + snappy(literal(data), size=len(data)) for data in (sizes, values)
    ]
    content = b"s" + write_varint(len(parts[0])) + b"".join(parts)
    return chunk(b"r", content, len(records), len(values))


@pytest.mark.parametrize("size", HASHES)
def test_hashes_are_those_of_the_reference(size):
    words = tuple(int.from_bytes(bytes(range(i, i + 8)), "little") for i in range(0, 32, 8))
    assert highwayhash64(words, bytes(range(size))) == HASHES[size]


def test_an_empty_file_is_its_signature():
    assert write_records([]) == EMPTY_FILE
    assert EMPTY_FILE.startswith(SIGNATURE)
    assert read_records(EMPTY_FILE) == []


def test_a_record_lies_where_the_format_says():
    written = write_records([b"Hello"])
    assert written[0x68:] == bytes.fromhex("00 01 05") + b"Hello"  # format_examples.md, example 2
    assert written[0x40:] == chunk(b"r", written[0x68:], 1, 5)


def test_compressed_chunks_are_read():
    three = [b"a", b"bc", b"def"]
    data = EMPTY_FILE + snappy_chunk(three) + chunk(b"p", b"\0" * 9, 0, 0) + snappy_chunk([b"z"])
    assert read_records(data) == [*three, b"z"]


def test_a_chunk_of_empty_records_is_padded_to_one_byte_each():
    content = b"\0" + write_varint(100) + b"\0" * 100
    data = EMPTY_FILE + chunk(b"r", content, 100, 0)
    assert read_records(data) == [b""] * 100


def test_no_chunk_begins_right_behind_a_block_header():
    # 65,496 empty records: one byte each would end the chunk 24 bytes into the next block.
    count = 65536 + 24 - 64
    sizes = compress(b"\0" * count)
    packed = write_varint(count) + sizes
    nothing = write_varint(0) + compress(b"")
    many = chunk(b"r", b"s" + write_varint(len(packed)) + packed + nothing, count, 0)
    begin, block, end = 64, 65536, 65536 + 25
    distances = word(block - begin) + word(end - block)
    header = word(highwayhash64(key(), distances)) + distances
    data = EMPTY_FILE + many.ljust(block - begin, b"\0") + header + b"\0"
    assert len(data) == end
    assert read_records(data + chunk(b"r", b"\0\x01\x05Hello", 1, 5)) == [b""] * count + [b"Hello"]


@pytest.mark.parametrize("size", RECORD_SIZES)
def test_large_records_are_divided_by_block_headers(size):
    record = random.Random(size).randbytes(size)
    written = write_records([record, b"next"])
    assert read_records(written) == [record, b"next"]
    # A second reading: what stands between the block headers, one chunk after the other.
    plain = b"".join(written[i + 24 : i + 65536] for i in range(0, len(written), 65536))
    at, found = 40, []
    while at < len(plain):
        if not any(plain[at : at + 40]):  # the padding that keeps a chunk off a block header
            at += 1
            continue
        data_size = int.from_bytes(plain[at + 8 : at + 16], "little")
        content = plain[at + 40 : at + 40 + data_size]
        found.append(content[2 + content[1] :])
        at += 40 + data_size
    assert found == [record, b"next"]
    for block in range(65536, len(written), 65536):
        header = written[block : block + 24]
        assert header[:8] == word(highwayhash64(key(), header[8:]))
        begin = block - int.from_bytes(header[8:16], "little")
        assert begin in (64, len(write_records([record])))


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=300), max_size=6))
def test_what_is_written_is_read(records):
    assert read_records(write_records(records)) == records
    assert read_records(write_records(records, compressed=True)) == records


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_altered_byte_is_noticed(data):
    written = write_records([b"first" * 20, b"", random.Random(1).randbytes(66_000)])
    at = data.draw(st.integers(0, len(written) - 1))
    bit = data.draw(st.integers(0, 7))
    altered = bytearray(written)
    altered[at] ^= 1 << bit
    with pytest.raises(NotRiegeliError):
        read_records(bytes(altered))


@settings(max_examples=80)
@given(st.integers(0, 300))
def test_a_cut_file_is_refused_or_ends_between_chunks(size):
    written = write_records([b"first" * 20, b"second"])
    with contextlib.suppress(NotRiegeliError):
        assert read_records(written[:size]) in ([], [b"first" * 20], [b"first" * 20, b"second"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\0" * 100, "altered"),
        (EMPTY_FILE[:50], "ends within"),
        (EMPTY_FILE + chunk(b"t", b"", 0, 0), "kind b't'"),
        (EMPTY_FILE + chunk(b"r", b"b\x01\x00", 1, 0), "brotli"),
        (EMPTY_FILE + chunk(b"r", b"z\x01\x00", 1, 0), "zstd"),
        (EMPTY_FILE + chunk(b"r", b"\0\x01\x05Hell", 1, 5), "do not add up"),
        (EMPTY_FILE + chunk(b"r", b"\0\x02\x02\x03Hello", 1, 5), "do not add up"),
        (EMPTY_FILE + chunk(b"r", b"\0\x01\x05Hello", 1, 4), "more than it says"),
        (EMPTY_FILE + chunk(b"s", b"x", 0, 0), "must not"),
        (EMPTY_FILE + chunk(b"r", b"s\x01\x05Hello", 1, 5), "snappy"),
    ],
)
def test_other_files_are_refused_with_the_reason(data, message):
    with pytest.raises(NotRiegeliError, match=message):
        read_records(data)


def test_more_than_the_limit_is_refused_with_its_size():
    data = write_records([bytes(900), bytes(200)])
    assert len(read_records(data, limit=1100)) == 2
    with pytest.raises(NotRiegeliError, match=r"holds 200 bytes.*limit of 1000"):
        read_records(data, limit=1000)


def test_a_bomb_is_refused_before_it_is_inflated():
    huge = 1 << 40
    for size, message in ((huge, "above the limit"), (1 << 29, "cannot be")):
        content = b"s\x04" + b"\x01\x01\x00\x05" + write_varint(size)
        content += snappy(literal(b"\0"), *[copy(1, 64)] * 1000, size=size)
        bomb = EMPTY_FILE + chunk(b"r", content, 1, min(size, 1 << 29))
        tracemalloc.start()
        try:
            with pytest.raises(NotRiegeliError, match=message):
                read_records(bomb)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


@given(st.data())
def test_snappy_streams_give_what_their_elements_say(data):
    elements, plain = [], b""
    for _ in range(data.draw(st.integers(1, 12))):
        if plain and data.draw(st.booleans()):
            distance = data.draw(st.integers(1, len(plain)))
            size = data.draw(st.integers(4 if distance < 2048 else 1, 64))
            for _ in range(size):
                plain += plain[-distance : len(plain) - distance + 1]
            near = size <= 11 and distance < 2048 and data.draw(st.booleans())
            elements.append(
                bytes([distance >> 8 << 5 | size - 4 << 2 | 1, distance & 255])
                if near
                else copy(distance, size)
            )
        else:
            run = data.draw(st.binary(min_size=1, max_size=200))
            plain += run
            elements.append(
                literal(run) if len(run) <= 60 else bytes([60 << 2, len(run) - 1]) + run
            )
    stream = snappy(*elements, size=len(plain))
    assert decompress(stream, limit=1 << 20) == plain
    with pytest.raises(NotSnappyError):
        decompress(stream[:-1], limit=1 << 20)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 3000)), max_size=5))
def test_what_is_compressed_is_given_back(parts):
    data = b"".join(piece * times for piece, times in parts)
    stream = compress(data)
    assert decompress(stream, limit=len(data)) == data
    assert len(stream) <= len(data) + len(data) // 100 + 20


def test_what_repeats_becomes_small_and_what_does_not_no_larger():
    noise = random.Random(9).randbytes(200_000)
    for data, most in ((noise, 200_040), (noise[:5000] * 40, 30_000), (bytes(1 << 20), 60_000)):
        stream = compress(data)
        assert decompress(stream, limit=1 << 20) == data
        assert len(stream) <= most


@given(st.binary(max_size=200))
def test_other_bytes_are_no_snappy_stream_or_a_small_one(data):
    with contextlib.suppress(NotSnappyError):
        assert len(decompress(data, limit=1 << 16)) <= 22 * len(data)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (b"", "no size"),
        (b"\x05\x10Hell", "within a literal"),
        (b"\x05\xf0", "within a"),
        (b"\x05\x00a\x12\x01", "within a copy"),
        (b"\x05\x00a\x0e\x02\x00", "reaches 2 bytes"),
        (b"\x05\x00a\x0e\x00\x00", "reaches 0 bytes"),
        (b"\x01\x04ab", "more than the 1"),
        (b"\x03\x04ab", "holds 2 bytes, not the 3"),
        (b"\x64\x04ab", "cannot be"),
    ],
)
def test_broken_snappy_streams_are_refused_with_the_reason(stream, message):
    with pytest.raises(NotSnappyError, match=message):
        decompress(stream, limit=1 << 20)
