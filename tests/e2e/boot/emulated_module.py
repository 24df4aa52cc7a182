"""Judge the documents of QEMU's security module, which nobody signed.

QEMU fills in a document as a real module does, PCRs included, but signs it with zeros and puts 64
zeros where the certificates stand; the verifier refuses that, as it must. So here the client's
verifier is handed the same document with certificates and a signature of a test's own PKI, and
trusts that PKI alone. All other rules are the product's: nonce, key, measurements, age.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from unittest import mock

import cbor2

from enclave_image.service import client, session
from runtime.artifact.attestation import Attestation, TrustRoots, verify_attestation
from tests.attestation_support import Pki, make_document
from tests.e2e.boot.tools import BootError


def document_fields(document: bytes) -> dict:
    """Give a document's payload, unjudged.

    Raises:
        BootError: it is no such document.
    """
    try:
        match cbor2.loads(document):
            case [bytes(), {}, bytes(payload), bytes()]:
                fields = cbor2.loads(payload)
                if isinstance(fields, Mapping) and isinstance(fields.get("pcrs"), Mapping):
                    return dict(fields)
    except cbor2.CBORDecodeError as error:
        raise BootError(f"the guest's attestation document: {error}") from error
    raise BootError("the guest's attestation document: not of the expected form")


def measured_pcrs(document: bytes) -> dict[str, str]:
    """Give the PCRs that an image decides, as the builder names and writes them."""
    pcrs = document_fields(document)["pcrs"]
    return {f"PCR{number}": pcrs[number].hex() for number in (0, 1, 2, 8) if number in pcrs}


def signed_again(document: bytes, pki: Pki) -> bytes:
    """Give a document with a PKI's certificates and signature in place of its own."""
    changed = {"certificate": pki.leaf, "cabundle": list(pki.cabundle)}
    return make_document(pki, document_fields(document) | changed)


@contextlib.contextmanager
def judging_signed_again(pki: Pki) -> Generator[TrustRoots]:
    """Let this process's client judge documents so while the block runs; give the roots to trust."""

    def verify(document: bytes, **rules) -> Attestation:
        return verify_attestation(signed_again(document, pki), **rules)

    with (
        mock.patch.object(session, "verify_attestation", verify),
        mock.patch.object(client, "verify_attestation", verify),
    ):
        yield TrustRoots.of_certificates([pki.cabundle[0]])
