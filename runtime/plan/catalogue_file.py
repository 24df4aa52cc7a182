"""The user's own catalogue: what `luma catalogue update` learned of AWS, used before the package's.

The file is `catalogue.json` in Luma's home, of the same form as the catalogue that comes with Luma.
It is put in place whole or not at all. A broken file is an error and not passed over: prices would
otherwise change without a word.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from runtime.artifact import default_home, private_folder
from runtime.spec import Catalogue, SpecError, load_catalogue

__all__ = ["MAX_BYTES", "current_catalogue", "read_catalogue", "user_file", "write_catalogue"]

MAX_BYTES: Final = 64 << 20
"""Largest catalogue that is read."""

_REMEDY: Final = "run `luma catalogue update` again, or remove the file"


def user_file() -> Path:
    """Give the path of the user's catalogue, whether it is there or not."""
    return default_home() / "catalogue.json"


def current_catalogue(path: Path | None = None) -> Catalogue:
    """Give the user's catalogue where there is one, else the one that comes with Luma.

    Args:
        path: the user's file; None for the one in Luma's home.

    Raises:
        SpecError: the user's file is broken.
    """
    path = user_file() if path is None else path
    return read_catalogue(path) if path.exists() else load_catalogue()


def read_catalogue(path: Path) -> Catalogue:
    """Read a catalogue.

    Raises:
        SpecError: it cannot be read, is too large, or is no catalogue.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(f"'{path}' cannot be read: {error.strerror}", remedy=_REMEDY) from None
    if len(raw) > MAX_BYTES:
        raise SpecError(f"'{path}' is larger than {MAX_BYTES} bytes", remedy=_REMEDY)
    try:
        return Catalogue.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        text = f"'{path}' is no catalogue: {place}: {first['msg'].lower()}"
        raise SpecError(text, remedy=_REMEDY) from None


def write_catalogue(catalogue: Catalogue, path: Path | None = None) -> Path:
    """Put a catalogue in place of the user's, whole or not at all; gives its path.

    Raises:
        SpecError: the file cannot be written; the old one is as it was.
    """
    if path is None:
        path = private_folder(default_home()) / user_file().name
    text = catalogue.model_dump_json(by_alias=True, exclude_defaults=False, indent=1) + "\n"
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise SpecError(f"'{path}' cannot be written: {error.strerror}") from None
    return path
