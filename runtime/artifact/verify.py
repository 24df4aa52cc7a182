"""Verification of an artifact: the seal level that it reached, told from evidence.

The level in the manifest is a claim. The level reached is computed from what this verifier saw, link
by link (`levels` says which level rests on what, `_judging` judges each link):

- L0: the signature is that of a signer whom the caller trusts;
- L1: that, and with the customer's key every chunk opened and had its digest;
- L2: that, and the attestation document in the file is authentic, of this artifact's digest, and of
  an image whose measurements the caller accepts;
- L3: that, and the key policy that the caller gave lets only attested machine images open that the
  caller accepts. No verifier of a file can tell more of it: the policy lives in KMS.

The trusted signer is needed at every level. The document covers the manifest's digest, and with it
the signer's key, so nobody can sign an attested artifact anew; but it tells *what* compiled, and
anyone may run that image for a graph of his own. *Who* asked for it is the signer's to tell.

The level is told with the key's source, as in "L2 (KMS)". A claim that the evidence does not reach
is told beside the level, never in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from runtime.artifact._judging import (
    judge_attestation,
    judge_image,
    judge_key_policy,
    tell_origin,
    tell_seal,
)
from runtime.artifact.attestation import PRODUCTION_ROOTS, TrustRoots
from runtime.artifact.keys import signer_fingerprint
from runtime.artifact.kms.errors import KeyServiceError
from runtime.artifact.leaks import Leak, scrub_violations, survey, totals
from runtime.artifact.levels import (
    Evidence,
    EvidenceName,
    Level,
    ReachedLevel,
    allows,
    needs,
    reached_level,
    reaches,
)
from runtime.artifact.reader import Artifact, open_artifact
from runtime.spec.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric import ec

    from runtime.artifact.accepted import AcceptedMeasurements
    from runtime.artifact.key_release import KeyPolicy
    from runtime.artifact.key_service import KeyService

__all__ = ["Verification", "verify_artifact"]

_SOURCES = {"key-file": "key file", "kms": "KMS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a verification found.

    Attributes:
        digest: the artifact's digest.
        targets: what it has payloads for.
        level: the level reached; "none" where the signer is not trusted.
        claimed: the level that the manifest claims.
        key_source: "key-file" or "kms", None where nothing is sealed.
        signer: the signer's fingerprint.
        evidence: every link of the chain, in its order.
        leaks: by target and program, what a holder of the key could read; None where it was not
            asked for or the payloads could not be read.
    """

    digest: str
    targets: tuple[str, ...]
    level: ReachedLevel
    claimed: Level
    key_source: Literal["key-file", "kms"] | None
    signer: str
    evidence: tuple[Evidence, ...]
    leaks: Mapping[str, Mapping[str, tuple[Leak, ...]]] | None

    @property
    def label(self) -> str:
        """The level as it is printed: never more than was reached."""
        notes = []
        if self.level not in ("none", "L0") and self.key_source is not None:
            notes.append(_SOURCES[self.key_source])
        if self.level == "L3":
            notes.append("by the key policy that was given")
        if not self.complete:
            notes.append(f"claims {self.claimed}: {self._lacking()}")
        elif self.level != self.claimed:
            notes.append(f"claims {self.claimed}")
        return f"{self.level} ({'; '.join(notes)})" if notes else self.level

    @property
    def complete(self) -> bool:
        """Whether the claimed level was reached: a sealed artifact without its key is not verified."""
        return reaches(self.level, self.claimed)

    def reaches(self, asked: Level) -> bool:
        """Tell whether the asked level was reached."""
        return reaches(self.level, asked)

    def failed(self, asked: Level | None = None) -> tuple[EvidenceName | Literal["claim"], ...]:
        """Give what an asked level rests on and was not seen to hold.

        Args:
            asked: default: the claimed level. Where the claim does not allow it, the claim itself
                is what fails first.
        """
        asked = asked or self.claimed
        claim = () if allows(self.claimed, asked) else ("claim",)
        needed = needs(asked)
        return claim + tuple(
            item.name for item in self.evidence if item.name in needed and not item.holds
        )

    def _lacking(self) -> str:
        """Say what the claim lacks."""
        failed = self.failed()
        return "; ".join(item.detail for item in self.evidence if item.name in failed)

    def to_json(self, *, asked: Level | None = None) -> dict[str, object]:
        """Give what `luma verify --json` prints.

        Args:
            asked: the level that `failed` is about; default: the claimed one.
        """
        return {
            "digest": self.digest,
            "targets": list(self.targets),
            "level": self.level,
            "label": self.label,
            "level_claimed": self.claimed,
            "level_required": asked,
            "key_source": self.key_source,
            "signer": self.signer,
            "evidence": [item.to_json() for item in self.evidence],
            "failed": list(self.failed(asked)),
            **_leaks_json(self.leaks),
        }


def verify_artifact(
    path: Path,
    *,
    trusted_signer: ec.EllipticCurvePublicKey | None,
    key: bytes | KeyService | None = None,
    accepted: AcceptedMeasurements | None = None,
    key_policy: KeyPolicy | None = None,
    roots: TrustRoots = PRODUCTION_ROOTS,
    scan_leaks: bool = False,
) -> Verification:
    """Verify an artifact: all of it that can be judged with what is given.

    Args:
        path: the file.
        trusted_signer: the signer to accept; None accepts any, and then no level is reached.
        key: the 32-byte data key, or the service that keeps it; without it, or where the service
            refuses, a sealed payload cannot be checked, nor L1 reached.
        accepted: the measurements to accept; without them no image is known, nor L2 reached.
        key_policy: the policy of the key that the manifest names; without it no L3.
        roots: the trusted roots of attestation documents. Default: AWS's.
        scan_leaks: whether to list what a holder of the key could read, and to hold payloads that
            are called scrubbed to it. It takes long, and memory for a whole payload; without it
            memory does not follow the size of the executables.

    Raises:
        ArtifactError: the file does not verify: as `open_artifact`, or a chunk is not what was
            sealed, or a payload is not as the manifest describes it, or one that is called
            scrubbed is not and `scan_leaks` was asked for.
    """
    refusal: KeyServiceError | None = None
    try:
        artifact = open_artifact(path, trusted_signer=trusted_signer, key=key)
    except KeyServiceError as error:
        # The artifact is no worse for a door that stayed closed: all but its seal can be told.
        refusal = error
        artifact = open_artifact(path, trusted_signer=trusted_signer)
    found = _check_payloads(artifact, scan_leaks=scan_leaks)
    attestation, document = judge_attestation(artifact, roots)
    manifest = artifact.manifest
    evidence = (
        *tell_origin(artifact),
        tell_seal(artifact, refusal),
        attestation,
        judge_image(document, accepted),
        judge_key_policy(manifest.seal, key_policy, accepted),
    )
    return Verification(
        digest=artifact.digest,
        targets=manifest.targets,
        level=reached_level([item.name for item in evidence if item.holds], manifest.level),
        claimed=manifest.level,
        key_source=None if manifest.seal is None else manifest.seal.key_source,
        signer=signer_fingerprint(manifest.signer),
        evidence=evidence,
        leaks=found,
    )


def _check_payloads(
    artifact: Artifact, *, scan_leaks: bool
) -> dict[str, dict[str, tuple[Leak, ...]]] | None:
    """Check every payload that can be read; give what a scan found, None where there was none."""
    if not artifact.can_read_payloads:
        return None
    targets = artifact.manifest.targets
    if scan_leaks:
        return {target: _scan_payload(artifact, target) for target in targets}
    for target in targets:
        artifact.check_payload(target)
    return None


def _scan_payload(artifact: Artifact, target: str) -> dict[str, tuple[Leak, ...]]:
    """Read a payload whole, compare it with its description, and list what can be read in it."""
    payload = artifact.target_payload(target)
    programs = survey(payload)
    violations = scrub_violations(payload, programs)
    if violations:
        raise ArtifactError(
            f"payload {target}: the manifest calls it scrubbed, but it holds {violations}"
        )
    return programs


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
