"""Documents as QEMU's security module gives them: refused as they are, judged when signed again."""

from datetime import UTC, datetime

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from enclave_image.service.protocol import Connection, Deadline
from enclave_image.service.session import Trust, open_session
from runtime.artifact.attestation import PRODUCTION_ROOTS, PcrPolicy, verify_attestation
from runtime.spec.errors import AttestationError
from tests.attestation_support import Pki, SoftwareNsm
from tests.e2e.boot.emulated_module import (
    document_fields,
    judging_signed_again,
    measured_pcrs,
    signed_again,
)
from tests.e2e.boot.tools import BootError
from tests.support.compile_service import PATIENCE_S, running

MEASURED = {0: b"\x20" * 48, 1: b"\x21" * 48, 2: b"\x22" * 48}


class EmulatedModule:
    """Attests as QEMU does: algorithm -1, zeros for signature and certificates."""

    def __init__(self):
        self.module = SoftwareNsm(measured=MEASURED)

    def attestation(self, *, user_data=None, nonce=None, public_key=None):
        signed = self.module.attest(user_data=user_data, nonce=nonce, public_key=public_key)
        fields = cbor2.loads(cbor2.loads(signed)[2])
        fields |= {"certificate": bytes(64), "cabundle": [bytes(64)]}
        return cbor2.dumps([cbor2.dumps({1: -1}), {}, cbor2.dumps(fields), bytes(64)])


@pytest.fixture(scope="module")
def key():
    return rsa.generate_private_key(public_exponent=65537, key_size=3072)


@pytest.fixture(scope="module")
def pki():
    return Pki.create(datetime.now(UTC))


def policy(measured):
    return PcrPolicy.of(
        "nitro-enclave", {number: [value.hex()] for number, value in measured.items()}
    )


def session_with(running_service, trust):
    with Connection(
        running_service.connect(), deadline=Deadline.after(PATIENCE_S), idle_s=PATIENCE_S
    ) as connection:
        return open_session(connection, trust)[1].attestation


def test_production_refuses_such_a_document():
    with pytest.raises(AttestationError):
        verify_attestation(EmulatedModule().attestation(), policy=policy(MEASURED), nonce=None)


def test_the_clients_own_rules_judge_it_when_it_is_signed_again(key, pki):
    with running(key, attester=EmulatedModule()) as service, judging_signed_again(pki) as roots:
        judged = session_with(service, Trust(policy=policy(MEASURED), roots=roots))
        assert judged is not None
        other = MEASURED | {0: b"\x2f" * 48}
        with pytest.raises(AttestationError, match="PCR0"):
            session_with(service, Trust(policy=policy(other), roots=roots))
        with pytest.raises(AttestationError):
            session_with(service, Trust(policy=policy(MEASURED), roots=PRODUCTION_ROOTS))


def test_outside_of_the_block_it_is_refused_again(key, pki):
    with judging_signed_again(pki) as roots:
        pass
    with running(key, attester=EmulatedModule()) as service, pytest.raises(AttestationError):
        session_with(service, Trust(policy=policy(MEASURED), roots=roots))


def test_the_pcrs_are_those_of_the_document_whoever_signed_it(pki):
    document = EmulatedModule().attestation()
    expected = {f"PCR{number}": value.hex() for number, value in MEASURED.items()}
    assert measured_pcrs(document) == expected | {"PCR8": bytes(48).hex()}
    assert measured_pcrs(signed_again(document, pki)) == measured_pcrs(document)


def test_signing_again_changes_certificates_alone(pki):
    before = document_fields(EmulatedModule().attestation(nonce=b"n", user_data=b"u"))
    after = document_fields(signed_again(cbor2.dumps([b"", {}, cbor2.dumps(before), b""]), pki))
    changed = {"certificate", "cabundle"}
    assert {name for name in before if before[name] != after[name]} == changed


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", cbor2.dumps([]), cbor2.dumps([b"", {}, b"\xff", b""]), cbor2.dumps(
        [b"", {}, cbor2.dumps({"pcrs": 1}), b""]
    )],
)  # fmt: skip
def test_anything_else_is_no_document(data):
    with pytest.raises(BootError, match="attestation document"):
        document_fields(data)
