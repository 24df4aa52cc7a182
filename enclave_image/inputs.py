"""Inputs of an image that are not built here: the kernel and the drivers, pinned by digest.

`inputs.json` names each known one: where it comes from, its architecture and its digest. Nothing is
downloaded: files are given, and one whose digest is in no pin is refused. Digests are SHA-256, or
the id that git gives a file (SHA-1 over a head and the content), where a publisher's repository is
all that was at hand: that a file is the one of a commit is what such a pin says.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enclave_image.eif.layout import Architecture
from runtime.spec.errors import ArtifactError

__all__ = ["DEFAULT_PINS", "Pin", "checked_input", "load_pins"]

DEFAULT_PINS = Path(__file__).with_name("inputs.json")
_CHUNK_BYTES = 1 << 20
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
    """

    kind: str
    name: str
    version: str
    architecture: Architecture
    source: str
    digests: dict[str, str]


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


def checked_input(path: Path, kind: str, pins: tuple[Pin, ...], where: Path = DEFAULT_PINS) -> Pin:
    """Give the pin that a file fits.

    Args:
        path: the file.
        kind: what it is given as.
        pins: the known ones.
        where: the file that they stand in, for the message.

    Raises:
        ArtifactError: it cannot be read, or fits none.
    """
    found = _digests(path, kind)
    for pin in pins:
        if pin.kind == kind and all(found[form] == value for form, value in pin.digests.items()):
            return pin
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
    return Pin(
        kind=entry["kind"],
        name=entry["name"],
        version=entry["version"],
        architecture=Architecture(entry["architecture"]),
        source=entry["source"],
        digests=digests,
    )


def _digests(path: Path, kind: str) -> dict[str, str]:
    sha256 = hashlib.sha256()
    git_blob = hashlib.sha1(usedforsecurity=False)
    try:
        with path.open("rb") as file:
            git_blob.update(f"blob {path.stat().st_size}\0".encode())
            while chunk := file.read(_CHUNK_BYTES):
                sha256.update(chunk)
                git_blob.update(chunk)
    except OSError as error:
        raise ArtifactError(f"--{kind}: {path} cannot be read: {error.strerror}") from error
    return {"sha256": sha256.hexdigest(), "git_blob": git_blob.hexdigest()}
