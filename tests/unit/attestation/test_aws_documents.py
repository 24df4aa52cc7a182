"""Real documents of AWS, at their own times, where someone has put them at hand.

They belong to others and are not kept in this repository. `LUMA_AWS_DOCUMENTS` names a folder with
files of the public repository evervault/attestation-doc-validation (Apache-2.0), `test-data/`:

    beta/valid-attestation-doc-bytes        as valid-attestation-doc-bytes
    beta/debug-mode-attestation-doc-bytes   as debug-mode-attestation-doc-bytes
    valid-attestation-doc-base64            as it is

A file with another SHA-256 than here fails. Without the folder the tests are skipped; that the
verifier reads such documents at all is then tested on the project's own alone.
"""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest

from runtime.artifact.attestation import PcrPolicy, authenticate, verify_attestation
from runtime.spec import AttestationError

FILES = {
    "valid-attestation-doc-bytes": (
        "a72552688ab6de06b9039ebda2bd5ae9285860ec886f841da94351681dfb3eb6",
        "2022-10-13T08:58:02.136000+00:00",
        False,
    ),
    "debug-mode-attestation-doc-bytes": (
        "46591b92f9abefaace22a6d7ea4ca9c7007dfdbe788fbe8634b230ec2043a789",
        "2022-10-12T13:50:06.081000+00:00",
        True,
    ),
    "valid-attestation-doc-base64": (
        "11530bdf00175736288bd47530c9b51a247d80b4f67ffd41353cb06d33342d58",
        "2023-09-18T15:03:30.860000+00:00",
        True,
    ),
}
PCR0 = (
    "f4d48b81a460c9916d1e685119074bf24660afd3e34fae9fca0a0d28d9d5599936332687e6f66fc890ac8cf15014"
    "2d8b"
)


def document(name: str) -> bytes:
    folder = os.environ.get("LUMA_AWS_DOCUMENTS")
    if not folder:
        pytest.skip("LUMA_AWS_DOCUMENTS names no folder with AWS's documents")
    found = (Path(folder) / name).read_bytes()
    assert hashlib.sha256(found).hexdigest() == FILES[name][0]
    return base64.b64decode(found) if name.endswith("base64") else found


@pytest.mark.parametrize("name", FILES)
def test_awss_documents_are_authentic_at_their_own_time(name):
    found = authenticate(document(name), at="timestamp")
    assert found.timestamp.isoformat() == FILES[name][1]
    assert found.debug is FILES[name][2]
    assert found.subjects[0] == "CN=aws.nitro-enclaves,OU=AWS,O=Amazon,C=US"
    assert len(found.subjects) == 5


def test_awss_production_document_is_verified_by_its_pcr0():
    policy = PcrPolicy.of("nitro-enclave", {0: [PCR0]})
    found = verify_attestation(
        document("valid-attestation-doc-bytes"), policy=policy, nonce=None, at="timestamp"
    )
    assert found.module_id == "i-020b6af9246d90e92-enc0183d09086c24190"


@pytest.mark.parametrize("name", [name for name, about in FILES.items() if about[2]])
def test_awss_debug_documents_are_refused(name):
    policy = PcrPolicy.of("nitro-enclave", {0: [PCR0]})
    with pytest.raises(AttestationError) as refused:
        verify_attestation(document(name), policy=policy, nonce=None, at="timestamp")
    assert refused.value.rule == "measured.debug"


@pytest.mark.parametrize("name", FILES)
def test_awss_documents_are_too_old_today(name):
    with pytest.raises(AttestationError) as refused:
        authenticate(document(name))
    assert refused.value.rule == "fresh.age"


@pytest.mark.parametrize("name", FILES)
def test_awss_documents_are_refused_with_one_bit_changed(name):
    """In each part: the payload's start, a PCR, each certificate, the signature."""
    whole = document(name)
    for at in range(40, len(whole), 97):
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(AttestationError):
            authenticate(changed, at="timestamp")
