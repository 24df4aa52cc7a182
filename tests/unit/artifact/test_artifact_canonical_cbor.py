"""Canonical CBOR: one byte form for each value, and nothing else is read."""

from __future__ import annotations

import math
import time

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.artifact.canonical import decode, encode
from runtime.spec import ArtifactError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=25,
)


def read(data: bytes, **limits):
    return decode(data, what="thing", max_bytes=1 << 20, **limits)


@given(VALUES)
def test_what_is_written_is_read(value):
    data = encode(value)
    assert read(data) == value
    assert encode(read(data)) == data


@given(VALUES)
def test_agrees_with_the_library(value):
    assert encode(value) == cbor2.dumps(value, canonical=True)


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_random_bytes_are_refused_or_round_trip(data):
    message = ""
    try:
        assert encode(read(data)) == data
    except ArtifactError as error:
        message = error.message
    assert not message or message.startswith("thing: ")


def verdict(data: bytes, long_from: int):
    """Read with byte strings taken out of the way from this size on; give the value or the error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runtime.artifact.canonical._LONG_BYTES", long_from)
        try:
            return encode(read(data))
        except ArtifactError as error:
            return error.message


@settings(max_examples=300)
@given(VALUES, st.sampled_from([0, 1, 24]), st.data())
def test_long_strings_change_no_verdict(value, long_from, data):
    encoded = bytearray(encode(value))
    assert verdict(bytes(encoded), long_from) == encoded
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    assert verdict(bytes(encoded), long_from) == verdict(bytes(encoded), 1 << 40)


@given(VALUES, st.data())
def test_one_changed_byte_never_reads_as_the_same_value(value, data):
    encoded = bytearray(encode(value))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        changed = read(bytes(encoded))
    except ArtifactError:
        return
    assert encode(changed) != encode(value)


@given(VALUES, st.data())
def test_truncated_is_refused(value, data):
    encoded = encode(value)
    with pytest.raises(ArtifactError, match="thing: CBOR ends"):
        # Cut inside containers, the count may be found wrong first.
        size = data.draw(st.integers(0, len(encoded) - 1))
        try:
            read(encoded[:size])
        except ArtifactError as error:
            if "beyond the end" in error.message:
                raise ArtifactError("thing: CBOR ends") from error
            raise


@pytest.mark.parametrize(
    ("hexed", "match"),
    [
        ("", "ends in the middle"),
        ("1800", "allowed form"),  # 0 in two bytes
        ("190001", "allowed form"),
        ("1b0000000000000001", "allowed form"),
        ("1b8000000000000000", "allowed form"),  # 2^63
        ("3bffffffffffffffff", "allowed form"),
        ("580161", "allowed form"),  # a byte string's length in two bytes
        ("fa3f800000", "canonical"),  # 1.0 in 32 bits
        ("fb3ff0000000000000", "canonical"),
        ("fb7ff8000000000000", "canonical"),  # NaN in 64 bits
        ("9f01ff", "not allowed"),  # indefinite lengths
        ("5f4101ff", "not allowed"),
        ("bf616101ff", "not allowed"),
        ("ff", "not allowed"),
        ("1c", "not allowed"),
        ("c074323031332d30332d32315432303a30343a30305a", "not allowed"),  # a date
        ("c249010000000000000000", "not allowed"),  # a big integer
        ("c5821b7fffffffffffffff01", "not allowed"),  # a big float that would fill memory
        ("d8236161", "not allowed"),  # a regular expression
        ("d81c80", "not allowed"),  # a shared reference
        ("d9010280", "not allowed"),  # a set
        ("f7", "not allowed"),  # undefined
        ("e0", "not allowed"),
        ("f8ff", "not allowed"),
        ("a10102", "not text"),  # an integer as key
        ("a1f601", "not text"),
        ("a2616101616102", "canonical"),  # a key twice
        ("a2616201616102", "canonical"),  # keys out of order
        ("0000", "1 bytes follow"),
        ("8101f6", "1 bytes follow"),
        ("62c328", "not CBOR"),  # not UTF-8
        ("9bffffffffffffffff", "beyond the end"),
        ("9b7fffffffffffffff", "beyond the end"),
        ("bb7fffffffffffffff", "beyond the end"),
        ("5b7fffffffffffffff", "ends in the middle"),
        ("7affffffff", "ends in the middle"),
    ],
)
def test_other_forms_are_refused(hexed, match):
    with pytest.raises(ArtifactError, match=match):
        read(bytes.fromhex(hexed))


def test_limits():
    with pytest.raises(ArtifactError, match="deeper than 16"):
        read(b"\x81" * 400 + b"\x01")
    with pytest.raises(ArtifactError, match="deeper than 16"):
        encode_deep = 1
        for _ in range(20):
            encode_deep = [encode_deep]
        encode(encode_deep)
    with pytest.raises(ArtifactError, match="more than 100 CBOR items"):
        read(encode(list(range(100))), max_items=100)
    with pytest.raises(ArtifactError, match="more than the 10 allowed"):
        decode(bytes(11), what="thing", max_bytes=10)


@pytest.mark.parametrize("value", [1 << 63, {1: 2}, {"a": object()}, {1, 2}, 1j, bytearray(b"x")])
def test_other_values_are_not_written(value):
    with pytest.raises(ArtifactError, match="cannot write"):
        encode(value)


def test_floats_keep_their_bits():
    for value in (0.0, -0.0, 1.5, 1e300, 5e-324, math.inf, -math.inf, 0.1):
        got = read(encode(value))
        assert got == value
        assert math.copysign(1, got) == math.copysign(1, value)
    assert math.isnan(read(encode(math.nan)))


def test_reading_takes_time_linear_in_the_size():
    data = encode([["a", {"b": i}] for i in range(30_000)])
    started = time.process_time()
    read(data, max_items=1 << 20)
    assert time.process_time() - started < 10  # a guard against quadratic walks, no benchmark
