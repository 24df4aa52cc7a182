"""The metadata section: compact JSON about how an image came to be. No PCR depends on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from runtime.spec.errors import ArtifactError

__all__ = ["MAX_METADATA_BYTES", "image_metadata", "pack_metadata", "unpack_metadata"]

MAX_METADATA_BYTES = 65_536
_MAX_CUSTOM_BYTES = 4096
_MAX_DEPTH = 16

# Ours names no time: two builds of one image shall be equal in every byte. The format asks for one.
_BUILD_TIME = "1970-01-01T00:00:00+00:00"


def image_metadata(
    *,
    name: str,
    version: str,
    tool_version: str,
    kernel_version: str,
    custom: Mapping[str, Any],
) -> dict[str, Any]:
    """Give the metadata document with the keys that AWS's tools expect.

    Args:
        name: of the image.
        version: of the image.
        tool_version: of the builder.
        kernel_version: as the kernel's pin states it.
        custom: our own part, at most 4096 bytes as compact JSON.

    Raises:
        ArtifactError: `custom` is larger.
    """
    size = len(_compact(custom))
    if size > _MAX_CUSTOM_BYTES:
        raise ArtifactError(f"EIF metadata: CustomMetadata has {size} bytes; at most 4096")
    return {
        "ImageName": name,
        "ImageVersion": version,
        "BuildMetadata": {
            "BuildTime": _BUILD_TIME,
            "BuildTool": "luma",
            "BuildToolVersion": tool_version,
            "OperatingSystem": "Linux",
            "KernelVersion": kernel_version,
        },
        "DockerInfo": {},
        "CustomMetadata": dict(custom),
    }


def pack_metadata(document: Mapping[str, Any]) -> bytes:
    """Give the section's data.

    Raises:
        ArtifactError: it is longer than `MAX_METADATA_BYTES`.
    """
    data = _compact(document)
    if len(data) > MAX_METADATA_BYTES:
        raise ArtifactError(
            f"EIF metadata: {len(data)} bytes; at most {MAX_METADATA_BYTES} are written"
        )
    return data


def unpack_metadata(data: bytes) -> dict[str, Any]:
    """Read the section's data.

    Raises:
        ArtifactError: not a JSON object, or too deeply nested.
    """
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"EIF metadata: not JSON in UTF-8 ({type(error).__name__})") from error
    if not isinstance(document, dict):
        raise ArtifactError("EIF metadata: not a JSON object")
    if _is_deep(document):
        raise ArtifactError(f"EIF metadata: nested deeper than {_MAX_DEPTH}")
    return document


def _compact(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("utf-8")


def _is_deep(value: object) -> bool:
    """Say whether a value is nested deeper than `_MAX_DEPTH`, whatever it is."""
    level: list[object] = [value]
    for _ in range(_MAX_DEPTH + 1):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return False
        level = inner
    return True
