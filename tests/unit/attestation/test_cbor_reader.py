"""The bounded CBOR reader on its own: its limits are its caller's, and its errors name the thing."""

from __future__ import annotations

import pytest

from runtime.artifact.attestation.cbor import MAX_DEPTH, read
from runtime.spec import AttestationError


def test_the_size_is_judged_first_and_names_the_thing():
    assert read(b"\x49" + bytes(9), what="answer", max_bytes=10) == bytes(9)
    with pytest.raises(AttestationError) as refused:
        read(b"\xff" * 11, what="answer", max_bytes=10)
    assert refused.value.rule == "document.size"
    assert refused.value.message == "answer: 11 bytes are not allowed; expected at most 10"


@pytest.mark.parametrize("depth", [0, 1, MAX_DEPTH, 9])
def test_the_depth_is_the_callers(depth):
    read(b"\x81" * depth + b"\x00", what="answer", max_bytes=100, max_depth=depth)
    with pytest.raises(AttestationError) as refused:
        read(b"\x81" * (depth + 1) + b"\x00", what="answer", max_bytes=100, max_depth=depth)
    assert refused.value.message == f"answer: CBOR nested deeper than {depth} at byte {depth + 1}"


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x17", 23),
        (b"\x18\x18", 24),
        (b"\x19\x01\x00", 256),
        (b"\x1a\x00\x01\x00\x00", 65536),
        (b"\x1b\x00\x00\x00\x01\x00\x00\x00\x00", 1 << 32),
        (b"\x1b" + b"\xff" * 8, (1 << 64) - 1),
        (b"\x20", -1),
        (b"\x3b" + b"\xff" * 8, -(1 << 64)),
        (b"\xf4", False),
        (b"\xf5", True),
        (b"\xf6", None),
        (b"\x60", ""),
        (b"\x62\xc3\xbc", "ü"),
        (b"\x80", []),
        (b"\x82\x01\x40", [1, b""]),
        (b"\xa0", {}),
        (b"\xa2\x01\x02\x61a\x20", {1: 2, "a": -1}),
        (b"\xbf\xff", {}),
        (b"\xbf\x01\xbf\xff\xff", {1: {}}),
        (b"\xbf\x61a\x80\x61b\xa0\xff", {"a": [], "b": {}}),
    ],
)
def test_values_are_read(data, value):
    """Written by hand from RFC 8949, appendix A and section 3."""
    found = read(data, what="answer", max_bytes=100)
    assert found == value
    assert type(found) is type(value)


def test_open_maps_can_be_refused():
    with pytest.raises(AttestationError) as refused:
        read(b"\x81\xbf\xff", what="answer", max_bytes=100, open_maps=False)
    assert refused.value.rule == "cbor.item"
