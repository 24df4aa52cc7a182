"""Each link of an artifact's chain of evidence, judged from what a verifier was given.

`signature`, `signer` and `seal` are told of an artifact that was opened already: one whose signature
does not fit, that another than the trusted signer signed, or whose chunks do not open under the key,
is refused as a whole. `attestation`, `image` and `key-policy` are judged here and refused one by one: an artifact
is no worse for a document that proves nothing.
"""

from __future__ import annotations

import hmac
from datetime import datetime
from typing import TYPE_CHECKING

from runtime.artifact.attestation import Attestation, TrustRoots, authenticate
from runtime.artifact.keys import signer_fingerprint
from runtime.artifact.levels import Evidence, Facts
from runtime.spec.errors import AttestationError

if TYPE_CHECKING:
    from runtime.artifact.accepted import AcceptedMeasurements
    from runtime.artifact.key_release import KeyPolicy
    from runtime.artifact.kms import KeyServiceError
    from runtime.artifact.manifest import Seal
    from runtime.artifact.reader import Artifact

__all__ = ["judge_attestation", "judge_image", "judge_key_policy", "tell_origin", "tell_seal"]

_SHOWN_PCRS = (0, 1, 2, 8)


def tell_origin(artifact: Artifact) -> tuple[Evidence, Evidence]:
    """Tell signature and signer of an opened artifact."""
    signature = Evidence.held("signature", "ES384 over the manifest, by the signer it names")
    facts = {"fingerprint": signer_fingerprint(artifact.manifest.signer)}
    if artifact.signer_trusted:
        return signature, Evidence.held("signer", "the trusted signer", facts)
    # An attestation document covers the signer's key, but says only which image signed. Anyone may
    # run that image, so it does not say for whom: the signer is needed at every level.
    return signature, Evidence.missing(
        "signer",
        "no trusted signer was given",
        needed="the public key of the signer to trust (--signer)",
        facts=facts,
    )


def tell_seal(artifact: Artifact, refusal: KeyServiceError | None) -> Evidence:
    """Tell the seal of an opened artifact, whose readable payloads were all read.

    Args:
        artifact: the opened artifact.
        refusal: why a key service that was asked released no key.
    """
    seal = artifact.manifest.seal
    if seal is None:
        return Evidence.refused(
            "seal",
            "the payloads are not sealed: anyone can read them",
            needed="an artifact that was compiled at level L1 or higher",
        )
    if refusal is not None:
        return _refused_seal(seal, refusal)
    if not artifact.can_read_payloads:
        by_file = "the customer's data key file (--key-file)"
        by_kms = "the customer's name, to ask KMS for the key (--customer)"
        return Evidence.missing(
            "seal",
            "the seal was not checked, no key was given",
            needed=by_file if seal.kms is None else by_kms,
            facts=_seal_facts(seal),
        )
    whose = "the customer's key file"
    if seal.kms is not None:
        whose = f"the key that {seal.kms.arn} released"
    return Evidence.held("seal", f"every chunk opened with {whose}", _seal_facts(seal))


def judge_attestation(artifact: Artifact, roots: TrustRoots) -> tuple[Evidence, Attestation | None]:
    """Judge the attestation document that travels with an artifact, at the document's own time.

    It holds where Nitro hardware made it for an enclave that is not in debug mode, and that enclave
    put this artifact's digest into it. Which image that was is `judge_image`'s to tell.

    Args:
        artifact: the opened artifact.
        roots: the trusted roots.

    Returns:
        The evidence, and what the document says; None where it does not hold.
    """
    if artifact.attestation is None:
        missing = Evidence.missing(
            "attestation",
            "the artifact carries no attestation document",
            needed="an artifact that the sealed compiler made; none can be added afterwards",
        )
        return missing, None
    try:
        found = authenticate(artifact.attestation, roots=roots, at="timestamp")
    except AttestationError as error:
        needed = error.remedy or "the document that AWS Nitro hardware made for this artifact"
        return Evidence.refused("attestation", error.message, needed=needed), None
    wrong = _wrong_document(found, artifact.digest)
    if wrong is not None:
        detail, needed = wrong
        facts = _document_facts(found)
        return Evidence.refused("attestation", detail, needed=needed, facts=facts), None
    made = _utc(found.timestamp)
    held = Evidence.held(
        "attestation",
        f"{found.module_id} put this artifact's digest into it at {made}",
        _document_facts(found),
    )
    return held, found


def judge_image(found: Attestation | None, accepted: AcceptedMeasurements | None) -> Evidence:
    """Judge which image a document measured.

    Args:
        found: a document that holds; None where there is none.
        accepted: the accepted measurements; None where none were given.
    """
    if found is None:
        return Evidence.missing(
            "image",
            "no document that holds tells what was measured",
            needed="an attestation document that holds",
        )
    facts: Facts = {f"PCR{i}": found.pcrs[i].hex() for i in _SHOWN_PCRS if i in found.pcrs}
    if accepted is None or not accepted.images:
        none = "no measurements were given"
        empty = "the measurements that were given list no image"
        return Evidence.missing(
            "image",
            none if accepted is None else empty,
            needed="the measurements of the images to accept (--measurements)",
            facts=facts,
        )
    name = accepted.image_of(found.pcrs)
    if name is None:
        return Evidence.refused(
            "image",
            f"what was measured is none of the accepted images ({', '.join(accepted.images)})",
            needed="an artifact of an accepted image, or this one among the measurements: build it "
            "from source and compare",
            facts=facts,
        )
    return Evidence.held(
        "image", f"{name}, by all of its listed registers", {"name": name, **facts}
    )


def judge_key_policy(
    seal: Seal | None, policy: KeyPolicy | None, accepted: AcceptedMeasurements | None
) -> Evidence:
    """Judge whether a key policy releases the key to attested machine images only.

    It tells what the policy says that was given. That it is the policy of the key that the manifest
    names, and stays so, cannot be told from a file.

    Args:
        seal: of the manifest.
        policy: the policy; None where none was given.
        accepted: the accepted measurements; None where none were given.
    """
    if seal is None or seal.kms is None:
        return Evidence.refused(
            "key-policy",
            "no KMS key seals the artifact, so no policy says who may open it",
            needed="an artifact that is sealed under a KMS key",
        )
    if policy is None:
        return Evidence.missing(
            "key-policy",
            "no key policy was given",
            needed=f"the policy of {seal.kms.arn} (--key-policy)",
        )
    facts = policy.told()
    if accepted is None or not accepted.amis:
        return Evidence.missing(
            "key-policy",
            "no measurements of machine images were given to compare the policy with",
            needed="the measurements of the AMIs to accept (--measurements)",
            facts=facts,
        )
    wrong = _wrong_policy(policy, seal.kms.customer, accepted)
    if wrong is not None:
        detail, needed = wrong
        return Evidence.refused("key-policy", detail, needed=needed, facts=facts)
    return Evidence.held(
        "key-policy", "the policy that was given lets only the accepted AMIs open", facts
    )


def _wrong_document(found: Attestation, digest: str) -> tuple[str, str] | None:
    """Give (what is wrong, what would be needed) of an authentic document, None for nothing."""
    if found.kind != "nitro-enclave":
        # Whoever opens an artifact on an attested machine asks KMS with a document of its digest.
        return (
            f"a document of kind {found.kind}: it tells who opened the artifact, not who made it",
            "the document of the enclave that compiled it",
        )
    identity = bytes.fromhex(digest.removeprefix("sha384:"))
    if found.user_data is None or not hmac.compare_digest(found.user_data, identity):
        return (
            "the document's user_data is not this artifact's digest: it was made for another",
            "the document that was made for this artifact",
        )
    if found.debug:
        return (
            "the enclave ran in debug mode, where its parent reads its console",
            "an artifact of an enclave that was started without --debug-mode",
        )
    return None


def _wrong_policy(
    policy: KeyPolicy, customer: str, accepted: AcceptedMeasurements
) -> tuple[str, str] | None:
    """Give (what is wrong, what would be needed) of a key policy, None for nothing."""
    if not policy.is_of(customer):
        return (
            f"it does not deny to open for others than customer {customer}: another key's policy",
            "the policy of the key that the manifest names",
        )
    if not policy.opens_only_for(accepted):
        return (
            f"it does not deny to open on all but the accepted AMIs ({', '.join(accepted.amis)})",
            "a policy with a Deny for each NitroTPM register, as luma_constructs makes it at L3",
        )
    return None


def _refused_seal(seal: Seal, refusal: KeyServiceError) -> Evidence:
    """Tell a seal whose key was not released: a wrong wrapped key is worse than a closed door."""
    needed = refusal.remedy or "the key service's consent"
    give = Evidence.refused if refusal.reason == "context" else Evidence.missing
    return give("seal", refusal.message, needed=needed, facts=_seal_facts(seal))


def _seal_facts(seal: Seal) -> Facts:
    """Give what a manifest says of its key."""
    if seal.kms is None:
        return {"key source": "key file"}
    return {"key source": "KMS", "key": seal.kms.arn, "customer": seal.kms.customer}


def _document_facts(found: Attestation) -> Facts:
    """Give what an authentic document says of itself."""
    return {"module": found.module_id, "time": _utc(found.timestamp), "chain": found.subjects}


def _utc(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
