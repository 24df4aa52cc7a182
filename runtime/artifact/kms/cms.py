"""The answer of KMS to an attested request: CMS EnvelopedData, opened with the recipient's key.

KMS encrypts the key that it releases to the RSA key in the attestation document, as CMS (RFC 5652)
in BER, with indefinite lengths. `cryptography` reads only DER and wants a certificate, so the form
is read here, by `_ber` and this module, and exactly one form of it: one recipient, named by a
subject key identifier; RSAES-OAEP with SHA-256 and MGF1 of SHA-256; AES-256 in CBC mode.

**The form authenticates nothing**: whoever knows the public key can make one. So its content is
only ever used as a key whose ciphertext is authenticated (docs/reference/artifact-format.md).

All that a wrong key or a changed ciphertext can cause ends in one message, after the same steps, so
that no caller can be made an oracle of the padding.
"""

from __future__ import annotations

import os

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import padding as block_padding
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from runtime.artifact.kms._ber import OBJECT, OCTETS, SEQUENCE, SET, Node, context, read
from runtime.spec.errors import ArtifactError

__all__ = ["MAX_CMS_BYTES", "open_enveloped"]

MAX_CMS_BYTES = 16_384
"""Largest accepted answer. KMS's own are below 1 KiB: an RSA block and two AES blocks."""

_ENVELOPED_DATA = bytes.fromhex("2a864886f70d010703")
_DATA = bytes.fromhex("2a864886f70d010701")
_RSAES_OAEP = bytes.fromhex("2a864886f70d010107")
_MGF1 = bytes.fromhex("2a864886f70d010108")
_SHA256 = bytes.fromhex("608648016503040201")
_AES256_CBC = bytes.fromhex("60864801650304012a")

_INTEGER, _NULL = 0x02, 0x05
_VERSION = b"\x02"  # of EnvelopedData and of a recipient that is named by its key identifier
_AES_BLOCK_BYTES, _AES_KEY_BYTES = 16, 32


def open_enveloped(data: bytes, key: rsa.RSAPrivateKey) -> bytearray:
    """Give the content of KMS's `CiphertextForRecipient`.

    Args:
        data: the answer, BER.
        key: the private half of the key in the attestation document.

    Returns:
        The content; the caller wipes it.

    Raises:
        ArtifactError: larger than `MAX_CMS_BYTES`, not exactly the form that KMS uses (the message
            names the part), or it does not open with `key`.
    """
    wrapped_key, iv, ciphertext = _parts(data)
    content_key = _unwrap(wrapped_key, key)
    plain = _decrypt(content_key or os.urandom(_AES_KEY_BYTES), iv, ciphertext)
    if content_key is None or plain is None:
        # One message, and no cause behind it: which step failed stays unknown.
        raise ArtifactError(
            "cms: does not open; it was changed, or made for another key",
            remedy="ask KMS again, with a fresh attestation document",
        ) from None
    return plain


def _parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Give (wrapped key, IV, ciphertext) of an answer in the one form that is accepted."""
    info = read(data, what="cms", max_bytes=MAX_CMS_BYTES)
    kind, outer = _children(info, SEQUENCE, "cms", 2)
    _require_object(kind, _ENVELOPED_DATA, "cms.contentType")
    (enveloped,) = _children(outer, context(0), "cms.content", 1)
    version, recipients, content = _children(enveloped, SEQUENCE, "cms.envelopedData", 3)
    _require_version(version, "cms.envelopedData.version")
    (recipient,) = _children(recipients, SET, "cms.recipientInfos", 1)
    return _recipient(recipient), *_content(content)


def _recipient(node: Node) -> bytes:
    """Give the wrapped key of the one recipient; who it is, KMS cannot tell better than the key."""
    where = "cms.recipientInfo"
    version, name, algorithm, wrapped = _children(node, SEQUENCE, where, 4)
    _require_version(version, f"{where}.version")
    name.octets(context(0), f"{where}.subjectKeyIdentifier")
    _check_oaep(algorithm, f"{where}.keyEncryptionAlgorithm")
    return wrapped.octets(OCTETS, f"{where}.encryptedKey")


def _check_oaep(node: Node, where: str) -> None:
    """Require RSAES-OAEP with SHA-256, MGF1 with SHA-256 and no label (RFC 8017, A.2.1)."""
    kind, parameters = _children(node, SEQUENCE, where, 2)
    _require_object(kind, _RSAES_OAEP, where)
    hash_part, mask_part = _children(parameters, SEQUENCE, f"{where}.parameters", 2)
    (hash_algorithm,) = _children(hash_part, context(0), f"{where}.hash", 1)
    _check_sha256(hash_algorithm, f"{where}.hash")
    (mask_algorithm,) = _children(mask_part, context(1), f"{where}.mask", 1)
    mask_kind, mask_hash = _children(mask_algorithm, SEQUENCE, f"{where}.mask", 2)
    _require_object(mask_kind, _MGF1, f"{where}.mask")
    _check_sha256(mask_hash, f"{where}.mask.hash")


def _check_sha256(node: Node, where: str) -> None:
    """Require SHA-256; its parameters may be absent or null (RFC 5754, section 2)."""
    node.require(SEQUENCE, where)
    match node.children:
        case (kind,):
            pass
        case (kind, null) if null.tag == _NULL and not null.content:
            pass
        case _:
            raise ArtifactError(f"{where}: expected SHA-256 without parameters")
    _require_object(kind, _SHA256, where)


def _content(node: Node) -> tuple[bytes, bytes]:
    """Give (IV, ciphertext) of the encrypted content."""
    where = "cms.encryptedContentInfo"
    kind, algorithm, ciphertext = _children(node, SEQUENCE, where, 3)
    _require_object(kind, _DATA, f"{where}.contentType")
    cipher, parameter = _children(algorithm, SEQUENCE, f"{where}.algorithm", 2)
    _require_object(cipher, _AES256_CBC, f"{where}.algorithm")
    iv = parameter.octets(OCTETS, f"{where}.iv")
    if len(iv) != _AES_BLOCK_BYTES:
        raise ArtifactError(f"{where}.iv: {len(iv)} bytes; expected {_AES_BLOCK_BYTES}")
    return iv, ciphertext.octets(context(0), f"{where}.encryptedContent")


def _unwrap(wrapped: bytes, key: rsa.RSAPrivateKey) -> bytes | None:
    """Give the 32-byte content key, None where it does not unwrap."""
    oaep = padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=None)
    try:
        content_key = key.decrypt(wrapped, oaep)
    except ValueError:
        return None
    return content_key if len(content_key) == _AES_KEY_BYTES else None


def _decrypt(key: bytes, iv: bytes, ciphertext: bytes) -> bytearray | None:
    """Give the plain content, None where the padding or the length is not right."""
    decryptor = Cipher(algorithms.AES256(key), modes.CBC(iv)).decryptor()
    unpadder = block_padding.PKCS7(8 * _AES_BLOCK_BYTES).unpadder()
    try:
        padded = decryptor.update(ciphertext) + decryptor.finalize()
        return bytearray(unpadder.update(padded) + unpadder.finalize())
    except ValueError:
        return None


def _children(node: Node, tag: int, where: str, count: int) -> tuple[Node, ...]:
    """Give the parts of a constructed node, which must be `count`."""
    node.require(tag, where)
    if len(node.children) != count:
        raise ArtifactError(f"{where}: {len(node.children)} parts; expected {count}")
    return node.children


def _require_object(node: Node, expected: bytes, where: str) -> None:
    """Require an object identifier."""
    node.require(OBJECT, where)
    if node.content != expected:
        raise ArtifactError(
            f"{where}: object identifier {node.content[:16].hex()}; expected {expected.hex()}"
        )


def _require_version(node: Node, where: str) -> None:
    """Require the version 2."""
    node.require(_INTEGER, where)
    if node.content != _VERSION:
        raise ArtifactError(f"{where}: {node.content[:16].hex() or 'nothing'}; expected 02")
