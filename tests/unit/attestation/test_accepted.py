"""What is accepted: every form that AWS writes, every limit from inside, and what is told of it."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import cbor2
import pytest
from cryptography import x509

from runtime.artifact.attestation import authenticate, verify_attestation
from runtime.artifact.attestation.document import parse_document
from tests.attestation_support import ABSENT, make_document, payload_fields
from tests.attestation_support.documents import MEASURED, indefinite, pcr_bank
from tests.attestation_support.pki import EPOCH, ca_extensions, key_usage

NONCE = bytes(range(32))


@pytest.fixture
def judge(pki, roots):
    """Make a document of fields and authenticate it."""

    def judge(**changes):
        document = make_document(pki, payload_fields(pki, **changes))
        return authenticate(document, roots=roots, at=EPOCH)

    return judge


def test_everything_that_a_document_says_is_told(pki, roots, policy):
    fields = payload_fields(pki, public_key=b"key", user_data=b"data", nonce=NONCE)
    found = verify_attestation(
        make_document(pki, fields),
        policy=policy,
        nonce=NONCE,
        user_data=b"data",
        roots=roots,
        at=EPOCH,
    )
    assert found.kind == "nitro-enclave"
    assert found.module_id == "i-0test-enc0test"
    assert found.timestamp == EPOCH
    assert found.pcrs == pcr_bank(MEASURED)
    assert (found.public_key, found.user_data, found.nonce) == (b"key", b"data", NONCE)
    assert found.subjects == (
        "CN=luma test root",
        "CN=regional.test",
        "CN=zonal.test",
        "CN=instance.test",
        "CN=leaf.test",
    )
    assert not found.debug


def test_the_result_cannot_be_changed(judge):
    found = judge()
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.nonce = b""
    with pytest.raises(TypeError):
        found.pcrs[0] = bytes(48)


def test_a_tagged_document_is_accepted(pki, roots):
    assert authenticate(b"\xd2" + make_document(pki), roots=roots, at=EPOCH).timestamp == EPOCH


@pytest.mark.parametrize("whole", [True, False])
def test_maps_of_indefinite_length_are_accepted(whole, pki, roots):
    fields = payload_fields(pki)
    payload = indefinite(fields)
    if not whole:
        bank = cbor2.dumps(fields["pcrs"])
        payload = cbor2.dumps(fields).replace(bank, indefinite(fields["pcrs"]))
    found = authenticate(make_document(pki, payload=payload), roots=roots, at=EPOCH)
    assert found.pcrs == pcr_bank(MEASURED)


@pytest.mark.parametrize("absent", [ABSENT, None])
@pytest.mark.parametrize("name", ["public_key", "user_data", "nonce"])
def test_an_optional_field_may_be_absent_or_null(judge, name, absent):
    assert getattr(judge(**{name: absent}), name) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("module_id", "m"),
        ("module_id", "m" * 1024),
        ("module_id", "ü"),
        ("public_key", b"k"),
        ("public_key", bytes(1024)),
        ("user_data", b""),
        ("user_data", bytes(512)),
        ("nonce", b""),
        ("nonce", bytes(512)),
    ],
)
def test_the_limits_themselves_are_allowed(judge, name, value):
    assert getattr(judge(**{name: value}), name) == value


@pytest.mark.parametrize(
    "bank", [{0: b"\x01" * 48}, {31: b"\x01" * 48}, {i: bytes([i]) * 48 for i in range(32)}]
)
@pytest.mark.parametrize("kind", ["nitro-enclave", "nitrotpm"])
def test_one_to_32_measurements_are_read(judge, bank, kind):
    name = {"nitro-enclave": "pcrs", "nitrotpm": "nitrotpm_pcrs"}[kind]
    found = judge(**{"pcrs": ABSENT, name: bank})
    assert found.kind == kind
    assert found.pcrs == bank


@pytest.mark.parametrize(
    ("timestamp", "told"),
    [
        (1, datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)),
        (253402300799999, datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
    ],
)
def test_the_first_and_last_times_are_in_the_form(timestamp, told, pki):
    parsed = parse_document(make_document(pki, payload_fields(pki, timestamp=timestamp)))
    assert parsed.timestamp_ms == timestamp
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp) == told


def test_the_largest_document_is_read(pki):
    # A chain cannot hold these fillers, so only the form is judged. Each takes 3 bytes of head.
    fields = payload_fields(pki, user_data=bytes(512))
    room = 16384 - len(cbor2.dumps(fields))
    sizes = [700] * 17
    sizes.append(room - 17 * 703 - 3)
    fields["cabundle"] = [*pki.cabundle, *map(bytes, sizes)]
    payload = cbor2.dumps(fields)
    assert len(payload) == 16384
    parsed = parse_document(b"\xd2" + make_document(pki, payload=payload))
    assert len(parsed.cabundle) == 4 + len(sizes)


def test_a_leaf_needs_no_basic_constraints(pki, roots):
    leaf = pki.with_leaf(EPOCH, extensions=((key_usage("digital_signature"), True),))
    assert authenticate(make_document(leaf), roots=roots, at=EPOCH).timestamp == EPOCH


def test_an_unknown_extension_that_is_not_critical_is_accepted(pki, roots):
    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
    extensions = (*ca_extensions(1), (unknown, False))
    made = pki.with_ca(2, EPOCH, extensions=extensions)
    assert authenticate(make_document(made), roots=roots, at=EPOCH).timestamp == EPOCH


def test_a_longer_path_than_needed_is_accepted(pki, roots):
    made = pki.with_ca(1, EPOCH, extensions=ca_extensions(7))
    made = made.with_ca(2, EPOCH, extensions=ca_extensions(None))
    assert authenticate(make_document(made), roots=roots, at=EPOCH).timestamp == EPOCH


@pytest.mark.parametrize(
    ("first", "last"), [(EPOCH, EPOCH + timedelta(days=1)), (EPOCH - timedelta(days=1), EPOCH)]
)
def test_the_ends_of_validity_belong_to_it(first, last, pki, roots):
    made = pki.with_leaf(EPOCH, first=first, last=last).with_ca(2, EPOCH, first=first, last=last)
    assert authenticate(make_document(made), roots=roots, at=EPOCH).timestamp == EPOCH


def test_a_root_alone_may_issue_the_leaf(pki, roots):
    leaf = pki.with_leaf(EPOCH, issuer=pki.names[0], signer=pki.keys[0])
    fields = payload_fields(leaf, cabundle=[pki.cabundle[0]])
    found = authenticate(make_document(leaf, fields), roots=roots, at=EPOCH)
    assert found.subjects == ("CN=luma test root", "CN=leaf.test")
