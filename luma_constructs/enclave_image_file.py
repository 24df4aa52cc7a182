"""`EnclaveImage`: the compiler's image, and the measurements that its key policy names.

    EnclaveImage.from_file("build/luma-enclave.eif")          measured here, at synth
    EnclaveImage.from_bucket(bucket, "luma-enclave.eif")      measured by this version of Luma

A measurement that is copied by hand from a page into a policy is wrong sooner or later: either way
here it comes from the image.

A register begins as 48 zero bytes and is extended by what is measured, so with H = SHA-384 and Z = 48
zero bytes (AWS, "Where to get an enclave's measurements"):

    PCR0 = H(Z | H(kernel | cmdline | all ramdisks))
    PCR1 = H(Z | H(kernel | cmdline | first ramdisk))
    PCR2 = H(Z | H(all ramdisks but the first))
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from luma_constructs.key_policy import (
    SCHEMA,
    AcceptedImages,
    KeyPolicyError,
    Measurements,
)

__all__ = ["EnclaveImage", "EnclaveImageError", "PlacedImage", "measure"]

# Header and section head of an EIF, version 4 (aws-nitro-enclaves-image-format, src/defs).
_HEADER = struct.Struct(">4sHHQQHH32Q32QII")
_HEAD = struct.Struct(">HHQ")
_MAGIC, _VERSION = b".eif", 4
_KERNEL, _CMDLINE, _RAMDISK = 1, 2, 3
_CHUNK_BYTES = 1 << 20
_DEFAULT_NAME = "compiler-cpu"


class EnclaveImageError(ValueError):
    """An image, or its measurements, cannot be used; the message says what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedImage:
    """An image where instances can fetch it.

    Attributes:
        bucket: the bucket.
        key: the object's key.
    """

    bucket: s3.IBucket
    key: str

    @property
    def url(self) -> str:
        """S3 URL of the image."""
        return self.bucket.s3_url_for_object(self.key)

    def grant_read(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let an instance fetch the image."""
        return iam.Grant.add_to_principal(
            grantee=grantee,
            actions=["s3:GetObject"],
            resource_arns=[self.bucket.arn_for_objects(self.key)],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EnclaveImage:
    """An enclave image and its registers; make one with `from_file` or `from_bucket`.

    Attributes:
        name: of the image, as measurements files list it.
        registers: "PCR0", "PCR1", "PCR2" and, where it is signed, "PCR8": 96 hex digits each.
        path: file to upload; None where it is in a bucket already.
        placed: where it is already; None where it is uploaded.
    """

    name: str
    registers: Mapping[str, str]
    path: Path | None = None
    placed: PlacedImage | None = None

    @classmethod
    def from_file(cls, path: str | Path, *, name: str = _DEFAULT_NAME) -> EnclaveImage:
        """Take an image file: it is measured here and uploaded as an asset.

        Args:
            path: of the EIF, such as `luma enclave build` writes.
            name: of the image. Default: "compiler-cpu"

        Raises:
            EnclaveImageError: the file is missing or no EIF of version 4.
        """
        return cls(name=name, registers=measure(Path(path)), path=Path(path))

    @classmethod
    def from_bucket(
        cls,
        bucket: s3.IBucket,
        key: str,
        *,
        name: str = _DEFAULT_NAME,
        registers: Mapping[str, str] | None = None,
    ) -> EnclaveImage:
        """Take an image that is in a bucket.

        Args:
            bucket: the bucket.
            key: the object's key.
            name: of the image. Default: "compiler-cpu"
            registers: its measurements. Default: - those of the image of that name that this version
                of Luma builds, where they were measured with a kernel.

        Raises:
            EnclaveImageError: there are no such measurements, or they are none.
        """
        known = _registers_of(name) if registers is None else dict(registers)
        return cls(name=name, registers=known, placed=PlacedImage(bucket=bucket, key=key))

    @property
    def accepted(self) -> AcceptedImages:
        """What a key policy accepts: this very build.

        Raises:
            KeyPolicyError: the registers are no measurements, or zeros.
        """
        return AcceptedImages(pcrs={"PCR0": (self.registers.get("PCR0", ""),)})

    @property
    def measurements(self) -> str:
        """The measurements file that clients of the enclave check it against."""
        document = {"schema": SCHEMA, "images": {self.name: dict(sorted(self.registers.items()))}}
        return json.dumps(document, sort_keys=True)

    def place(self, scope: Construct) -> PlacedImage:
        """Give where instances can fetch it; a file becomes an asset below `scope`."""
        if self.placed is not None:
            return self.placed
        asset = s3_assets.Asset(scope, "Image", path=str(self.path))
        return PlacedImage(bucket=asset.bucket, key=asset.s3_object_key)


def measure(path: Path) -> dict[str, str]:
    """Give PCR0, PCR1 and PCR2 of an image file, 96 hex digits each.

    Args:
        path: of the EIF.

    Raises:
        EnclaveImageError: the file is missing or no EIF of version 4.
    """
    image, boot, application = hashlib.sha384(), hashlib.sha384(), hashlib.sha384()
    ramdisks = 0
    try:
        with path.open("rb") as file:
            fields = _HEADER.unpack(_exactly(file.read(_HEADER.size), _HEADER.size))
            if fields[0] != _MAGIC or fields[1] != _VERSION:
                raise EnclaveImageError(f"{path}: no EIF of version {_VERSION}; build it anew")
            for offset in fields[7 : 7 + fields[6]]:
                file.seek(offset)
                kind, _, left = _HEAD.unpack(_exactly(file.read(_HEAD.size), _HEAD.size))
                ramdisks += kind == _RAMDISK
                into = {
                    _KERNEL: (image, boot),
                    _CMDLINE: (image, boot),
                    _RAMDISK: (image, boot if ramdisks == 1 else application),
                }.get(kind, ())
                while left:
                    data = file.read(min(left, _CHUNK_BYTES))
                    if not data:
                        raise EnclaveImageError(f"{path}: ends early; build it anew")
                    left -= len(data)
                    for digest in into:
                        digest.update(data)
    except OSError as error:
        raise EnclaveImageError(
            f"{path}: {error.strerror}; build the image with `luma enclave build`"
        ) from error
    except struct.error as error:
        raise EnclaveImageError(f"{path}: no EIF of version {_VERSION}; build it anew") from error
    found = {"PCR0": image, "PCR1": boot, "PCR2": application}
    return {name: _extended(digest.digest()) for name, digest in found.items()}


def _exactly(data: bytes, size: int) -> bytes:
    """Give data that must have a size.

    Raises:
        struct.error: it is shorter.
    """
    if len(data) != size:
        raise struct.error("too short")
    return data


def _extended(measurement: bytes) -> str:
    """Give a fresh register extended once."""
    return hashlib.sha384(bytes(48) + measurement).hexdigest()


def _registers_of(name: str) -> dict[str, str]:
    """Give the registers of an image that this version of Luma builds."""
    text = files("luma_constructs").joinpath("data/measurements.json").read_text(encoding="utf-8")
    try:
        images = Measurements.from_json(text).images
    except KeyPolicyError:
        images = {}
    if name not in images:
        listed = f"it lists {', '.join(sorted(images))}" if images else "it lists none"
        raise EnclaveImageError(
            f"registers: this version of Luma has no measured image {name!r} ({listed}), since PCR0 "
            "needs the kernel that you build the image with; pass registers= from the "
            "measurements.json that `luma enclave build` writes beside the image, or use "
            "EnclaveImage.from_file"
        )
    return dict(images[name])
