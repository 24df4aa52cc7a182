"""Small JSON files that someone else wrote: bounded, and without repeated keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runtime.spec.errors import ArtifactError

__all__ = ["parse_json", "read_json"]

_MAX_BYTES = 1 << 20


def read_json(path: Path, what: str) -> Any:
    """Read a JSON file of at most 1 MiB; `what` names it in errors.

    Raises:
        ArtifactError: it cannot be read, or as `parse_json`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ArtifactError(f"{what} file {path}: cannot be read: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise ArtifactError(f"{what} file {path}: larger than {_MAX_BYTES} bytes")
    return parse_json(data, f"{what} file {path}")


def parse_json(data: bytes, where: str) -> Any:
    """Parse JSON; a key that stands twice could say two things, so it is refused.

    Raises:
        ArtifactError: no JSON in UTF-8, nested too deep, or with a repeated key.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ArtifactError(f"{where}: {twice[:60]!r} stands twice in one object")
        return found

    try:
        return json.loads(data.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where}: not JSON ({type(error).__name__})") from error
