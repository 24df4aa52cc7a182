"""Verification of an artifact: the seal level that it reached, told from evidence.

The level in the manifest is a claim. The level reached is computed from what this verifier saw:

- L0: the signature is that of a signer whom the caller trusts;
- L1: that, and with the customer's key every chunk opened and had its digest.

L2 and L3 need evidence that this version cannot judge, so it never tells them. A claim that the
evidence does not reach is told beside the level, never in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from runtime.artifact.keys import signer_fingerprint
from runtime.artifact.leaks import Leak, scrub_violations, survey, totals
from runtime.artifact.reader import Artifact, open_artifact
from runtime.spec.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric import ec

__all__ = ["Evidence", "ReachedLevel", "Verification", "reached_level", "verify_artifact"]

ReachedLevel = Literal["none", "L0", "L1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One thing that a level rests on.

    Attributes:
        name: "signature", "signer" or "seal".
        holds: whether the verifier saw it hold.
        detail: what was seen, for people.
    """

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a verification found.

    Attributes:
        digest: the artifact's digest.
        level: the level reached; "none" where the signer is not trusted.
        claimed: the level that the manifest claims.
        signer: the signer's fingerprint.
        evidence: what the level rests on.
        leaks: by target and program, what a holder of the key could read; None where it was not
            asked for or the payloads could not be read.
    """

    digest: str
    level: ReachedLevel
    claimed: str
    signer: str
    evidence: tuple[Evidence, ...]
    leaks: Mapping[str, Mapping[str, tuple[Leak, ...]]] | None

    @property
    def label(self) -> str:
        """The level as it is printed: never more than was reached."""
        if self.level == "L1":
            return "L1 (key file)"
        if self.level == self.claimed:
            return self.level
        missing = "; ".join(item.detail for item in self.evidence if not item.holds)
        return f"{self.level} (claims {self.claimed}: {missing})"

    @property
    def complete(self) -> bool:
        """Whether all evidence holds: a sealed artifact without its key is not verified."""
        return self.level != "none" and all(item.holds for item in self.evidence)

    def to_json(self) -> dict[str, object]:
        """Give what `luma verify --json` prints."""
        return {
            "digest": self.digest,
            "level": self.level,
            "label": self.label,
            "level_claimed": self.claimed,
            "signer": self.signer,
            "evidence": [
                {"name": item.name, "holds": item.holds, "detail": item.detail}
                for item in self.evidence
            ],
            **_leaks_json(self.leaks),
        }


def verify_artifact(
    path: Path,
    *,
    trusted_signer: ec.EllipticCurvePublicKey | None,
    key: bytes | None = None,
    scan_leaks: bool = False,
) -> Verification:
    """Verify an artifact: all of it that can be read with what is given.

    Args:
        path: the file.
        trusted_signer: the signer to accept; None accepts any, and then no level is reached.
        key: the 32-byte data key; without it a sealed payload cannot be checked, nor L1 told.
        scan_leaks: whether to list what a holder of the key could read.

    Raises:
        ArtifactError: the file does not verify: as `open_artifact`, or a chunk is not what was
            sealed, or a payload is not as the manifest describes it, or one that is called
            scrubbed is not.
    """
    artifact = open_artifact(path, trusted_signer=trusted_signer, key=key)
    found: dict[str, dict[str, tuple[Leak, ...]]] | None = {} if scan_leaks else None
    if artifact.can_read_payloads:
        for target in artifact.manifest.targets:
            _check_payload(artifact, target, found)
    elif found is not None:
        found = None
    evidence = _evidence(artifact)
    return Verification(
        digest=artifact.digest,
        level=reached_level(evidence),
        claimed=artifact.manifest.level,
        signer=signer_fingerprint(artifact.manifest.signer),
        evidence=evidence,
        leaks=found,
    )


def reached_level(evidence: tuple[Evidence, ...]) -> ReachedLevel:
    """Give the highest level of which every part holds."""
    holds = {item.name for item in evidence if item.holds}
    if not {"signature", "signer"} <= holds:
        return "none"
    return "L1" if "seal" in holds else "L0"


def _check_payload(
    artifact: Artifact, target: str, found: dict[str, dict[str, tuple[Leak, ...]]] | None
) -> None:
    """Read a payload whole, compare it with its description, and scan it."""
    payload = artifact.target_payload(target)
    programs = survey(payload) if found is not None else None
    violations = scrub_violations(payload, programs)
    if violations:
        raise ArtifactError(
            f"payload {target}: the manifest calls it scrubbed, but it holds {violations}"
        )
    if found is not None and programs is not None:
        found[target] = programs


def _leaks_json(
    found: Mapping[str, Mapping[str, tuple[Leak, ...]]] | None,
) -> dict[str, object]:
    """Give counts by kind over all payloads, the same by target, and examples with their place."""
    if found is None:
        return {"leaks": None}
    by_target = {
        target: [leak for leaks in programs.values() for leak in leaks]
        for target, programs in found.items()
    }
    return {
        "leaks": totals(leak for leaks in by_target.values() for leak in leaks),
        "leaks_by_target": {target: totals(leaks) for target, leaks in by_target.items()},
        "leak_examples": [
            {
                "target": target,
                "program": program,
                "kind": leak.kind,
                "count": leak.count,
                "examples": list(leak.examples),
            }
            for target, programs in found.items()
            for program, leaks in programs.items()
            for leak in leaks
        ],
    }


def _evidence(artifact: Artifact) -> tuple[Evidence, ...]:
    """Tell what an opened artifact, whose readable payloads were all read, rests on."""
    signature = Evidence(
        name="signature", holds=True, detail="ES384 over the manifest, by the signer it names"
    )
    trusted = artifact.signer_trusted
    signer = Evidence(
        name="signer",
        holds=trusted,
        detail="the trusted signer" if trusted else "no trusted signer was given",
    )
    if artifact.manifest.seal is None:
        return signature, signer
    opened = artifact.can_read_payloads
    seal = Evidence(
        name="seal",
        holds=opened,
        detail="every chunk opened with the customer's key file"
        if opened
        else "the seal was not checked, no key was given",
    )
    return signature, signer, seal
