"""What a verifier accepts: the measurements of compiler images and of machine images, by name.

They are read from a file such as `enclave_image/measurements.json`:

    {"schema": "luma/measurements/1",
     "images": {NAME: {"PCR0": HEX, "PCR1": HEX, "PCR2": HEX, "PCR8": HEX}},
     "amis": {NAME: {"PCR4": HEX, "PCR12": HEX}}}

An image is accepted where *all* of its listed registers are measured: PCR0 of one with PCR8 of
another is neither. `amis` are machine images with a NitroTPM, and may be left out. Zeros are
refused, since every enclave in debug mode measures them; only PCR12 of a NitroTPM is zero where
nothing overrode the kernel's command line. The file's other fields, such as how the images were
built, are for people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runtime.artifact._fields import fail
from runtime.artifact._plain_json import read_json
from runtime.artifact.attestation import Kind, PcrPolicy
from runtime.spec.errors import ArtifactError, AttestationError

__all__ = ["SCHEMA", "AcceptedMeasurements"]

SCHEMA = "luma/measurements/1"

_REGISTER = re.compile(r"PCR([0-9]|[12][0-9]|3[01])", re.ASCII)
_OF_EVERY_IMAGE = frozenset({0, 1, 2})
_MAX_NAMES = 1024
_MAX_NAME = 128


@dataclass(frozen=True, slots=True)
class AcceptedMeasurements:
    """The accepted images.

    Attributes:
        images: of the sealed compiler, by name: the values of its registers, one each.
        amis: of machines that may open artifacts, likewise.
    """

    images: Mapping[str, PcrPolicy]
    amis: Mapping[str, PcrPolicy]

    @classmethod
    def from_file(cls, path: Path) -> AcceptedMeasurements:
        """Read a measurements file.

        Raises:
            ArtifactError: it cannot be read, or as `from_json`.
        """
        return cls.from_json(read_json(path, "measurements"))

    @classmethod
    def from_json(cls, document: Any) -> AcceptedMeasurements:
        """Read the parsed JSON of a measurements file.

        Raises:
            ArtifactError: another schema, no map of images, or a register that is unknown, missing,
                no 96 hex digits or zero.
        """
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            found = document.get("schema") if isinstance(document, dict) else document
            raise fail("measurements.schema", found, repr(SCHEMA))
        images = _read_named(document.get("images"), "measurements.images", "nitro-enclave")
        amis = _read_named(document.get("amis", {}), "measurements.amis", "nitrotpm")
        return cls(images=images, amis=amis)

    def image_of(self, pcrs: Mapping[int, bytes]) -> str | None:
        """Give the name of the image that an enclave's document measured; None for no listed one."""
        for name, policy in self.images.items():
            try:
                policy.check("nitro-enclave", pcrs)
            except AttestationError:
                continue
            return name
        return None

    def admits_only_amis(self, pinned: Mapping[int, frozenset[bytes]]) -> bool:
        """Tell whether every machine with one of these values for each register is a listed AMI.

        Args:
            pinned: by register, all values that are let through; other registers may be anything.
                Their combinations are all gone through: keep them few.
        """
        usable = [ami for ami in self.amis.values() if ami.accepted.keys() <= pinned.keys()]
        combinations: list[dict[int, bytes]] = [{}]
        for register, values in pinned.items():
            combinations = [one | {register: value} for one in combinations for value in values]
        return all(
            any(
                all(one[register] in values for register, values in ami.accepted.items())
                for ami in usable
            )
            for one in combinations
        )


def _read_named(value: object, where: str, kind: Kind) -> Mapping[str, PcrPolicy]:
    """Read a map of images by name."""
    if not isinstance(value, dict) or len(value) > _MAX_NAMES:
        raise fail(where, value, f"a map of at most {_MAX_NAMES} images by name")
    found = {}
    for name, registers in value.items():
        if not 1 <= len(name) <= _MAX_NAME or not name.isprintable():
            raise fail(where, name, f"printable names of at most {_MAX_NAME} characters")
        found[name] = _read_registers(registers, f"{where}.{name}", kind)
    return MappingProxyType(found)


def _read_registers(value: object, where: str, kind: Kind) -> PcrPolicy:
    """Read one image's registers."""
    if not isinstance(value, dict):
        raise fail(where, value, "a map of registers, such as PCR0, to 96 hex digits")
    accepted: dict[int, list[str]] = {}
    for register, measured in value.items():
        match = _REGISTER.fullmatch(register)
        if match is None:
            raise fail(where, register, "registers from PCR0 to PCR31")
        if not isinstance(measured, str):
            raise fail(f"{where}.{register}", measured, "96 hex digits")
        accepted[int(match[1])] = [measured]
    if kind == "nitro-enclave" and not accepted.keys() >= _OF_EVERY_IMAGE:
        raise fail(where, sorted(value), "PCR0, PCR1, PCR2 and, if it is signed, PCR8")
    try:
        return PcrPolicy.of(kind, accepted)
    except AttestationError as error:
        raise ArtifactError(f"{where}: {error.message}", remedy=error.remedy) from error
