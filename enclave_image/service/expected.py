"""Which enclave image a client accepts: one of a measurements file (`runtime.artifact.accepted`)."""

from __future__ import annotations

from pathlib import Path

from enclave_image.service.errors import ServiceError
from runtime.artifact.accepted import AcceptedMeasurements
from runtime.artifact.attestation import PcrPolicy

__all__ = ["expected_policy"]


def expected_policy(path: Path, image: str | None = None) -> PcrPolicy:
    """Give the policy that accepts one image.

    Args:
        path: the measurements file, such as `luma enclave build` writes beside an image.
        image: the image's name; None where the file has only one.

    Raises:
        ServiceError: the file measures no image, or none of that name.
        ArtifactError: it is no such file, or its measurements are zeros.
    """
    images = AcceptedMeasurements.from_file(path).images
    if not images:
        raise _wrong(
            path,
            "lists no image",
            "build the image with its kernel; its measurements.json stands beside it",
        )
    if image is None and len(images) > 1:
        raise _wrong(path, f"lists {', '.join(sorted(images))}", "name one with --image")
    chosen = next(iter(images)) if image is None else image
    if chosen not in images:
        raise _wrong(path, f"has no image {chosen!r}", f"it lists {', '.join(sorted(images))}")
    return images[chosen]


def _wrong(path: Path, what: str, remedy: str) -> ServiceError:
    return ServiceError(f"measurements {path}: {what}", reason="trust", remedy=remedy)
