"""Test doubles for attestation: a PKI, a maker of documents, and a software NSM.

They are independent of the verifier: they share no code with `runtime.artifact`. Nothing here is
trusted by production; `tests/unit/attestation/test_trust_roots.py` shows it.
"""

from tests.attestation_support.documents import ABSENT, make_document, payload_fields
from tests.attestation_support.pki import Pki, make_certificate
from tests.attestation_support.software_nsm import SoftwareNsm

__all__ = [
    "ABSENT",
    "Pki",
    "SoftwareNsm",
    "make_certificate",
    "make_document",
    "payload_fields",
]
