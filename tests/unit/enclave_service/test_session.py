"""Sessions: who is believed, and what a peer in the middle can do to records, which is nothing."""

from __future__ import annotations

import contextlib
import socket
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from enclave_image.nsm import Nsm
from enclave_image.service.errors import PeerGoneError, ServiceError
from enclave_image.service.protocol import VERSION, Connection, Deadline
from enclave_image.service.session import (
    Identity,
    Session,
    Trust,
    accept_session,
    open_session,
)
from runtime.artifact.attestation import PcrPolicy, TrustRoots, verify_attestation
from runtime.spec.errors import AttestationError
from tests.attestation_support import Pki, SoftwareNsm
from tests.attestation_support.documents import MEASURED
from tests.support.compile_service import PATIENCE_S, in_thread


@pytest.fixture
def nsm(pki):
    return SoftwareNsm(pki=pki)


@pytest.fixture(scope="module")
def trust(pki):
    policy = PcrPolicy.of("nitro-enclave", {0: [MEASURED[0].hex()], 8: [MEASURED[8].hex()]})
    return Trust(policy=policy, roots=TrustRoots.of_certificates([pki.cabundle[0]]))


def connections():
    """Give both ends of a connection."""
    return tuple(
        Connection(end, deadline=Deadline.after(PATIENCE_S), idle_s=PATIENCE_S)
        for end in socket.socketpair()
    )


class Attested:
    """The module with one thing changed about each document that it is asked for."""

    def __init__(self, nsm, **changes):
        self._nsm, self._changes = nsm, changes

    def attestation(self, **asked):
        return self._nsm.attest(**asked | self._changes)


def meet(identity: Identity, trust: Trust):
    """Give (the service's session, the client's, the service as the client sees it)."""
    ours, theirs = connections()

    def serve():
        try:
            return accept_session(theirs, identity, theirs.receive("hello"))
        except BaseException:
            theirs.close()
            raise

    joined = in_thread(serve)
    try:
        client, peer = open_session(ours, trust)
    except BaseException:
        ours.close()
        with pytest.raises(PeerGoneError):
            joined()
        raise
    return joined(), client, peer


def close(*sessions: Session) -> None:
    for session in sessions:
        session.connection.close()


def refused(identity, trust, rule: str) -> AttestationError:
    with pytest.raises(AttestationError) as caught:
        meet(identity, trust)
    assert caught.value.rule == rule
    return caught.value


def test_both_sides_of_an_attested_session_read_each_other(nsm, rsa_key, trust):
    identity = Identity(Nsm(nsm), key=rsa_key)
    service, client, peer = meet(identity, trust)
    client.send("request", number=1)
    assert service.receive("request") == ("request", {"kind": "request", "number": 1})
    service.send("progress", event={"stage": "lower"})
    service.send("progress", event={})
    assert client.receive("progress")[1]["event"] == {"stage": "lower"}
    assert client.receive("progress")[1]["event"] == {}
    assert peer.attestation is not None
    assert peer.attestation.pcrs[0] == MEASURED[0]
    assert peer.signer == identity.signing_key.public_key()
    close(service, client)


def test_a_local_process_is_believed_only_where_nothing_else_was_asked_for(rsa_key, trust):
    service, client, peer = meet(Identity(None, key=rsa_key), Trust())
    assert peer.attestation is None
    close(service, client)
    with pytest.raises(ServiceError, match="is no enclave; measurements were given"):
        meet(Identity(None, key=rsa_key), trust)


def test_an_enclave_is_not_believed_unjudged(nsm, rsa_key):
    with pytest.raises(ServiceError, match="no measurements were given"):
        meet(Identity(Nsm(nsm), key=rsa_key), Trust())


def test_another_image_is_refused(pki, rsa_key, trust):
    other = SoftwareNsm(pki=pki, measured=MEASURED | {0: b"\x20" * 48})
    refused(Identity(Nsm(other), key=rsa_key), trust, "measured.pcr")


def test_a_debug_enclave_is_refused(pki, rsa_key, trust):
    debug = SoftwareNsm(pki=pki, measured={3: b"\x13" * 48})
    refused(Identity(Nsm(debug), key=rsa_key), trust, "measured.debug")


def test_another_hierarchy_is_refused(rsa_key, trust):
    refused(Identity(Nsm(SoftwareNsm(pki=Pki.create())), key=rsa_key), trust, "chain.root")


def test_production_refuses_the_module_of_tests(nsm, rsa_key, trust):
    refused(Identity(Nsm(nsm), key=rsa_key), Trust(policy=trust.policy), "chain.root")


def test_a_replayed_document_is_refused(nsm, rsa_key, trust):
    identity = Identity(Nsm(nsm), key=rsa_key)
    old = identity.document(b"o" * 32)

    class Replay:
        """Gives the document that another client was given."""

        def attestation(self, **_asked):
            return old

    refused(Identity(Replay(), key=rsa_key), trust, "fresh.nonce")


def test_an_old_document_with_the_right_nonce_is_refused(pki, rsa_key, trust):
    slow = SoftwareNsm(pki=pki, clock=lambda: datetime.now(UTC) - timedelta(hours=1))
    refused(Identity(Nsm(slow), key=rsa_key), trust, "fresh.age")


def test_a_document_of_another_signing_key_is_refused(nsm, rsa_key, trust):
    attester = Attested(nsm, user_data=b"luma service signer 1 " + bytes(48))
    refused(Identity(attester, key=rsa_key), trust, "bound.user_data")


def test_a_document_of_another_session_key_is_refused(nsm, rsa_key, trust):
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    der = other.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    identity = Identity(Attested(nsm, public_key=der), key=rsa_key)
    with pytest.raises(ServiceError, match=r"attest.public_key: is not the key in the"):
        meet(identity, trust)


@pytest.mark.parametrize("name", ["public_key", "signer"])
@pytest.mark.parametrize("kind", ["junk", "other"])
def test_keys_of_another_kind_are_refused(rsa_key, name, kind):
    identity = Identity(None, key=rsa_key)
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    der = other.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    setattr(identity, name, b"junk" if kind == "junk" else der)
    ours, theirs = connections()
    joined = in_thread(lambda: accept_session(theirs, identity, theirs.receive("hello")))
    with pytest.raises(ServiceError, match=f"attest.{name}"):
        open_session(ours, Trust())
    ours.close()
    with contextlib.suppress(PeerGoneError):  # a signer is judged once the secret is on its way
        joined()
    theirs.close()


def test_a_secret_for_another_key_is_refused(rsa_key):
    ours, theirs = connections()
    identity = Identity(None, key=rsa_key)
    joined = in_thread(lambda: accept_session(theirs, identity, theirs.receive("hello")))
    ours.send("hello", version=VERSION, nonce=b"n" * 32)
    ours.receive("attest")
    ours.send("open", wrapped=b"\x01" * 384)
    with pytest.raises(ServiceError, match=r"open.wrapped") as caught:
        joined()
    assert caught.value.reason == "session"
    ours.close()
    theirs.close()


@pytest.mark.parametrize("version", [0, VERSION + 1, 1 << 20])
def test_another_version_is_refused_on_both_sides(rsa_key, version):
    with pytest.raises(ServiceError) as caught:
        accept_session(
            connections()[0],
            Identity(None, key=rsa_key),
            {"kind": "hello", "version": version, "nonce": b"n" * 32},
        )
    assert caught.value.reason == "version"
    ours, theirs = connections()
    theirs.send("attest", version=version, public_key=b"k", signer=b"s", document=None)
    with pytest.raises(ServiceError) as caught:
        open_session(ours, Trust())
    assert caught.value.reason == "version"
    assert f"expected {VERSION}" in caught.value.message
    ours.close()
    theirs.close()


@pytest.mark.parametrize("nonce", [b"", b"n" * 31, b"n" * 33, "n" * 32, None])
def test_a_nonce_of_another_form_is_refused(rsa_key, nonce):
    with pytest.raises(ServiceError, match=r"hello.nonce"):
        accept_session(
            connections()[0],
            Identity(None, key=rsa_key),
            {"kind": "hello", "version": VERSION, "nonce": nonce},
        )


@pytest.fixture
def between(rsa_key):
    """Give (service, client, connections that stand between the two sides)."""
    service, client, _ = meet(Identity(None, key=rsa_key), Trust())
    carried, taken = connections()
    direct = client.connection
    client.connection = carried
    yield service, client, taken, direct
    for connection in (carried, taken, direct):
        connection.close()
    close(service)


def does_not_open(service: Session) -> None:
    with pytest.raises(ServiceError, match="does not open") as caught:
        service.receive("chunk")
    assert caught.value.reason == "record"


def test_every_changed_bit_of_a_record_is_seen(between):
    service, client, taken, direct = between
    client.send("chunk", index=0, data=b"x")
    data = taken.receive("record")["data"]
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        direct.send("record", data=bytes(changed))
        does_not_open(service)
    direct.send("record", data=data)
    assert service.receive("chunk")[1]["data"] == b"x"


def test_swapped_repeated_and_dropped_records_are_seen(between):
    service, client, taken, direct = between
    records = []
    for index in range(3):
        client.send("chunk", index=index, data=b"x")
        records.append(taken.receive("record")["data"])
    direct.send("record", data=records[1])  # in another order
    does_not_open(service)
    direct.send("record", data=records[0])
    assert service.receive("chunk")[1]["index"] == 0
    direct.send("record", data=records[0])  # again
    does_not_open(service)
    direct.send("record", data=records[2])  # without the one before
    does_not_open(service)


def test_a_record_does_not_open_in_the_other_direction(between):
    service, _client, _taken, direct = between
    service.send("chunk", index=0)
    mirrored = direct.receive("record")["data"]
    direct.send("record", data=mirrored)
    does_not_open(service)


def test_a_record_of_another_session_does_not_open(between, rsa_key):
    service, _, _, direct = between
    other_service, other_client, _ = meet(Identity(None, key=rsa_key), Trust())
    other_client.send("chunk", index=0, data=b"x")
    direct.send("record", data=other_service.connection.receive("record")["data"])
    does_not_open(service)
    close(other_service, other_client)


def test_keys_depend_on_all_that_was_said(nsm, rsa_key, trust):
    """A peer in the middle who changes what the client may not check changes the keys."""
    ours, to_client = connections()
    to_service, theirs = connections()
    identity = Identity(None, key=rsa_key)

    def carry():
        hello = to_client.receive("hello")
        to_service.send(**hello | {"nonce": b"m" * 32})
        to_client.send(**to_service.receive("attest"))
        to_service.send(**to_client.receive("open"))
        to_service.send(**to_client.receive("record"))

    carried = in_thread(carry)
    served = in_thread(lambda: accept_session(theirs, identity, theirs.receive("hello")))
    client, _ = open_session(ours, Trust())
    client.send("chunk", index=0)
    carried()
    does_not_open(served())
    for connection in (ours, to_client, to_service, theirs):
        connection.close()


def test_the_document_says_which_key_signs(nsm, rsa_key, trust):
    identity = Identity(Nsm(nsm), key=rsa_key)
    document = identity.document(b"n" * 32)
    found = verify_attestation(document, policy=trust.policy, nonce=b"n" * 32, roots=trust.roots)
    assert found.public_key == identity.public_key
    assert found.user_data.startswith(b"luma service signer 1 ")
    assert len(found.user_data) != 48  # so it is no artifact's digest


def test_without_a_module_there_is_no_key_for_kms(rsa_key):
    with pytest.raises(ServiceError, match="no enclave"):
        Identity(None, key=rsa_key).recipient()


def test_a_secret_is_never_shown(rsa_key, nsm):
    identity = Identity(Nsm(nsm), key=rsa_key)
    assert "PRIVATE" not in repr(vars(identity))
    assert identity.label == "attested enclave"
