"""What is refused: one case or more for each rule, with the exact message."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import cbor2
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from tests.attestation_support import ABSENT, Pki, make_document, payload_fields
from tests.attestation_support.documents import indefinite, milliseconds, pcr_bank, sign
from tests.attestation_support.pki import EPOCH, ca_extensions, key_usage, new_key

SHORT = timedelta(seconds=1)


@dataclass(frozen=True)
class Case:
    """A document that breaks one rule.

    Attributes:
        name: unique.
        rule: the rule's name.
        build: makes the document.
        message: of the error, whole.
    """

    name: str
    rule: str
    build: Callable[[Pki], bytes]
    message: str


def with_field(**changes) -> Callable[[Pki], bytes]:
    """Give a maker of documents, rightly signed, with other fields."""
    return lambda pki: make_document(pki, payload_fields(pki, **changes))


def with_payload(payload: bytes) -> Callable[[Pki], bytes]:
    """Give a maker of documents, rightly signed, with this payload."""
    return lambda pki: make_document(pki, payload=payload)


def with_envelope(**changes) -> Callable[[Pki], bytes]:
    """Give a maker of documents with another envelope."""
    return lambda pki: make_document(pki, **changes)


def raw(document: bytes) -> Callable[[Pki], bytes]:
    """Give a maker of these bytes."""
    return lambda _: document


CBOR = [
    Case(
        "too-large",
        "document.size",
        raw(b"\x00" * 16513),
        "document: 16513 bytes are not allowed; expected at most 16512",
    ),
    Case(
        "too-large-with-its-tag",
        "document.size",
        raw(b"\xd2" + b"\x00" * 16512),
        "document: 16513 bytes are not allowed; expected at most 16512",
    ),
    Case(
        "empty",
        "cbor.end",
        raw(b""),
        "document: 1 bytes asked at byte 0 are not there; expected whole CBOR within 0 bytes",
    ),
    Case(
        "only-a-tag",
        "cbor.end",
        raw(b"\xd2"),
        "document: 1 bytes asked at byte 0 are not there; expected whole CBOR within 0 bytes",
    ),
    Case(
        "cut-string",
        "cbor.end",
        raw(b"\x81\x44\xa1"),
        "document: 4 bytes asked at byte 2 are not there; expected whole CBOR within 3 bytes",
    ),
    Case(
        "huge-string",
        "cbor.end",
        raw(b"\x84\x5b\xff\xff\xff\xff\xff\xff\xff\xff" + b"\x00" * 4),
        "document: 18446744073709551615 bytes asked at byte 10 are not there; "
        "expected whole CBOR within 14 bytes",
    ),
    Case(
        "huge-array",
        "cbor.end",
        raw(b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff\x00"),
        "document: 9223372036854775807 CBOR items announced at byte 9 are not there; "
        "expected at most 1",
    ),
    Case(
        "huge-map",
        "cbor.end",
        raw(b"\xbb\x7f\xff\xff\xff\xff\xff\xff\xff\x00"),
        "document: 18446744073709551614 CBOR items announced at byte 9 are not there; "
        "expected at most 1",
    ),
    Case(
        "array-of-one-more-item",
        "cbor.end",
        raw(b"\x82\x00"),
        "document: 2 CBOR items announced at byte 1 are not there; expected at most 1",
    ),
    Case(
        "map-of-half-a-pair-more",
        "cbor.end",
        raw(b"\xa1\x00"),
        "document: 2 CBOR items announced at byte 1 are not there; expected at most 1",
    ),
    Case(
        "open-map-without-end",
        "cbor.end",
        with_payload(b"\xbf\x00\x00"),
        "payload: 1 bytes asked at byte 3 are not there; expected whole CBOR within 3 bytes",
    ),
    Case(
        "trailing",
        "cbor.trailing",
        lambda pki: make_document(pki) + b"\x00\x00",
        "document: 2 bytes follow the CBOR value; expected none",
    ),
    Case(
        "trailing-in-payload",
        "cbor.trailing",
        with_payload(b"\xa0\xa0"),
        "payload: 1 bytes follow the CBOR value; expected none",
    ),
    Case(
        "deep-array",
        "cbor.depth",
        raw(b"\x81" * 5 + b"\x00"),
        "document: CBOR nested deeper than 4 at byte 5",
    ),
    Case(
        "deep-map",
        "cbor.depth",
        raw(b"\xa1\x00" * 5 + b"\x00"),
        "document: CBOR nested deeper than 4 at byte 9",
    ),
    Case(
        "deep-open-map",
        "cbor.depth",
        with_payload(b"\xbf\x00" * 5 + b"\x00" + b"\xff" * 5),
        "payload: CBOR nested deeper than 4 at byte 9",
    ),
    Case(
        "very-deep",
        "cbor.depth",
        raw(b"\x81" * 16000 + b"\x00"),
        "document: CBOR nested deeper than 4 at byte 5",
    ),
    Case(
        "duplicate-key",
        "cbor.duplicate",
        with_payload(b"\xa2\x61a\x00\x61a\x01"),
        "payload: the CBOR map key 'a' at byte 4 is there twice; expected each key once",
    ),
    Case(
        "duplicate-key-in-open-map",
        "cbor.duplicate",
        with_payload(b"\xbf\x61a\x00\x61a\x01\xff"),
        "payload: the CBOR map key 'a' at byte 4 is there twice; expected each key once",
    ),
    Case(
        "duplicate-pcr",
        "cbor.duplicate",
        with_payload(b"\xa1\x64pcrs\xa2\x05\x00\x05\x00"),
        "payload: the CBOR map key 5 at byte 9 is there twice; expected each key once",
    ),
    Case(
        "key-of-bytes",
        "cbor.key",
        with_payload(b"\xa1\x41a\x00"),
        "payload: the CBOR map key at byte 1 is a bytes; expected text or an integer",
    ),
    Case(
        "key-of-array",
        "cbor.key",
        with_payload(b"\xa1\x80\x00"),
        "payload: the CBOR map key at byte 1 is a list; expected text or an integer",
    ),
    Case(
        "deep-key",
        "cbor.depth",
        with_payload(b"\xa1\x81\x81\x81\x81\x00\x00"),
        "payload: CBOR nested deeper than 4 at byte 5",
    ),
    Case(
        "key-of-null",
        "cbor.key",
        with_payload(b"\xa1\xf6\x00"),
        "payload: the CBOR map key at byte 1 is a NoneType; expected text or an integer",
    ),
    Case(
        "key-of-bool",
        "cbor.key",
        with_payload(b"\xa1\xf5\x00"),
        "payload: the CBOR map key at byte 1 is a bool; expected text or an integer",
    ),
    *(
        Case(
            f"item-{name}",
            "cbor.item",
            raw(item),
            f"document: the CBOR item 0x{item[at]:02x} at byte {at} is not allowed; expected "
            "integers, text, bytes, arrays, maps, null, true or false",
        )
        for name, item, at in (
            ("tag-17", b"\xd1\x80", 0),
            ("tag-18-twice", b"\xd2\xd2\x80", 0),
            ("tag-of-date", b"\xc0\x60", 0),
            ("float-16", b"\xf9\x00\x00", 0),
            ("float-64", b"\xfb" + bytes(8), 0),
            ("undefined", b"\xf7", 0),
            ("simple-19", b"\xf3", 0),
            ("break-alone", b"\xff", 0),
            ("break-in-array", b"\x81\xff", 1),
            ("break-for-value", b"\xa1\x00\xff", 2),
            ("open-map-in-the-envelope", b"\xbf\xff", 0),
            ("open-array", b"\x9f\xff", 0),
            ("open-bytes", b"\x5f\x41a\xff", 0),
            ("open-text", b"\x7f\x61a\xff", 0),
            ("open-integer", b"\x1f", 0),
            ("reserved-28", b"\x1c", 0),
            ("reserved-30", b"\x5e", 0),
        )
    ),
    *(
        Case(
            f"longer-form-{size}",
            "cbor.item",
            raw(head),
            f"document: the CBOR argument {value} at byte 0 takes {size} bytes; "
            "expected the shortest form",
        )
        for size, value, head in (
            (1, 23, b"\x18\x17"),
            (2, 255, b"\x19\x00\xff"),
            (4, 65535, b"\x1a\x00\x00\xff\xff"),
            (8, 4294967295, b"\x1b\x00\x00\x00\x00\xff\xff\xff\xff"),
        )
    ),
    Case(
        "text-not-utf-8",
        "cbor.item",
        raw(b"\x62\xc3\x28"),
        "document: the CBOR text at byte 1 is not UTF-8",
    ),
]

_FORM = "is not allowed; expected COSE_Sign1, an array of four"
_PROTECTED = "expected a1013822, which is {alg: ES384}"

COSE = [
    Case("number", "cose.form", raw(b"\x05"), f"document: 5 {_FORM}"),
    Case("array-of-three", "cose.form", raw(b"\x83\x00\x00\x00"), f"document: [0, 0, 0] {_FORM}"),
    Case(
        "array-of-five",
        "cose.form",
        raw(b"\x85\x00\x00\x00\x00\x00"),
        f"document: [0, 0, 0, 0, 0] {_FORM}",
    ),
    Case(
        "map-of-four",
        "cose.form",
        raw(b"\xa2\x00\x00\x01\x01"),
        f"document: {{0: 0, 1: 1}} {_FORM}",
    ),
    Case(
        "es256",
        "cose.protected",
        with_envelope(protected=b"\xa1\x01\x26"),
        f"document.protected: 'a10126' is not allowed; {_PROTECTED}",
    ),
    Case(
        "qemu-none",
        "cose.protected",
        with_envelope(protected=b"\xa1\x01\x20", signature=bytes(64)),
        f"document.protected: 'a10120' is not allowed; {_PROTECTED}",
    ),
    Case(
        "one-header-more",
        "cose.protected",
        with_envelope(protected=b"\xa2\x01\x38\x22\x04\x40"),
        f"document.protected: 'a20138220440' is not allowed; {_PROTECTED}",
    ),
    Case(
        "protected-map",
        "cose.protected",
        with_envelope(protected={1: -35}),
        f"document.protected: {{1: -35}} is not allowed; {_PROTECTED}",
    ),
    Case(
        "unprotected-header",
        "cose.unprotected",
        with_envelope(unprotected={4: b"k"}),
        "document.unprotected: {4: b'k'} is not allowed; expected an empty map",
    ),
    Case(
        "unprotected-array",
        "cose.unprotected",
        with_envelope(unprotected=[]),
        "document.unprotected: [] is not allowed; expected an empty map",
    ),
    Case(
        "detached-payload",
        "cose.payload",
        raw(cbor2.dumps([b"\xa1\x01\x38\x22", {}, None, bytes(96)])),
        "document.payload: None is not allowed; expected 1 to 16384 bytes",
    ),
    Case(
        "empty-payload",
        "cose.payload",
        with_payload(b""),
        "document.payload: 0 bytes is not allowed; expected 1 to 16384 bytes",
    ),
    Case(
        "large-payload",
        "cose.payload",
        with_payload(bytes(16385)),
        "document.payload: 16385 bytes is not allowed; expected 1 to 16384 bytes",
    ),
    Case(
        "short-signature",
        "cose.signature",
        with_envelope(signature=bytes(95)),
        "document.signature: 95 bytes is not allowed; expected 96 bytes",
    ),
    Case(
        "long-signature",
        "cose.signature",
        with_envelope(signature=bytes(97)),
        "document.signature: 97 bytes is not allowed; expected 96 bytes",
    ),
    Case(
        "signature-of-text",
        "cose.signature",
        with_envelope(signature="x" * 96),
        f"document.signature: '{'x' * 59}... is not allowed; expected 96 bytes",
    ),
]


def _field_cases():
    rules = {
        "module_id": (
            "expected text of 1 to 1024 characters",
            [("", "''"), (b"i", "1 bytes"), ("m" * 1025, "'" + "m" * 59 + "...")],
        ),
        "digest": ("expected 'SHA384'", [("SHA256", "'SHA256'"), (384, "384"), ("", "''")]),
        "timestamp": (
            "expected milliseconds since 1970 from 1 to 253402300799999",
            [
                (0, "0"),
                (-1, "-1"),
                (True, "True"),
                ("1", "'1'"),
                (253402300800000, "253402300800000"),
            ],
        ),
        "certificate": (
            "expected 1 to 1024 bytes",
            [(b"", "0 bytes"), (bytes(1025), "1025 bytes"), (None, "None"), ("x", "'x'")],
        ),
        "cabundle": (
            "expected an array of certificates",
            [([], "[]"), (b"x", "1 bytes"), ({}, "{}"), (None, "None")],
        ),
        "public_key": (
            "expected 1 to 1024 bytes",
            [(b"", "0 bytes"), (bytes(1025), "1025 bytes"), ("k", "'k'")],
        ),
        "user_data": ("expected 0 to 512 bytes", [(bytes(513), "513 bytes"), ("u", "'u'")]),
        "nonce": ("expected 0 to 512 bytes", [(bytes(513), "513 bytes"), (7, "7")]),
    }
    for name, (allowed, values) in rules.items():
        for i, (value, shown) in enumerate(values):
            message = f"payload.{name}: {shown} is not allowed; {allowed}"
            yield Case(f"{name}-{i}", f"payload.{name}", with_field(**{name: value}), message)


def _missing_cases():
    for name in ("module_id", "digest", "timestamp", "certificate", "cabundle"):
        message = f"payload.{name}: missing; expected a field of every document"
        yield Case(f"no-{name}", "payload.missing", with_field(**{name: ABSENT}), message)


_ENTRIES = "is not allowed; expected a map of 1 to 32 entries"


def _pcr_cases(name: str):
    values = [
        ({}, f"payload.{name}: {{}} {_ENTRIES}"),
        ([], f"payload.{name}: [] {_ENTRIES}"),
        (None, f"payload.{name}: None {_ENTRIES}"),
        (
            dict.fromkeys(range(33), 0),
            f"payload.{name}: {str(dict.fromkeys(range(33), 0))[:60]}... {_ENTRIES}",
        ),
        (
            {32: bytes(48)},
            f"payload.{name}: 32 is not allowed; expected indices from 0 to 31",
        ),
        ({-1: bytes(48)}, f"payload.{name}: -1 is not allowed; expected indices from 0 to 31"),
        ({"0": bytes(48)}, f"payload.{name}: '0' is not allowed; expected indices from 0 to 31"),
        ({3: bytes(47)}, f"payload.{name}[3]: 47 bytes is not allowed; expected 48 bytes"),
        ({3: bytes(64)}, f"payload.{name}[3]: 64 bytes is not allowed; expected 48 bytes"),
        ({3: "0" * 48}, f"payload.{name}[3]: '{'0' * 48}' is not allowed; expected 48 bytes"),
    ]
    for i, (value, message) in enumerate(values):
        changes = {"pcrs": ABSENT, name: value}
        yield Case(f"{name}-{i}", "payload.pcrs", with_field(**changes), message)


PAYLOAD = [
    Case(
        "array",
        "payload.form",
        with_payload(b"\x80"),
        "payload: [] is not allowed; expected a map",
    ),
    *_field_cases(),
    *_missing_cases(),
    *_pcr_cases("pcrs"),
    *_pcr_cases("nitrotpm_pcrs"),
    Case(
        "empty-certificate-in-bundle",
        "payload.cabundle",
        lambda pki: make_document(pki, payload_fields(pki, cabundle=[pki.cabundle[0], b""])),
        "payload.cabundle[1]: 0 bytes is not allowed; expected 1 to 1024 bytes",
    ),
    Case(
        "large-certificate-in-bundle",
        "payload.cabundle",
        with_field(cabundle=[bytes(1025)]),
        "payload.cabundle[0]: 1025 bytes is not allowed; expected 1 to 1024 bytes",
    ),
    Case(
        "no-pcrs",
        "payload.kind",
        with_field(pcrs=ABSENT),
        "payload: [] is not allowed; expected exactly one of pcrs and nitrotpm_pcrs",
    ),
    Case(
        "both-kinds-of-pcrs",
        "payload.kind",
        with_field(nitrotpm_pcrs=pcr_bank({})),
        "payload: ['pcrs', 'nitrotpm_pcrs'] is not allowed; expected exactly one of pcrs and "
        "nitrotpm_pcrs",
    ),
    Case(
        "unknown-field",
        "payload.unknown",
        with_field(debug=True),
        "payload: 'debug' is not allowed; expected only the fields that this version knows",
    ),
    Case(
        "unknown-integer-field",
        "payload.unknown",
        lambda pki: make_document(pki, payload_fields(pki) | {1: 2}),
        "payload: 1 is not allowed; expected only the fields that this version knows",
    ),
]


def _ca(index: int, **changes) -> Callable[[Pki], bytes]:
    return lambda pki: make_document(pki.with_ca(index, EPOCH, **changes))


def _leaf(**changes) -> Callable[[Pki], bytes]:
    return lambda pki: make_document(pki.with_leaf(EPOCH, **changes))


def _span(first: datetime, last: datetime, **more) -> dict:
    return {"first": first, "last": last} | more


def _validity(where: str, first: datetime, last: datetime) -> str:
    return (
        f"{where}.validity: '{EPOCH.isoformat()}' is not allowed; expected a time from "
        f"{first.isoformat()} to {last.isoformat()}"
    )


def _other_leaf_key(key) -> Callable[[Pki], bytes]:
    """Give a document whose leaf holds another kind of key; its signature is never reached."""
    return lambda pki: make_document(pki.with_leaf(EPOCH, public_key=key.public_key()))


def _swapped(pki: Pki) -> bytes:
    a, b, c, d = pki.cabundle
    return make_document(pki, payload_fields(pki, cabundle=[a, c, b, d]))


def _shorter(pki: Pki) -> bytes:
    return make_document(pki, payload_fields(pki, cabundle=list(pki.cabundle[:-1])))


def _leaf_as_issuer(pki: Pki) -> bytes:
    """A leaf's holder makes a leaf of its own: the oldest attack on chains."""
    key = new_key()
    forged = pki.with_leaf(
        EPOCH, issuer="leaf.test", signer=pki.leaf_key, public_key=key.public_key()
    )
    fields = payload_fields(forged, cabundle=[*pki.cabundle, pki.leaf])
    return make_document(forged, fields, key=key)


_NEXT_YEAR = datetime(2027, 7, 1, tzinfo=UTC)
_LAST_YEAR = datetime(2025, 7, 1, tzinfo=UTC)
_CA_USAGE = (key_usage("key_cert_sign"), True)
_NO_CA = "is not allowed; expected a critical one with ca true"
_UNKNOWN_OID = x509.ObjectIdentifier("1.2.3.4")
_UNKNOWN = x509.UnrecognizedExtension(_UNKNOWN_OID, b"\x05\x00")
_EXTENSIONS = "expected no critical one but basicConstraints and keyUsage"
_UNREADABLE = "expected X.509 v3 in DER"
_NOT_ISSUED = "expected its name and its signature"

CHAIN = [
    Case(
        "foreign-root",
        "chain.root",
        with_field(cabundle=[b"no root"]),
        f"payload.cabundle[0]: a root with SHA-256 {hashlib.sha256(b'no root').hexdigest()} is not "
        "allowed; expected a trusted one; production trusts AWS's Nitro root alone",
    ),
    Case(
        "garbage-issuer",
        "chain.der",
        lambda pki: make_document(
            pki, payload_fields(pki, cabundle=[pki.cabundle[0], b"\x30\x00"])
        ),
        f"payload.cabundle[1]: not a certificate that can be read (ValueError); {_UNREADABLE}",
    ),
    Case(
        "garbage-leaf",
        "chain.der",
        with_field(certificate=b"\x30\x03\x02\x01\x00"),
        f"payload.certificate: not a certificate that can be read (ValueError); {_UNREADABLE}",
    ),
    Case(
        "bytes-behind-leaf",
        "chain.der",
        lambda pki: make_document(pki, payload_fields(pki, certificate=pki.leaf + b"\x00")),
        f"payload.certificate: not a certificate that can be read (ValueError); {_UNREADABLE}",
    ),
    Case(
        "leaf-of-p256",
        "chain.key",
        _other_leaf_key(ec.generate_private_key(ec.SECP256R1())),
        "payload.certificate.key: 'ECPublicKey' is not allowed; expected a key on P-384",
    ),
    Case(
        "leaf-of-ed25519",
        "chain.key",
        _other_leaf_key(ed25519.Ed25519PrivateKey.generate()),
        "payload.certificate.key: 'Ed25519PublicKey' is not allowed; expected a key on P-384",
    ),
    Case(
        "issuer-of-p256",
        "chain.key",
        _ca(2, public_key=ec.generate_private_key(ec.SECP256R1()).public_key()),
        "payload.cabundle[2].key: 'ECPublicKey' is not allowed; expected a key on P-384",
    ),
    Case(
        "leaf-signed-with-sha256",
        "chain.algorithm",
        _leaf(algorithm=hashes.SHA256()),
        "payload.certificate.signature_algorithm: '1.2.840.10045.4.3.2' is not allowed; expected "
        "1.2.840.10045.4.3.3, ECDSA with SHA-384",
    ),
    Case(
        "issuer-signed-with-sha512",
        "chain.algorithm",
        _ca(1, algorithm=hashes.SHA512()),
        "payload.cabundle[1].signature_algorithm: '1.2.840.10045.4.3.4' is not allowed; expected "
        "1.2.840.10045.4.3.3, ECDSA with SHA-384",
    ),
    Case(
        "leaf-with-unknown-critical-extension",
        "chain.extension",
        _leaf(extensions=((key_usage("digital_signature"), True), (_UNKNOWN, True))),
        f"payload.certificate.extensions: '1.2.3.4' is not allowed; {_EXTENSIONS}",
    ),
    Case(
        "issuer-with-critical-name-constraints",
        "chain.extension",
        _ca(
            1,
            extensions=(
                *ca_extensions(2),
                (x509.NameConstraints([x509.DNSName("a.test")], None), True),
            ),
        ),
        f"payload.cabundle[1].extensions: '2.5.29.30' is not allowed; {_EXTENSIONS}",
    ),
    Case(
        "leaf-expired",
        "chain.validity",
        _leaf(**_span(_LAST_YEAR, EPOCH - SHORT)),
        _validity("payload.certificate", _LAST_YEAR, EPOCH - SHORT),
    ),
    Case(
        "leaf-not-yet-valid",
        "chain.validity",
        _leaf(**_span(EPOCH + SHORT, _NEXT_YEAR)),
        _validity("payload.certificate", EPOCH + SHORT, _NEXT_YEAR),
    ),
    *(
        Case(
            f"issuer-{i}-expired",
            "chain.validity",
            _ca(i, **_span(_LAST_YEAR, EPOCH - SHORT)),
            _validity(f"payload.cabundle[{i}]", _LAST_YEAR, EPOCH - SHORT),
        )
        for i in (1, 2, 3)
    ),
    *(
        Case(
            f"issuer-{i}-without-basic-constraints",
            "chain.ca",
            _ca(i, extensions=(_CA_USAGE,)),
            f"payload.cabundle[{i}].basicConstraints: 'absent' {_NO_CA}",
        )
        for i in (1, 2, 3)
    ),
    Case(
        "issuer-no-ca",
        "chain.ca",
        _ca(2, extensions=((x509.BasicConstraints(ca=False, path_length=None), True), _CA_USAGE)),
        f"payload.cabundle[2].basicConstraints: 'ca false' {_NO_CA}",
    ),
    Case(
        "issuer-constraints-not-critical",
        "chain.ca",
        _ca(3, extensions=ca_extensions(0, critical=False)),
        f"payload.cabundle[3].basicConstraints: 'not critical' {_NO_CA}",
    ),
    Case(
        "leaf-is-a-ca",
        "chain.ca",
        _leaf(
            extensions=(
                (x509.BasicConstraints(ca=True, path_length=None), True),
                (key_usage("digital_signature", "key_cert_sign"), True),
            )
        ),
        "payload.certificate.basicConstraints: 'ca true' is not allowed; expected no CA as leaf",
    ),
    Case(
        "leaf-issues-a-leaf",
        "chain.path_length",
        _leaf_as_issuer,
        "payload.cabundle[1].pathLenConstraint: 2 is not allowed; expected at least 3",
    ),
    *(
        Case(
            f"path-length-of-issuer-{i}",
            "chain.path_length",
            _ca(i, extensions=ca_extensions(2 - i)),
            f"payload.cabundle[{i}].pathLenConstraint: {2 - i} is not allowed; "
            f"expected at least {3 - i}",
        )
        for i in (1, 2)
    ),
    Case(
        "issuer-without-key-usage",
        "chain.key_usage",
        _ca(2, extensions=((x509.BasicConstraints(ca=True, path_length=1), True),)),
        "payload.cabundle[2].keyUsage: 'absent' is not allowed; expected keyCertSign",
    ),
    Case(
        "issuer-may-not-sign-certificates",
        "chain.key_usage",
        _ca(
            2,
            extensions=(
                (x509.BasicConstraints(ca=True, path_length=1), True),
                (key_usage("digital_signature"), True),
            ),
        ),
        "payload.cabundle[2].keyUsage: 'without keyCertSign' is not allowed; expected keyCertSign",
    ),
    Case(
        "leaf-without-key-usage",
        "chain.key_usage",
        _leaf(extensions=((x509.BasicConstraints(ca=False, path_length=None), True),)),
        "payload.certificate.keyUsage: 'absent' is not allowed; expected digitalSignature",
    ),
    Case(
        "leaf-may-not-sign",
        "chain.key_usage",
        _leaf(extensions=((key_usage("content_commitment"), True),)),
        "payload.certificate.keyUsage: 'without digitalSignature' is not allowed; "
        "expected digitalSignature",
    ),
    Case(
        "issuers-swapped",
        "chain.path_length",
        _swapped,
        "payload.cabundle[1].pathLenConstraint: 1 is not allowed; expected at least 2",
    ),
    Case(
        "issuer-left-out",
        "chain.issuer",
        _shorter,
        f"payload.certificate: not issued by payload.cabundle[2] (ValueError); {_NOT_ISSUED}",
    ),
    *(
        Case(
            f"issuer-{i}-signed-by-another",
            "chain.issuer",
            _ca(i, signer=new_key()),
            f"payload.cabundle[{i}]: not issued by payload.cabundle[{i - 1}] (InvalidSignature); "
            f"{_NOT_ISSUED}",
        )
        for i in (1, 2, 3)
    ),
    Case(
        "leaf-signed-by-another",
        "chain.issuer",
        _leaf(signer=new_key()),
        f"payload.certificate: not issued by payload.cabundle[3] (InvalidSignature); {_NOT_ISSUED}",
    ),
    Case(
        "leaf-names-another-issuer",
        "chain.issuer",
        _leaf(issuer="another.test"),
        f"payload.certificate: not issued by payload.cabundle[3] (ValueError); {_NOT_ISSUED}",
    ),
]

_UNSIGNED = "document.signature: not made by the key of payload.certificate over this payload"


def _other_payload(pki: Pki) -> bytes:
    """Give a document with the signature of another one."""
    fields = payload_fields(pki, user_data=b"changed")
    return make_document(
        pki, fields, signature=sign(cbor2.dumps(payload_fields(pki)), pki.leaf_key)
    )


def _halves_swapped(pki: Pki) -> bytes:
    payload = cbor2.dumps(payload_fields(pki))
    right = sign(payload, pki.leaf_key)
    return make_document(pki, payload=payload, signature=right[48:] + right[:48])


def _reencoded(pki: Pki) -> bytes:
    """Sign the definite form, send the indefinite one: equal values, other bytes."""
    fields = payload_fields(pki)
    return make_document(
        pki, payload=indefinite(fields), signature=sign(cbor2.dumps(fields), pki.leaf_key)
    )


SIGNATURE = [
    Case("zero-signature", "signature", with_envelope(signature=bytes(96)), _UNSIGNED),
    Case("ones-signature", "signature", with_envelope(signature=b"\xff" * 96), _UNSIGNED),
    Case(
        "signed-by-another-key", "signature", lambda p: make_document(p, key=new_key()), _UNSIGNED
    ),
    Case("payload-of-another", "signature", _other_payload, _UNSIGNED),
    Case("s-before-r", "signature", _halves_swapped, _UNSIGNED),
    Case("signed-in-another-form", "signature", _reencoded, _UNSIGNED),
]


def _at(seconds: float) -> Callable[[Pki], bytes]:
    return with_field(timestamp=milliseconds(EPOCH + timedelta(seconds=seconds)))


FRESH = [
    Case(
        "too-old",
        "fresh.age",
        _at(-300.001),
        "payload.timestamp: '2026-07-01T11:54:59.999000+00:00' is not allowed; expected at most "
        "300 s before 2026-07-01T12:00:00+00:00",
    ),
    Case(
        "from-the-future",
        "fresh.clock",
        _at(30.001),
        "payload.timestamp: '2026-07-01T12:00:30.001000+00:00' is not allowed; expected at most "
        "30 s after 2026-07-01T12:00:00+00:00",
    ),
]

ALL = [*CBOR, *COSE, *PAYLOAD, *CHAIN, *SIGNATURE, *FRESH]
"""Every case that `authenticate` refuses at `EPOCH` with the test's roots."""
