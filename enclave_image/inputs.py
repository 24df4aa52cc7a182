"""Inputs of an image that are not built here: the kernel and the drivers, pinned by digest.

`inputs.json` names each known one: where it comes from, its architecture and its digest. Nothing is
downloaded: files are given, and one whose digest is in no pin is refused. Digests are SHA-256, or
the id that git gives a file (SHA-1 over a head and the content), where a publisher's repository is
all that was at hand: that a file is the one of a commit is what such a pin says. The bytes that were
hashed are handed on, so what goes into the image cannot be another file than the one that fitted.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enclave_image.eif.layout import Architecture
from runtime.spec.errors import ArtifactError

__all__ = ["DEFAULT_PINS", "MAX_INPUT_BYTES", "Input", "Pin", "checked_input", "load_pins"]

DEFAULT_PINS = Path(__file__).with_name("inputs.json")
MAX_INPUT_BYTES = 256 << 20
"""No kernel or driver is near that size, and an input is held in memory."""

_DIGESTS = {"sha256": 64, "git_blob": 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A known input.

    Attributes:
        kind: "kernel", "nsm" (a driver) or "init".
        name: for people.
        version: of the kernel, as it names itself.
        architecture: what it runs on.
        source: where it comes from.
        digests: by form: "sha256", "git_blob"; all must fit.
        needs_nsm: whether it is a kernel without the security module's driver built in, so that
            an image without that driver would have nothing to attest with.
    """

    kind: str
    name: str
    version: str
    architecture: Architecture
    source: str
    digests: dict[str, str]
    needs_nsm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An input that fits its pin.

    Attributes:
        pin: the pin.
        content: the bytes that were held against it.
    """

    pin: Pin
    content: bytes


def load_pins(path: Path = DEFAULT_PINS) -> tuple[Pin, ...]:
    """Read a file of pins.

    Raises:
        ArtifactError: it cannot be read, or has another form.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return tuple(_pin(entry) for entry in document["inputs"])
    except OSError as error:
        raise ArtifactError(f"pins {path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"pins {path}: {type(error).__name__} ({error}); expected the form of inputs.json"
        ) from error


def checked_input(
    path: Path, kind: str, pins: tuple[Pin, ...], where: Path = DEFAULT_PINS
) -> Input:
    """Read a file and give it with the pin that it fits.

    Args:
        path: the file.
        kind: what it is given as.
        pins: the known ones.
        where: the file that they stand in, for the message.

    Raises:
        ArtifactError: it cannot be read, is above `MAX_INPUT_BYTES`, or fits none.
    """
    content = _read(path, kind)
    found = _digests(content)
    for pin in pins:
        if pin.kind == kind and all(found[form] == value for form, value in pin.digests.items()):
            return Input(pin=pin, content=content)
    known = ", ".join(f"{pin.name} ({pin.architecture.value})" for pin in pins if pin.kind == kind)
    raise ArtifactError(
        f"--{kind}: {path} has SHA-256 {found['sha256']}, which no pin states; pinned: "
        f"{known or 'none'}",
        remedy=f"give a pinned file, or, after a review, pin this one in {where.name} (--pins)",
    )


def _pin(entry: Any) -> Pin:
    digests = {form: entry[form] for form in _DIGESTS if form in entry}
    for form, value in digests.items():
        if len(value) != _DIGESTS[form] or set(value) - set("0123456789abcdef"):
            raise ValueError(f"{form} of '{entry['name']}': not {_DIGESTS[form]} hex digits")
    if not digests:
        raise ValueError(f"'{entry['name']}' has none of {', '.join(_DIGESTS)}")
    needs_nsm = entry.get("needs_nsm", False)
    if not isinstance(needs_nsm, bool):
        raise TypeError(f"needs_nsm of '{entry['name']}': not true or false")
    return Pin(
        kind=entry["kind"],
        name=entry["name"],
        version=entry["version"],
        architecture=Architecture(entry["architecture"]),
        source=entry["source"],
        digests=digests,
        needs_nsm=needs_nsm,
    )


def _read(path: Path, kind: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise ArtifactError(f"--{kind}: {path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_INPUT_BYTES:
        raise ArtifactError(
            f"--{kind}: {path} has more than {MAX_INPUT_BYTES >> 20} MiB",
            remedy="give the file itself (bzImage, Image, nsm.ko), not a disk or an archive",
        )
    return content


def _digests(content: bytes) -> dict[str, str]:
    git_blob = hashlib.sha1(b"blob %d\0" % len(content), usedforsecurity=False)
    git_blob.update(content)
    return {"sha256": hashlib.sha256(content).hexdigest(), "git_blob": git_blob.hexdigest()}
