"""A document belongs to the caller's own request: its nonce, and the user data that he expects."""

from __future__ import annotations

import hmac

import pytest

from runtime.artifact.attestation import verify_attestation
from runtime.spec import AttestationError
from tests.attestation_support import ABSENT, make_document, payload_fields
from tests.attestation_support.pki import EPOCH

NONCE = bytes(range(32))


@pytest.fixture
def verify(pki, roots, policy):
    """Verify a document of these fields with what the caller asks."""

    def verify(fields, at=EPOCH, **asked):
        document = make_document(pki, payload_fields(pki, **fields))
        return verify_attestation(
            document, policy=policy, roots=roots, at=at, **({"nonce": NONCE} | asked)
        )

    return verify


@pytest.mark.parametrize("nonce", [bytes(16), bytes(512)])
def test_the_callers_nonce_is_accepted(verify, nonce):
    assert verify({"nonce": nonce}, nonce=nonce).nonce == nonce


@pytest.mark.parametrize(
    ("nonce", "shown"),
    [
        (None, "None"),
        (ABSENT, "None"),
        (b"", "0 bytes"),
        (NONCE[:-1], "31 bytes"),
        (NONCE + b"\x00", "33 bytes"),
        (NONCE[:-1] + b"\x00", "32 bytes"),
    ],
)
@pytest.mark.parametrize("at", [EPOCH, "timestamp"])
def test_another_nonce_is_refused(verify, nonce, shown, at):
    with pytest.raises(AttestationError) as refused:
        verify({"nonce": nonce}, at)
    assert refused.value.rule == "fresh.nonce"
    assert refused.value.message == (
        f"payload.nonce: {shown} is not allowed; expected the 32 bytes that were asked for"
    )


def test_an_archived_document_needs_no_nonce(verify):
    assert verify({"nonce": b"some"}, "timestamp", nonce=None).nonce == b"some"


@pytest.mark.parametrize(
    ("asked", "shown"),
    [(None, "None"), (b"", "0 bytes"), (bytes(15), "15 bytes"), (bytes(513), "513 bytes")],
)
def test_a_live_document_needs_a_nonce_that_stops_a_replay(verify, asked, shown):
    with pytest.raises(AttestationError) as refused:
        verify({"nonce": asked}, nonce=asked) if asked != bytes(513) else verify({}, nonce=asked)
    assert refused.value.rule == "fresh.nonce"
    assert refused.value.message == (
        f"nonce: {shown} is not allowed; expected 16 to 512 random bytes that were sent for this "
        "document"
    )


def test_a_short_nonce_is_refused_for_an_archived_document_too(verify):
    with pytest.raises(AttestationError) as refused:
        verify({"nonce": b"short"}, "timestamp", nonce=b"short")
    assert refused.value.rule == "fresh.nonce"


def test_the_nonce_is_compared_in_constant_time(verify, monkeypatch):
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr(
        hmac, "compare_digest", lambda a, b: compared.append((a, b)) or compare(a, b)
    )
    verify({"nonce": NONCE, "user_data": b"d"}, user_data=b"d")
    assert compared == [(NONCE, NONCE), (b"d", b"d")]


@pytest.mark.parametrize("data", [b"", b"digest", bytes(512)])
def test_expected_user_data_is_accepted(verify, data):
    assert verify({"nonce": NONCE, "user_data": data}, user_data=data).user_data == data


@pytest.mark.parametrize(("data", "shown"), [(None, "None"), (b"", "0 bytes"), (b"x", "1 bytes")])
def test_other_user_data_is_refused(verify, data, shown):
    with pytest.raises(AttestationError) as refused:
        verify({"nonce": NONCE, "user_data": data}, user_data=b"digest")
    assert refused.value.rule == "bound.user_data"
    assert refused.value.message == (
        f"payload.user_data: {shown} is not allowed; expected the 6 bytes that were asked for"
    )
