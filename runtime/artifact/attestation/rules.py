"""The rules of an attestation document, each with a stable name.

An `AttestationError` carries the name of the rule that was broken, so that a caller, a log line or
a script can tell refusals apart without reading messages. `docs/reference/attestation.md` says
what each one asks, and a test holds that table, this list and the tests of each rule together.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Rule"]


class Rule(StrEnum):
    """What a document, or a caller's demand, can break."""

    SIZE = "document.size"
    CBOR_ITEM = "cbor.item"
    CBOR_END = "cbor.end"
    CBOR_TRAILING = "cbor.trailing"
    CBOR_DEPTH = "cbor.depth"
    CBOR_KEY = "cbor.key"
    CBOR_DUPLICATE = "cbor.duplicate"
    COSE_FORM = "cose.form"
    COSE_PROTECTED = "cose.protected"
    COSE_UNPROTECTED = "cose.unprotected"
    COSE_PAYLOAD = "cose.payload"
    COSE_SIGNATURE = "cose.signature"
    FORM = "payload.form"
    KIND = "payload.kind"
    MISSING = "payload.missing"
    UNKNOWN = "payload.unknown"
    MODULE_ID = "payload.module_id"
    DIGEST = "payload.digest"
    TIMESTAMP = "payload.timestamp"
    PCRS = "payload.pcrs"
    CERTIFICATE = "payload.certificate"
    CABUNDLE = "payload.cabundle"
    PUBLIC_KEY = "payload.public_key"
    USER_DATA = "payload.user_data"
    NONCE = "payload.nonce"
    ROOT = "chain.root"
    CHAIN_DER = "chain.der"
    CHAIN_KEY = "chain.key"
    CHAIN_ALGORITHM = "chain.algorithm"
    CHAIN_EXTENSION = "chain.extension"
    CHAIN_VALIDITY = "chain.validity"
    CHAIN_CA = "chain.ca"
    CHAIN_PATH_LENGTH = "chain.path_length"
    CHAIN_KEY_USAGE = "chain.key_usage"
    CHAIN_ISSUER = "chain.issuer"
    SIGNATURE = "signature"
    AGE = "fresh.age"
    CLOCK = "fresh.clock"
    FRESH_NONCE = "fresh.nonce"
    BOUND_USER_DATA = "bound.user_data"
    DEBUG = "measured.debug"
    MEASURED_KIND = "measured.kind"
    MEASURED_PCR = "measured.pcr"
    POLICY = "policy"
    ROOTS = "roots"
    MOMENT = "moment"
