"""The artifact's own envelope, which shares the signature with documents: each refusal, exactly."""

from __future__ import annotations

import cbor2
import pytest

from runtime.artifact._cose import check1, fits, sign1, split1
from runtime.spec import ArtifactError
from tests.attestation_support.documents import PROTECTED, sign
from tests.attestation_support.pki import new_key

PAYLOAD = b"payload"
ARRAY = "signature envelope: expected COSE_Sign1, an array of four"
HEADERS = "signature envelope: headers are not allowed; expected exactly {alg: ES384}"


def envelope(protected=PROTECTED, unprotected=None, payload=PAYLOAD, signature=bytes(96)):
    return cbor2.dumps([protected, unprotected or {}, payload, signature], canonical=True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (cbor2.dumps([PROTECTED, {}, PAYLOAD]), ARRAY),
        (cbor2.dumps([PROTECTED, {}, PAYLOAD, bytes(96), 0]), ARRAY),
        (cbor2.dumps("text"), ARRAY),
        (envelope(payload="text"), ARRAY),
        (envelope(protected="text"), ARRAY),
        (cbor2.dumps([PROTECTED, [], PAYLOAD, bytes(96)]), ARRAY),
        (envelope(signature=None), ARRAY),
        (envelope(protected=b"\xa1\x01\x26"), HEADERS),
        (envelope(unprotected={"kid": b""}), HEADERS),
        (envelope(protected=b"", unprotected={"kid": b""}), HEADERS),
        (envelope(signature=bytes(95)), "signature: 95 bytes; expected 96"),
        (envelope(signature=bytes(97)), "signature: 97 bytes; expected 96"),
    ],
)
def test_another_form_is_refused(data, message):
    with pytest.raises(ArtifactError) as refused:
        split1(data, max_bytes=1000)
    assert refused.value.message == message


def test_the_size_is_limited_and_named():
    with pytest.raises(ArtifactError) as refused:
        split1(envelope(), max_bytes=100)
    assert refused.value.message == (
        f"signature envelope: {len(envelope())} bytes are more than the 100 allowed"
    )


def test_a_signature_goes_both_ways_with_an_independent_one():
    key = new_key()
    payload, signature = split1(sign1(PAYLOAD, key), max_bytes=1000)
    assert payload == PAYLOAD
    check1(payload, signature, key.public_key())
    assert fits(PAYLOAD, sign(PAYLOAD, key), key.public_key())


@pytest.mark.parametrize("payload", [b"", b"payloae"])
def test_another_payload_or_key_is_refused(payload):
    key, other = new_key(), new_key()
    signature = sign(PAYLOAD, key)
    assert not fits(PAYLOAD, signature, other.public_key())
    with pytest.raises(ArtifactError) as refused:
        check1(payload, signature, key.public_key())
    assert refused.value.message == (
        "signature: does not fit the manifest and its signer; the file was changed"
    )
