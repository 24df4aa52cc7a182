"""Chains and signatures against OpenSSL's command, which shares no code path with the verifier."""

from __future__ import annotations

import base64
import shutil
import subprocess

import cbor2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from runtime.artifact.attestation import TrustRoots
from runtime.artifact.attestation.chain import verify_chain
from runtime.spec import AttestationError
from tests.attestation_support import make_document, payload_fields
from tests.attestation_support.pki import EPOCH, ca_extensions, new_key
from tests.unit.attestation import cases

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


def pem(der: bytes) -> str:
    return x509.load_der_x509_certificate(der).public_bytes(serialization.Encoding.PEM).decode()


def openssl_accepts(folder, certificate, cabundle) -> bool:
    """Tell whether OpenSSL verifies the chain at `EPOCH`."""
    (folder / "root.pem").write_text(pem(cabundle[0]))
    (folder / "issuers.pem").write_text("".join(map(pem, cabundle[1:])))
    (folder / "leaf.pem").write_text(pem(certificate))
    command = ["openssl", "verify", "-attime", str(int(EPOCH.timestamp()))]
    command += ["-no-CApath", "-no-CAstore", "-CAfile", "root.pem", "-untrusted", "issuers.pem"]
    found = subprocess.run([*command, "leaf.pem"], cwd=folder, capture_output=True, check=False)
    return found.returncode == 0


def we_accept(certificate, cabundle) -> bool:
    roots = TrustRoots.of_certificates([cabundle[0]])
    try:
        verify_chain(certificate, tuple(cabundle), roots=roots, moment=EPOCH)
    except AttestationError:
        return False
    return True


@pytest.mark.parametrize(
    "changes",
    [{}, {"extensions": ca_extensions(5)}, {"extensions": ca_extensions(None)}],
    ids=["as-made", "longer-path", "no-path-length"],
)
def test_chains_that_are_accepted_are_accepted_by_openssl(pki, tmp_path, changes):
    made = pki.with_ca(2, EPOCH, **changes)
    assert we_accept(made.leaf, made.cabundle)
    assert openssl_accepts(tmp_path, made.leaf, made.cabundle)


BOTH_REFUSE = (
    "leaf-expired",
    "leaf-not-yet-valid",
    "issuer-2-expired",
    "issuer-2-without-basic-constraints",
    "issuer-no-ca",
    "issuer-may-not-sign-certificates",
    "leaf-with-unknown-critical-extension",
    "path-length-of-issuer-1",
    "issuer-left-out",
    "issuer-2-signed-by-another",
    "leaf-signed-by-another",
    "leaf-names-another-issuer",
    "leaf-issues-a-leaf",
)


@pytest.mark.parametrize("name", BOTH_REFUSE)
def test_chains_that_openssl_refuses_are_refused(name, pki, tmp_path):
    [case] = [case for case in cases.CHAIN if case.name == name]
    fields = cbor2.loads(cbor2.loads(case.build(pki))[2])
    assert not openssl_accepts(tmp_path, fields["certificate"], fields["cabundle"])
    assert not we_accept(fields["certificate"], fields["cabundle"])


def test_the_signature_is_the_one_that_openssl_verifies(pki, tmp_path):
    """Of the document's Sig_structure, built here byte by byte (RFC 9052, section 4.4)."""
    key = new_key()
    document = make_document(pki, payload_fields(pki), key=key)
    _, _, payload, signature = cbor2.loads(document)
    head = b"\x84" + b"\x6aSignature1" + b"\x44\xa1\x01\x38\x22" + b"\x40"
    (tmp_path / "data").write_bytes(head + b"\x59" + len(payload).to_bytes(2, "big") + payload)
    half = len(signature) // 2
    r, s = (int.from_bytes(part, "big") for part in (signature[:half], signature[half:]))
    (tmp_path / "signature").write_bytes(encode_dss_signature(r, s))
    spki = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    body = base64.encodebytes(spki).decode()
    (tmp_path / "key.pem").write_text(
        f"-----BEGIN PUBLIC KEY-----\n{body}-----END PUBLIC KEY-----\n"
    )
    command = ["openssl", "dgst", "-sha384", "-verify", "key.pem", "-signature", "signature"]
    subprocess.run([*command, "data"], cwd=tmp_path, check=True, capture_output=True)
