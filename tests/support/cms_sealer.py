"""What KMS does for an attested recipient: the writer of CMS EnvelopedData.

Written from RFC 5652 and the layout in the facts, apart from the reader that it tests; `openssl cms`
opens what it writes (tests/unit/kms/test_cms_openssl.py).
"""

from __future__ import annotations

import hashlib
import os

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

ENVELOPED_DATA = "2a864886f70d010703"
DATA = "2a864886f70d010701"
RSAES_OAEP = "2a864886f70d010107"
MGF1 = "2a864886f70d010108"
SHA256 = "608648016503040201"
AES256_CBC = "60864801650304012a"


def tlv(tag: int, *parts: bytes, indefinite: bool = False) -> bytes:
    """Give a BER value; indefinite only where the tag is constructed."""
    content = b"".join(parts)
    if indefinite and tag & 0x20:
        return bytes([tag, 0x80]) + content + b"\0\0"
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(octets)]) + octets + content


def seal_enveloped(
    plain: bytes,
    recipient: rsa.RSAPublicKey,
    *,
    indefinite: bool = True,
    oids: dict[str, str] | None = None,
    content_key: bytes | None = None,
    padded: bytes | None = None,
) -> bytes:
    """Seal `plain` as KMS does (indefinite), or in DER.

    Args:
        plain: the content.
        recipient: the key of the attestation document.
        indefinite: BER with indefinite lengths and the ciphertext in two octet strings, else DER.
        oids: other object identifiers in place of the right ones, by theirs.
        content_key: another key than 32 random bytes.
        padded: what is encrypted in place of `plain` and its padding.
    """
    oids = oids or {}

    def seq(*parts: bytes) -> bytes:
        return tlv(0x30, *parts, indefinite=indefinite)

    def oid(value: str) -> bytes:
        return tlv(0x06, bytes.fromhex(oids.get(value, value)))

    content_key = content_key or os.urandom(32)
    iv = os.urandom(16)
    fill = 16 - len(plain) % 16
    padded = plain + bytes([fill]) * fill if padded is None else padded
    cipher = Cipher(algorithms.AES(content_key), modes.CBC(iv)).encryptor()
    ciphertext = cipher.update(padded) + cipher.finalize()
    oaep = padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=None)
    spki = recipient.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    key_info = seq(
        tlv(0x02, b"\x02"),
        tlv(0x80, hashlib.sha256(spki).digest()),
        seq(
            oid(RSAES_OAEP),
            seq(
                tlv(0xA0, seq(oid(SHA256)), indefinite=indefinite),
                tlv(0xA1, seq(oid(MGF1), seq(oid(SHA256))), indefinite=indefinite),
            ),
        ),
        tlv(0x04, recipient.encrypt(content_key, oaep)),
    )
    if indefinite:
        halves = ciphertext[:16], ciphertext[16:]
        body = tlv(0xA0, *(tlv(0x04, half) for half in halves), indefinite=True)
    else:
        body = tlv(0x80, ciphertext)
    enveloped = seq(
        tlv(0x02, b"\x02"),
        tlv(0x31, key_info, indefinite=indefinite),
        seq(oid(DATA), seq(oid(AES256_CBC), tlv(0x04, iv)), body),
    )
    return seq(oid(ENVELOPED_DATA), tlv(0xA0, enveloped, indefinite=indefinite))
