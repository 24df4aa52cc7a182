"""Verification of an attestation document, in this order; the first broken rule ends it.

1. Size and form (`document`, `cbor`): nothing is believed yet.
2. Time: a live document must be fresh. Its own time may not be older than `max_age_s` and not
   further ahead of this host's clock than `max_ahead_s`, since clocks of enclaves drift.
3. Chain (`chain`): a trusted root, then each certificate down to the leaf, all valid at the later
   of the two clocks. So a clock that is a little behind does not refuse a leaf that was made a
   second ago, and never makes a certificate live longer.
4. The signature, by the leaf's key, over the payload bytes as they were received.
5. What the caller asks: his nonce, in constant time; `user_data`; no debug mode; his PCR policy.

`authenticate` ends after 4 and tells only that Nitro hardware made the document, of whatever
image. `verify_attestation` is the whole.

An archived document, such as the one that travels with an artifact, is judged at its own time
(`at="timestamp"`): the chain was valid then; no nonce or age can be asked for. Whoever could steal
a leaf's key could then date a document back, as with any signature without a time stamp.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from runtime.artifact._cose import fits
from runtime.artifact.attestation._refuse import refusal
from runtime.artifact.attestation.chain import verify_chain
from runtime.artifact.attestation.document import PCR_BYTES, Kind, parse_document
from runtime.artifact.attestation.measurements import PcrPolicy
from runtime.artifact.attestation.roots import PRODUCTION_ROOTS, TrustRoots
from runtime.artifact.attestation.rules import Rule
from runtime.spec.errors import AttestationError

__all__ = ["Attestation", "Freshness", "Moment", "authenticate", "verify_attestation"]

Moment = datetime | Literal["now", "timestamp"]
"""When a document is judged: now, at a given time of the caller's clock, or at its own time."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MIN_NONCE, _MAX_NONCE = 16, 512
_MAX_WINDOW_S = 86_400
_DEBUG_PCRS = (0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """How far a live document's time may be from this host's clock.

    Attributes:
        max_age_s: seconds that the document may be old.
        max_ahead_s: seconds that it may come from the future; an enclave's clock drifts by about
            6 s a week.

    Raises:
        AttestationError: `moment`: one of them is not from 0 to 86,400, a day.
    """

    max_age_s: float = 300.0
    max_ahead_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("max_age_s", "max_ahead_s"):
            value = getattr(self, name)
            # Not a number compares as false with everything, and would accept any age.
            if not 0 <= value <= _MAX_WINDOW_S:
                raise refusal(
                    Rule.MOMENT, f"freshness.{name}", value, f"0 to {_MAX_WINDOW_S} seconds"
                )


_DEFAULT_FRESHNESS = Freshness()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """What an authentic document says.

    Attributes:
        kind: "nitro-enclave" or "nitrotpm".
        module_id: name of the NSM or NitroTPM, with the instance's id in it.
        timestamp: when it was made, UTC.
        pcrs: the locked measurements, 48 bytes each, by index; read only.
        public_key: what the attested side put there, or None: a DER SubjectPublicKeyInfo where a
            KMS answer is to be encrypted to it, but nothing that this package judges.
        user_data: likewise free bytes, or None.
        nonce: likewise.
        subjects: of the chain's certificates, root first, the leaf last.
    """

    kind: Kind
    module_id: str
    timestamp: datetime
    pcrs: Mapping[int, bytes]
    public_key: bytes | None
    user_data: bytes | None
    nonce: bytes | None
    subjects: tuple[str, ...]

    @property
    def debug(self) -> bool:
        """Whether an enclave runs, or may run, in debug mode: it measures zeros then."""
        if self.kind != "nitro-enclave":
            return False
        return any(self.pcrs.get(i, bytes(PCR_BYTES)) == bytes(PCR_BYTES) for i in _DEBUG_PCRS)


def verify_attestation(
    document: bytes,
    *,
    policy: PcrPolicy,
    nonce: bytes | None,
    user_data: bytes | None = None,
    roots: TrustRoots = PRODUCTION_ROOTS,
    at: Moment = "now",
    freshness: Freshness = _DEFAULT_FRESHNESS,
) -> Attestation:
    """Verify a document: authentic, fresh, bound to the caller's request, of an accepted image.

    Args:
        document: its bytes, from anywhere.
        policy: the accepted measurements.
        nonce: the 16 to 512 random bytes that the caller sent for this document; None only for an
            archived one.
        user_data: what the document must hold as user_data; None for whatever it holds.
        roots: the trusted roots. Default: AWS's.
        at: when it is judged; "timestamp" for an archived document.
        freshness: the window of a live document.

    Raises:
        AttestationError: any rule is broken; its `rule` tells which.
    """
    _check_asked_nonce(nonce, archived=at == "timestamp")
    found = authenticate(document, roots=roots, at=at, freshness=freshness)
    if nonce is not None:
        _check_bound(Rule.FRESH_NONCE, "payload.nonce", found.nonce, nonce)
    if user_data is not None:
        _check_bound(Rule.BOUND_USER_DATA, "payload.user_data", found.user_data, user_data)
    if found.debug:
        zeros = [f"PCR{i}" for i in _DEBUG_PCRS if not any(found.pcrs.get(i, b""))]
        raise refusal(
            Rule.DEBUG,
            "payload.pcrs",
            zeros,
            "measurements that are not zero",
            remedy="the enclave runs in debug mode, where its parent reads its console; start it "
            "without --debug-mode",
        )
    policy.check(found.kind, found.pcrs)
    return found


def authenticate(
    document: bytes,
    *,
    roots: TrustRoots = PRODUCTION_ROOTS,
    at: Moment = "now",
    freshness: Freshness = _DEFAULT_FRESHNESS,
) -> Attestation:
    """Verify that a trusted root's hardware made a document, and when; of *any* image, debug too.

    Args:
        document: as `verify_attestation`.
        roots: likewise.
        at: likewise.
        freshness: likewise.

    Raises:
        AttestationError: a rule of `document`, `cbor`, `cose`, `payload`, `fresh`, `chain` or
            `signature` is broken.
    """
    parsed = parse_document(document)
    timestamp = _EPOCH + timedelta(milliseconds=parsed.timestamp_ms)
    moment = _judged_at(timestamp, at, freshness)
    chain = verify_chain(parsed.certificate, parsed.cabundle, roots=roots, moment=moment)
    if not fits(parsed.payload, parsed.signature, chain.key):
        raise AttestationError(
            "document.signature: not made by the key of payload.certificate over this payload",
            rule=Rule.SIGNATURE,
            remedy="the document was changed, or put together from parts of others",
        )
    return Attestation(
        kind=parsed.kind,
        module_id=parsed.module_id,
        timestamp=timestamp,
        pcrs=parsed.pcrs,
        public_key=parsed.public_key,
        user_data=parsed.user_data,
        nonce=parsed.nonce,
        subjects=chain.subjects,
    )


def _judged_at(timestamp: datetime, at: Moment, freshness: Freshness) -> datetime:
    """Give the time at which the chain must be valid; refuse a live document that is not fresh."""
    if at == "timestamp":
        return timestamp
    now = datetime.now(UTC) if at == "now" else at
    if not isinstance(now, datetime) or now.tzinfo is None:
        raise refusal(Rule.MOMENT, "at", at, "'now', 'timestamp' or a datetime with a time zone")
    age_s = (now - timestamp).total_seconds()
    if age_s > freshness.max_age_s:
        raise refusal(
            Rule.AGE,
            "payload.timestamp",
            timestamp.isoformat(),
            f"at most {freshness.max_age_s:g} s before {now.isoformat()}",
            remedy="ask for a new document",
        )
    if -age_s > freshness.max_ahead_s:
        raise refusal(
            Rule.CLOCK,
            "payload.timestamp",
            timestamp.isoformat(),
            f"at most {freshness.max_ahead_s:g} s after {now.isoformat()}",
            remedy="set the clock of this host",
        )
    return max(now, timestamp)


def _check_asked_nonce(nonce: bytes | None, *, archived: bool) -> None:
    """Refuse a caller's demand that would let an old document pass for a new one."""
    if nonce is None and archived:
        return
    if not isinstance(nonce, bytes) or not _MIN_NONCE <= len(nonce) <= _MAX_NONCE:
        raise refusal(
            Rule.FRESH_NONCE,
            "nonce",
            nonce,
            f"{_MIN_NONCE} to {_MAX_NONCE} random bytes that were sent for this document",
        )


def _check_bound(rule: Rule, where: str, found: bytes | None, asked: bytes) -> None:
    """Compare in constant time."""
    if found is None or not hmac.compare_digest(found, asked):
        raise refusal(rule, where, found, f"the {len(asked)} bytes that were asked for")
