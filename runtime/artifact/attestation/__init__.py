"""Attestation documents of AWS Nitro Enclaves and NitroTPM: verified, or refused with a reason.

    asked = secrets.token_bytes(32)             # sent to the other side, which asks its hardware
    policy = PcrPolicy.of("nitro-enclave", {0: [pcr0_hex]})
    found = verify_attestation(document, policy=policy, nonce=asked)
    found.public_key                            # now encrypt to it

`docs/reference/attestation.md` lists every rule. Never seen here: a live NSM, NitroTPM or KMS.
"""

from runtime.artifact.attestation.document import Kind
from runtime.artifact.attestation.measurements import PcrPolicy
from runtime.artifact.attestation.roots import PRODUCTION_ROOTS, TrustRoots
from runtime.artifact.attestation.rules import Rule
from runtime.artifact.attestation.verify import (
    Attestation,
    Freshness,
    Moment,
    authenticate,
    verify_attestation,
)

__all__ = [
    "PRODUCTION_ROOTS",
    "Attestation",
    "Freshness",
    "Kind",
    "Moment",
    "PcrPolicy",
    "Rule",
    "TrustRoots",
    "authenticate",
    "verify_attestation",
]
