"""COSE_Sign1 against an independent implementation, in both directions."""

from __future__ import annotations

import importlib
import sys
import types

import cbor2
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from runtime.artifact._cose import check1, sign1, split1
from runtime.artifact.canonical import encode
from runtime.spec import ArtifactError

PAYLOAD = encode({"schema": "luma/manifest/1", "n": 7})


@pytest.fixture(scope="module")
def key():
    return ec.generate_private_key(ec.SECP384R1())


@pytest.fixture(scope="module")
def cwt():
    """Give the independent implementation.

    cwt 1.4 is the newest that accepts cbor2 6. It imports certvalidator, for certificate chains,
    which are not used here, and whose oscrypto fails to import beside OpenSSL 3.0.10 and later
    (wbond/oscrypto#75): an empty module stands in for it while cwt is imported.
    """
    with pytest.MonkeyPatch.context() as patch:
        absent = types.ModuleType("certvalidator")
        absent.CertificateValidator = absent.ValidationContext = None
        patch.setitem(sys.modules, "certvalidator", absent)
        return importlib.import_module("cwt")


def cwt_key(cwt, key, *, private: bool):
    if private:
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    else:
        pem = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    return cwt.COSEKey.from_pem(pem)


def test_another_implementation_accepts_our_signature(cwt, key):
    # As an object, since cbor2 6 gives a tag's content as a tuple, which cwt 1.4 refuses.
    tagged = cbor2.CBORTag(18, cbor2.loads(sign1(PAYLOAD, key)))
    assert cwt.COSE().decode(tagged, cwt_key(cwt, key, private=False)) == PAYLOAD


def test_another_implementation_refuses_a_changed_payload(cwt, key):
    parts = cbor2.loads(sign1(PAYLOAD, key))
    parts[2] = parts[2][:-1] + b"\x08"
    with pytest.raises(cwt.VerifyError):
        cwt.COSE().decode(cbor2.CBORTag(18, parts), cwt_key(cwt, key, private=False))


def test_we_accept_the_signature_of_another_implementation(cwt, key):
    encoded = cwt.COSE().encode_and_sign(
        PAYLOAD, cwt_key(cwt, key, private=True), protected={1: -35}, unprotected={}
    )
    payload, signature = split1(cbor2.dumps(cbor2.loads(encoded).value), max_bytes=1 << 12)
    assert payload == PAYLOAD
    check1(payload, signature, key.public_key())


def test_another_key_is_refused(key):
    payload, signature = split1(sign1(PAYLOAD, key), max_bytes=1 << 12)
    other = ec.generate_private_key(ec.SECP384R1()).public_key()
    with pytest.raises(ArtifactError, match="signature: does not fit"):
        check1(payload, signature, other)


def test_tagged_envelope_is_refused(key):
    tagged = cbor2.dumps(cbor2.CBORTag(18, cbor2.loads(sign1(PAYLOAD, key))))
    with pytest.raises(ArtifactError, match=r"signature envelope: .* not allowed"):
        split1(tagged, max_bytes=1 << 12)


def test_size_limit(key):
    with pytest.raises(ArtifactError, match=r"signature envelope: .* more than the 20 allowed"):
        split1(sign1(PAYLOAD, key), max_bytes=20)
