"""What a service inside its only client's process may use of that client's machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from runtime.artifact import TargetPayload

__all__ = ["OwnMachine", "Statistics"]

Statistics = Callable[[Mapping[str, TargetPayload]], Mapping[str, int | float | str | bool]]
"""Gives further public figures of compiled payloads for the manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMachine:
    """What a service may use of the machine that is its only client's.

    Attributes:
        signing_key: signs artifacts: P-384.
        cache_dir: keeps compiled payloads, sealed.
        cache_key: the 32 bytes that they are sealed under.
        statistics: the client's figures of what was compiled.
    """

    signing_key: ec.EllipticCurvePrivateKey = field(repr=False)
    cache_dir: Path
    cache_key: bytes = field(repr=False)
    statistics: Statistics
