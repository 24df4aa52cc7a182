"""Attestation: a whole verification against the P-384 verifications that no verifier can leave out.

The document has AWS's shape: four issuers, a leaf, 16 PCRs, a 2048-bit public key, made by the
tests' own PKI. The baseline verifies the same five signatures (three issuers, leaf, document; the
root is pinned) with keys and hashes that are already loaded: no CBOR, no X.509.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import cbor2
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from benchmarks.context import Context
from benchmarks.result import Goal, Result
from runtime.artifact.attestation import PcrPolicy, TrustRoots, verify_attestation
from tests.attestation_support import Pki, make_document, payload_fields
from tests.attestation_support.documents import MEASURED, PROTECTED
from tests.attestation_support.pki import EPOCH

_NONCE = bytes(range(32))
_ES384 = ec.ECDSA(hashes.SHA384())


@dataclass(frozen=True, slots=True)
class _Signed:
    """One signature of the document, ready to be verified."""

    key: ec.EllipticCurvePublicKey
    signature: bytes
    data: bytes


def measure(context: Context) -> list[Result]:
    """Time both sides in turns, so that what else the machine does meets both."""
    pki = Pki.create(EPOCH)
    document = _document(pki)
    policy = PcrPolicy.of("nitro-enclave", {0: [MEASURED[0].hex()], 8: [MEASURED[8].hex()]})
    roots = TrustRoots.of_certificates([pki.cabundle[0]])
    signed = _signatures(pki, document)

    def verify() -> None:
        verify_attestation(document, policy=policy, nonce=_NONCE, roots=roots, at=EPOCH)

    def bare() -> None:
        for one in signed:
            one.key.verify(one.signature, one.data, _ES384)

    each = context.pick(40, 5)
    luma: list[float] = []
    baseline: list[float] = []
    for _ in range(context.pick(21, 3)):
        luma.append(_milliseconds(verify, each))
        baseline.append(_milliseconds(bare, each))
    return [
        Result(
            name="attestation/verify",
            unit="ms",
            luma=luma,
            baselines={"bare_p384": baseline},
            goal=Goal(limit=1.5),
            notes={
                "document_bytes": len(document),
                "signatures": len(signed),
                "verifications_a_run": each,
            },
        )
    ]


def _document(pki: Pki) -> bytes:
    fields = payload_fields(pki, public_key=bytes(294), user_data=bytes(48), nonce=_NONCE)
    return make_document(pki, fields)


def _signatures(pki: Pki, document: bytes) -> list[_Signed]:
    """Take the five signatures out of a document."""
    chain = [x509.load_der_x509_certificate(der) for der in (*pki.cabundle, pki.leaf)]
    keys = [key.public_key() for key in (*pki.keys, pki.leaf_key)]
    signed = [
        _Signed(keys[i], below.signature, below.tbs_certificate_bytes)
        for i, below in enumerate(chain[1:])
    ]
    protected, _, payload, raw = cbor2.loads(document)
    if protected != PROTECTED:
        raise ValueError("the document is not signed with ES384")
    der = encode_dss_signature(int.from_bytes(raw[:48], "big"), int.from_bytes(raw[48:], "big"))
    structure = cbor2.dumps(["Signature1", protected, b"", payload])
    return [*signed, _Signed(keys[-1], der, structure)]


def _milliseconds(call: Callable[[], None], times: int) -> float:
    """Give the mean of `times` calls."""
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times * 1e3
