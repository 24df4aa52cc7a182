"""An image of a few bytes, and ways to break it."""

import datetime as dt
import io
import struct
import zlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from enclave_image.eif import EifParts, ImageSigner, write_eif

SMALL = EifParts(kernel=b"kernel", cmdline="console=ttyS0", ramdisks=(b"rd0", b"rd1"), metadata={})


def image_bytes(parts=SMALL, signer=None):
    """Give the bytes of an image."""
    file = io.BytesIO()
    write_eif(file, parts, signer=signer)
    return file.getvalue()


def with_crc(data):
    """Give an image with the checksum that fits its bytes, so that only what was broken is wrong."""
    crc = zlib.crc32(data[548:], zlib.crc32(data[:544]))
    return data[:544] + struct.pack(">I", crc) + data[548:]


def patched(data, at, form, value):
    """Give an image with one field replaced and the checksum made to fit."""
    new = struct.pack(form, value)
    return with_crc(data[:at] + new + data[at + len(new) :])


def signer(curve=None, name="luma test", issuer=None):
    """Give a key with a certificate that it signed itself, whatever its issuer is called."""
    key = ec.generate_private_key(curve or ec.SECP384R1())
    subject, by = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
        for text in (name, issuer or name)
    )
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=3650))
        .sign(key, hashes.SHA384())
    )
    return ImageSigner(key, certificate)
