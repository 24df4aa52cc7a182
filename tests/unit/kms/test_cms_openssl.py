"""OpenSSL's command line is the independent implementation of CMS, in both directions."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from cryptography.hazmat.primitives import serialization

from runtime.artifact.kms.cms import open_enveloped
from runtime.spec import ArtifactError
from tests.support.cms_sealer import seal_enveloped

KEY = bytes(range(100, 132))
OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="needs the command openssl")


def openssl(folder, *arguments: str) -> None:
    subprocess.run([OPENSSL, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, recipient):
    """A folder with the recipient's key and a certificate of it, which OpenSSL asks for."""
    folder = tmp_path_factory.mktemp("openssl")
    pem = recipient.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").write_bytes(pem)
    (folder / "plain").write_bytes(KEY)
    openssl(
        folder, "req", "-x509", "-new", "-key", "key.pem", "-out", "cert.pem",
        "-subj", "/CN=recipient", "-addext", "subjectKeyIdentifier=hash",
    )  # fmt: skip
    return folder


def encrypt(folder, *options: str, cipher: str = "-aes256", digest: str = "sha256") -> bytes:
    openssl(
        folder, "cms", "-encrypt", "-binary", "-in", "plain", "-out", "sealed", "-outform", "DER",
        cipher, *options, "-recip", "cert.pem", "-keyopt", "rsa_padding_mode:oaep",
        "-keyopt", f"rsa_oaep_md:{digest}", "-keyopt", f"rsa_mgf1_md:{digest}",
    )  # fmt: skip
    return (folder / "sealed").read_bytes()


@pytest.mark.parametrize("indefinite", [True, False])
def test_openssl_opens_what_the_test_double_seals(folder, recipient, indefinite):
    sealed = seal_enveloped(KEY, recipient.public_key(), indefinite=indefinite)
    (folder / "ours").write_bytes(sealed)
    openssl(
        folder, "cms", "-decrypt", "-binary", "-inform", "DER", "-in", "ours",
        "-inkey", "key.pem", "-out", "opened",
    )  # fmt: skip
    assert (folder / "opened").read_bytes() == KEY


@pytest.mark.parametrize("options", [["-keyid"], ["-keyid", "-stream"]], ids=["DER", "BER"])
def test_the_reader_opens_what_openssl_seals(folder, recipient, options):
    sealed = encrypt(folder, *options)
    assert (b"\x30\x80" in sealed[:2]) == ("-stream" in options)
    assert open_enveloped(sealed, recipient) == KEY


@pytest.mark.parametrize(
    ("options", "given", "match"),
    [
        ([], {}, r"cms\.envelopedData\.version"),  # named by issuer and serial number
        (["-keyid"], {"cipher": "-aes128"}, r"encryptedContentInfo\.algorithm: object"),
        (["-keyid"], {"cipher": "-aes-256-gcm"}, "cms"),
        (["-keyid"], {"digest": "sha384"}, r"keyEncryptionAlgorithm\.hash: object"),
    ],
)
def test_other_forms_of_openssl_are_refused(folder, recipient, options, given, match):
    with pytest.raises(ArtifactError, match=match):
        open_enveloped(encrypt(folder, *options, **given), recipient)
