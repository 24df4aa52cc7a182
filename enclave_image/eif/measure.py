"""PCRs of an image: what the hypervisor measures when it boots, computed without booting.

A register begins as 48 zero bytes and is extended by SHA-384 of what is measured, so with
H = SHA-384 and Z = 48 zero bytes (AWS, "Where to get an enclave's measurements"):

    PCR0 = H(Z | H(kernel | cmdline | all ramdisks))
    PCR1 = H(Z | H(kernel | cmdline | first ramdisk))
    PCR2 = H(Z | H(all ramdisks but the first))
    PCR3 = H(Z | role ARN)              PCR4 = H(Z | instance id)
    PCR8 = H(Z | H(DER of the signing certificate)), zero where the image is not signed

Only sections' data counts, in the file's order: neither metadata nor signature changes PCR0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enclave_image.eif.layout import SectionKind

__all__ = [
    "PCR_BYTES",
    "Measurer",
    "Pcrs",
    "application_pcr",
    "certificate_pcr",
    "instance_pcr",
    "policy_document",
    "policy_registers",
    "role_pcr",
]

PCR_BYTES = 48
MEASUREMENTS_SCHEMA = "luma/measurements/1"
_ZERO = bytes(PCR_BYTES)
_CHUNK_BYTES = 1 << 20


def _extended(measurement: bytes) -> bytes:
    return hashlib.sha384(_ZERO + measurement).digest()


def certificate_pcr(certificate_der: bytes) -> bytes:
    """Give PCR8 of an image whose signing certificate is `certificate_der`."""
    return _extended(hashlib.sha384(certificate_der).digest())


def role_pcr(role_arn: str) -> bytes:
    """Give PCR3 of an enclave whose parent instance has this IAM role: no inner hash here."""
    return _extended(role_arn.encode())


def instance_pcr(instance_id: str) -> bytes:
    """Give PCR4 of an enclave on this parent instance: no inner hash here."""
    return _extended(instance_id.encode())


def application_pcr(ramdisks: Sequence[Path]) -> bytes:
    """Give PCR2 of an image whose ramdisks but the first are these files, without building it."""
    measured = hashlib.sha384()
    for path in ramdisks:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                measured.update(chunk)
    return _extended(measured.digest())


def policy_registers(pcrs: Mapping[str, str | None]) -> dict[str, str]:
    """Give the registers that a key policy may pin: those that were measured.

    PCR8 of an image that nobody signed is zero, as is every register of an enclave in debug mode: a
    policy must not pin it, so it is left out.
    """
    return {name: value for name, value in pcrs.items() if value and value != _ZERO.hex()}


def policy_document(images: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Give the head of a measurements file, which key policies are made from.

    Args:
        images: registers by the image's name.
    """
    return {"schema": MEASUREMENTS_SCHEMA, "images": {n: dict(r) for n, r in images.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcrs:
    """The registers that an image alone decides; 48 bytes each."""

    pcr0: bytes
    pcr1: bytes
    pcr2: bytes
    pcr8: bytes = _ZERO

    def to_json(self) -> dict[str, str]:
        """Give them as AWS writes them: PCR0 and so on, 96 lower-case hex digits."""
        return {
            "PCR0": self.pcr0.hex(),
            "PCR1": self.pcr1.hex(),
            "PCR2": self.pcr2.hex(),
            "PCR8": self.pcr8.hex(),
        }


class Measurer:
    """Computes PCR0, 1 and 2 from sections' data as it passes by."""

    def __init__(self) -> None:
        self._image = hashlib.sha384()
        self._boot = hashlib.sha384()
        self._application = hashlib.sha384()
        self._ramdisks = 0
        self._kind: SectionKind | None = None

    def begin(self, kind: SectionKind) -> None:
        """Say what the bytes to come belong to."""
        self._kind = kind
        self._ramdisks += kind is SectionKind.RAMDISK

    def update(self, data: bytes) -> None:
        """Take the next bytes of the section's data."""
        if self._kind in (SectionKind.KERNEL, SectionKind.CMDLINE):
            self._image.update(data)
            self._boot.update(data)
        elif self._kind is SectionKind.RAMDISK:
            self._image.update(data)
            (self._boot if self._ramdisks == 1 else self._application).update(data)

    def pcrs(self, certificate_der: bytes | None = None) -> Pcrs:
        """Give the registers.

        Args:
            certificate_der: of the image's signature; None where it has none.
        """
        return Pcrs(
            pcr0=_extended(self._image.digest()),
            pcr1=_extended(self._boot.digest()),
            pcr2=_extended(self._application.digest()),
            pcr8=_ZERO if certificate_der is None else certificate_pcr(certificate_der),
        )
