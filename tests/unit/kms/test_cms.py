"""KMS's answers are read in the one form that KMS writes; all else is refused, and cheaply."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.artifact.kms._ber import MAX_DEPTH, MAX_NODES, read
from runtime.artifact.kms.cms import MAX_CMS_BYTES, open_enveloped
from runtime.spec import ArtifactError
from tests.support.cms_sealer import (
    AES256_CBC,
    DATA,
    ENVELOPED_DATA,
    MGF1,
    RSAES_OAEP,
    SHA256,
    seal_enveloped,
    tlv,
)

KEY = bytes(range(32))
SHA1, AES128_CBC = "2b0e03021a", "608648016503040102"


def ber(data: bytes):
    return read(data, what="cms", max_bytes=MAX_CMS_BYTES)


@pytest.mark.parametrize("indefinite", [True, False])
@pytest.mark.parametrize("size", [0, 1, 15, 16, 32, 1000])
def test_content_comes_back(recipient, indefinite, size):
    content = random.Random(size).randbytes(size)
    sealed = seal_enveloped(content, recipient.public_key(), indefinite=indefinite)
    opened = open_enveloped(sealed, recipient)
    assert opened == content
    assert isinstance(opened, bytearray)


def test_bytes_by_hand():
    # SEQUENCE, indefinite { [0], indefinite { OCTET STRING in parts {"ab", "c"} }, INTEGER 2 }.
    node = ber(bytes.fromhex("3080 a080 2480 0402 6162 0401 63 0000 0000 020102 0000"))
    tagged, version = node.children
    assert tagged.children[0].octets(0x04, "x") == b"abc"
    assert version.content == b"\x02"
    # The same values, of definite length, one length in the long form.
    same = ber(bytes.fromhex("300f a00a 2408 0402 6162 048101 63 0201 02"))
    assert same.children[0].children[0].octets(0x04, "x") == b"abc"
    # An implicit [0] in parts, and whole.
    assert ber(bytes.fromhex("a080 040161 040162 0000")).octets(0x80, "x") == b"ab"
    assert ber(bytes.fromhex("80026162")).octets(0x80, "x") == b"ab"


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ("", "cut short"),
        ("30", "cut short"),
        ("3082", "cut short"),
        ("3005 0201", "a length of 5 where 2 bytes are left"),
        ("3003 020201", "a length of 2 where 1 bytes are left"),
        ("3080 020102", "cut short"),
        ("3080 020102 00", "tag 0x00"),
        ("3080 0000 00", "1 bytes follow"),
        ("3000 0000", "2 bytes follow"),
        ("0480 0401 61 0000", "a primitive value of indefinite length"),
        ("3085 0000000001 00", "a length of 5 bytes"),
        ("30ff 00", "a length of 127 bytes"),
        ("3084 ffffffff 00", "a length of 4294967295"),
        ("3002 0000", "tag 0x00"),
        ("3f 81 01 00", "tag 0x3f"),
        ("1f 01 00", "tag 0x1f"),
        # The mark of the inner value lies behind the end of the outer one.
        ("3004 3080 0201 02 0000", "a length of 1 where 0 bytes are left"),
    ],
)
def test_malformed_ber_is_refused(data, match):
    with pytest.raises(ArtifactError, match=match):
        ber(bytes.fromhex(data))


def test_depth_nodes_and_size_are_limited():
    nested = b"\x30\x80" * MAX_DEPTH + b"\0\0" * MAX_DEPTH
    assert ber(nested).children
    with pytest.raises(ArtifactError, match=f"nested deeper than {MAX_DEPTH}"):
        ber(b"\x30\x80" * (MAX_DEPTH + 1) + b"\0\0" * (MAX_DEPTH + 1))
    with pytest.raises(ArtifactError, match=f"nested deeper than {MAX_DEPTH}"):
        ber(b"\x30\x80" * (MAX_CMS_BYTES // 2))
    assert len(ber(tlv(0x30, b"\x05\0" * (MAX_NODES - 1))).children) == MAX_NODES - 1
    with pytest.raises(ArtifactError, match=f"more than {MAX_NODES} values"):
        ber(tlv(0x30, b"\x05\0" * MAX_NODES))
    with pytest.raises(ArtifactError, match="16385 bytes are more than the 16384 allowed"):
        ber(bytes(MAX_CMS_BYTES + 1))


def test_hostile_bytes_take_little_memory(recipient):
    hostile = [
        b"\x30\x80" * (MAX_CMS_BYTES // 2),
        tlv(0x30, b"\x05\0" * 8000),
        b"\x30\x84\x7f\xff\xff\xff" + bytes(1000),
        b"\x24\x80" * 8000,
    ]
    tracemalloc.start()
    try:
        for data in hostile:
            with pytest.raises(ArtifactError):
                open_enveloped(data, recipient)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize("indefinite", [True, False])
@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({ENVELOPED_DATA: DATA}, "cms.contentType: object identifier"),
        ({DATA: ENVELOPED_DATA}, "encryptedContentInfo.contentType: object"),
        ({RSAES_OAEP: "2a864886f70d010101"}, "keyEncryptionAlgorithm: object"),
        ({MGF1: SHA256}, "keyEncryptionAlgorithm.mask: object"),
        ({SHA256: SHA1}, "keyEncryptionAlgorithm.hash: object"),
        ({AES256_CBC: AES128_CBC}, "encryptedContentInfo.algorithm: object"),
    ],
)
def test_other_algorithms_are_refused(recipient, changed, match, indefinite):
    sealed = seal_enveloped(KEY, recipient.public_key(), indefinite=indefinite, oids=changed)
    with pytest.raises(ArtifactError, match=match):
        open_enveloped(sealed, recipient)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        # Version of EnvelopedData, then of the recipient; its name as issuer and serial number.
        ("020102 3180", "020100 3180", "envelopedData.version: 00"),
        ("3080 020102 8020", "3080 020100 8020", "recipientInfo.version: 00"),
        ("020102 8020", "020102 0420", "subjectKeyIdentifier: tag 0x04"),
        # The mask's hash missing; parameters that are not null.
        ("a080 3080 0609 608648016503040201 0000 0000", "a080 3080 0000 0000", "hash"),
        (
            "0609 608648016503040201 0000 0000 a1",
            "0609 608648016503040201 0400 0000 0000 a1",
            "SHA",
        ),
        # An IV of 15 bytes; the 16th becomes a value of its own.
        ("0410", "040f", "cms"),
    ],
)
def test_other_structures_are_refused(recipient, old, new, match):
    sealed = seal_enveloped(KEY, recipient.public_key())
    old, new = bytes.fromhex(old), bytes.fromhex(new)
    assert old in sealed
    with pytest.raises(ArtifactError, match=match):
        open_enveloped(sealed.replace(old, new, 1), recipient)


def test_null_parameters_of_sha256_are_allowed(recipient):
    bare = bytes.fromhex("0609 608648016503040201 0000")
    sealed = seal_enveloped(KEY, recipient.public_key())
    assert sealed.count(bare) == 2
    null = bytes.fromhex("0609 608648016503040201 0500 0000")
    assert open_enveloped(sealed.replace(bare, null), recipient) == KEY


def _without_last_byte(sealed: bytes) -> bytes:
    """Give an answer whose ciphertext, the last octet string of 32 bytes, lacks a byte."""
    at = sealed.rindex(b"\x04\x20")
    return sealed[:at] + b"\x04\x1f" + sealed[at + 3 :]


def test_no_message_tells_which_step_failed(recipient, stranger):
    public = recipient.public_key()
    failures = {
        "another key": seal_enveloped(KEY, stranger.public_key()),
        "a short content key": seal_enveloped(KEY, public, content_key=bytes(16)),
        "no padding": seal_enveloped(KEY, public, padded=bytes(48)),
        "padding of 17": seal_enveloped(KEY, public, padded=b"\x11" * 48),
        "no ciphertext": seal_enveloped(KEY, public, padded=b""),
        "no whole block": _without_last_byte(seal_enveloped(KEY, public)),
    }
    messages = set()
    for data in failures.values():
        with pytest.raises(ArtifactError) as caught:
            open_enveloped(data, recipient)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
        messages.add(caught.value.diagnostics())
    assert len(messages) == 1
    assert messages.pop().startswith("cms: does not open; ")


def refused_or_content(data: bytes, key) -> None:
    """Only two ends are allowed: our error, or some content (nothing is authenticated)."""
    message = "cms"
    try:
        open_enveloped(data, key)
    except ArtifactError as error:
        message = error.message
    assert message.startswith("cms")


@settings(max_examples=200)
@given(data=st.binary(max_size=600))
def test_random_bytes(recipient, data):
    with pytest.raises(ArtifactError):
        open_enveloped(data, recipient)


@settings(max_examples=100)
@given(data=st.data(), indefinite=st.booleans())
def test_edited_answers(recipient, data, indefinite):
    sealed = seal_enveloped(KEY, recipient.public_key(), indefinite=indefinite)
    start = data.draw(st.integers(0, len(sealed)))
    end = data.draw(st.integers(start, min(len(sealed), start + 40)))
    refused_or_content(sealed[:start] + data.draw(st.binary(max_size=40)) + sealed[end:], recipient)


@settings(max_examples=60)
@given(data=st.data())
def test_answers_cut_short_never_open(recipient, data):
    sealed = seal_enveloped(KEY, recipient.public_key())
    with pytest.raises(ArtifactError):
        open_enveloped(sealed[: data.draw(st.integers(0, len(sealed) - 1))], recipient)


@pytest.mark.slow
def test_a_hundred_thousand_mutants(recipient):
    draw = random.Random(5)
    seeds = [seal_enveloped(KEY, recipient.public_key(), indefinite=i) for i in (True, False)]
    for _ in range(100_000):
        mutant = bytearray(draw.choice(seeds))
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(mutant))
            match draw.randrange(3):
                case 0:
                    mutant[at] ^= 1 << draw.randrange(8)
                case 1:
                    del mutant[at : at + draw.randint(1, 8)]
                case _:
                    mutant[at:at] = draw.randbytes(draw.randint(1, 8))
            if not mutant:
                mutant.append(0)
        refused_or_content(bytes(mutant), recipient)
