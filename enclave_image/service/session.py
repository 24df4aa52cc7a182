"""The session: who is on the other side, and keys that only the two sides have.

The client sends 32 random bytes. The service answers with its RSA key of this boot, the public key
that signs its artifacts, and in an enclave an attestation document of both: the document's
public_key is the RSA key, its user_data names the signing key, its nonce is the client's. The
client judges it, then sends a random secret by RSA-OAEP (SHA-256, RFC 8017) to that key.

Both derive, by HKDF-SHA384 (RFC 5869) with the SHA-384 of all that was said so far as salt, one
AES-256-GCM key a direction. A record's nonce is its number in its direction, so records cannot be
changed, dropped, repeated or put in another order, and one of another connection does not open.

A local process has no document. Its key is then authenticated by nothing but the socket it came
over, so a client takes it only over a unix socket whose process is its own user's or root's, and
only where it was told no measurements.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from enclave_image.service.errors import ServiceBusyError, ServiceError
from enclave_image.service.fields import MessageFields
from enclave_image.service.messages import read_error
from enclave_image.service.own_machine import OwnMachine
from enclave_image.service.protocol import (
    MAX_RECORD_BYTES,
    VERSION,
    Connection,
    Frame,
    read_map,
)
from runtime.artifact.attestation import (
    PRODUCTION_ROOTS,
    Attestation,
    Freshness,
    PcrPolicy,
    TrustRoots,
    verify_attestation,
)
from runtime.artifact.canonical import encode
from runtime.artifact.kms import Recipient

__all__ = [
    "NONCE_BYTES",
    "Attester",
    "Identity",
    "Peer",
    "Session",
    "Trust",
    "accept_session",
    "open_session",
]

NONCE_BYTES = 32
_SECRET_BYTES = 32
_KEY_BYTES = 32
_RSA_BITS = 3072
_WRAPPED_BYTES = _RSA_BITS // 8
_EXPONENT = 65537
_MAX_PUBLIC_KEY = 1024
_MAX_DOCUMENT = (16 << 10) + 128
_LABEL = b"luma compile service 1 "
_OAEP = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), _LABEL)
_TAG_BYTES = 16
_MAX_MESSAGE_ITEMS = 2048


class Attester(Protocol):
    """What asks the security module for a document."""

    def attestation(
        self,
        *,
        user_data: bytes | None = None,
        nonce: bytes | None = None,
        public_key: bytes | None = None,
    ) -> bytes:
        """Give a fresh document of these three; `LumaError` where there is none."""
        ...


class Identity:
    """The keys of one boot of the service, and the module that vouches for them.

    Args:
        attester: the security module; None for a local process.
        key: an RSA key of 3072 bits; default: a fresh one.
        machine: of a service inside its client's process, what it may use of that machine; else
            artifacts are signed by a fresh P-384 key.
    """

    def __init__(
        self,
        attester: Attester | None,
        *,
        key: rsa.RSAPrivateKey | None = None,
        machine: OwnMachine | None = None,
    ) -> None:
        self.attester = attester
        self.machine = machine
        self.signing_key = _fresh_signing_key() if machine is None else machine.signing_key
        self._key = key or rsa.generate_private_key(public_exponent=_EXPONENT, key_size=_RSA_BITS)
        self.public_key = _spki(self._key.public_key())
        self.signer = _spki(self.signing_key.public_key())
        self._recipient: Recipient | None = None
        self._lock = threading.Lock()

    @property
    def label(self) -> str:
        """What is printed of it."""
        return "L1 (local service)" if self.attester is None else "attested enclave"

    def document(self, nonce: bytes) -> bytes | None:
        """Give the document of both keys for a client's nonce; None without a module."""
        if self.attester is None:
            return None
        return self.attester.attestation(
            user_data=_signer_claim(self.signer), nonce=nonce, public_key=self.public_key
        )

    def recipient(self) -> Recipient:
        """Give the key pair that KMS encrypts to, made when it is first needed.

        Raises:
            ServiceError: there is no module that vouches for it.
        """
        if self.attester is None:
            raise ServiceError("request.level: this service is no enclave", reason="policy")
        with self._lock:
            if self._recipient is None:
                self._recipient = Recipient(self.attester)
            return self._recipient

    def unwrap(self, wrapped: bytes) -> bytes:
        """Give the secret that a client sent.

        Raises:
            ServiceError: it was not encrypted to this key.
        """
        try:
            secret = self._key.decrypt(wrapped, _OAEP)
        except ValueError:
            secret = b""
        if len(secret) != _SECRET_BYTES:
            raise ServiceError("open.wrapped: is not for this service's key", reason="session")
        return secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What a client accepts on the other side.

    Attributes:
        policy: the accepted measurements; None accepts a local process without a document, and
            then no enclave.
        roots: who may have signed a document.
        freshness: how old a document may be.
    """

    policy: PcrPolicy | None = None
    roots: TrustRoots = PRODUCTION_ROOTS
    freshness: Freshness = field(default_factory=Freshness)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The service, as a client has judged it.

    Attributes:
        signer: the key that signs its artifacts.
        attestation: what its document says; None for a local process.
    """

    signer: ec.EllipticCurvePublicKey
    attestation: Attestation | None


class Session:
    """Encrypted messages over a connection, in both directions.

    Args:
        connection: what carries them.
        sending: the key of what this side sends.
        receiving: the key of what it receives.
        reads_errors: whether the other side may answer with an error instead: the service may.
    """

    def __init__(
        self, connection: Connection, *, sending: bytes, receiving: bytes, reads_errors: bool
    ) -> None:
        self.connection = connection
        self._reads_errors = reads_errors
        self._sending = AESGCM(sending)
        self._receiving = AESGCM(receiving)
        self._sent = 0
        self._received = 0

    def send(self, kind: str, **fields: object) -> None:
        """Send a message.

        Raises:
            ServiceError: it is too large for a record.
            PeerGoneError: the other side is gone.
        """
        plain = encode({"kind": kind, **fields})
        if len(plain) > MAX_RECORD_BYTES - _TAG_BYTES:
            raise ServiceError(f"message {kind}: too large", reason="frame")
        data = self._sending.encrypt(_number(self._sent), plain, None)
        self._sent += 1
        self.connection.send("record", data=data)

    def receive(self, *kinds: str) -> tuple[str, Frame]:
        """Receive (kind, message), of one of these kinds.

        Raises:
            LumaError: the service sent this error instead.
            ServiceError: the record does not open, or holds something else.
            PeerGoneError: the other side is gone.
        """
        fields = MessageFields(self.connection.receive("record"), "record")
        data = fields.octets("data", _TAG_BYTES + 1, MAX_RECORD_BYTES)
        fields.end()
        try:
            plain = self._receiving.decrypt(_number(self._received), data, None)
        except InvalidTag:
            raise ServiceError(
                f"record {self._received}: does not open: it was changed, repeated or put in "
                "another order on the way",
                reason="record",
            ) from None
        self._received += 1
        message = read_map(
            plain, what="message", max_bytes=MAX_RECORD_BYTES, max_items=_MAX_MESSAGE_ITEMS
        )
        kind = message.get("kind")
        if kind == "error" and self._reads_errors:
            raise read_error(message)
        if not isinstance(kind, str) or kind not in kinds:
            raise ServiceError(
                f"message.kind: {str(kind)[:40]!r} is not allowed here; "
                f"expected {' or '.join(kinds)}",
                reason="frame",
            )
        return kind, message


def accept_session(connection: Connection, identity: Identity, hello: Frame) -> Session:
    """Answer a client's hello; the service's side.

    Raises:
        ServiceError: the client speaks another version, or not this protocol.
        PeerGoneError: the client is gone; one that distrusts the document just leaves.
    """
    nonce = read_hello(hello)
    document = identity.document(nonce)
    connection.send(
        "attest",
        version=VERSION,
        public_key=identity.public_key,
        signer=identity.signer,
        document=document,
    )
    fields = MessageFields(connection.receive("open"), "open")
    wrapped = fields.octets("wrapped", _WRAPPED_BYTES, _WRAPPED_BYTES)
    fields.end()
    secret = identity.unwrap(wrapped)
    said = _said(nonce, identity.public_key, identity.signer, document, wrapped)
    to_service, to_client = _keys(secret, said)
    return Session(connection, sending=to_client, receiving=to_service, reads_errors=False)


def read_hello(hello: Frame) -> bytes:
    """Give the nonce of a hello.

    Raises:
        ServiceError: another version, or malformed.
    """
    fields = MessageFields(hello, "hello")
    check_version(fields)
    nonce = fields.octets("nonce", NONCE_BYTES, NONCE_BYTES)
    fields.end()
    return nonce


def check_version(fields: MessageFields) -> None:
    """Refuse another version of the protocol."""
    version = fields.integer("version", 0, 1 << 31)
    if version != VERSION:
        raise ServiceError(
            f"version: {version} is not spoken here; expected {VERSION}",
            reason="version",
            remedy="use the same version of Luma on both sides",
        )


def open_session(connection: Connection, trust: Trust) -> tuple[Session, Peer]:
    """Ask for a document, judge it, and send a secret to its key; the client's side.

    Raises:
        AttestationError: the document is refused; its `rule` tells why.
        ServiceBusyError: the service takes no more requests.
        ServiceError: no document although measurements were given, or the other way round; the
            service refused, or does not speak this protocol.
        PeerGoneError: the service is gone.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    connection.send("hello", version=VERSION, nonce=nonce)
    fields = MessageFields(answer(connection, "attest"), "attest")
    check_version(fields)
    public_key = fields.octets("public_key", 1, _MAX_PUBLIC_KEY)
    signer = fields.octets("signer", 1, _MAX_PUBLIC_KEY)
    document = fields.optional_octets("document", 1, _MAX_DOCUMENT)
    fields.end()
    found = _judge(trust, nonce, public_key, signer, document)
    secret = secrets.token_bytes(_SECRET_BYTES)
    wrapped = _rsa_key(public_key).encrypt(secret, _OAEP)
    connection.send("open", wrapped=wrapped)
    to_service, to_client = _keys(secret, _said(nonce, public_key, signer, document, wrapped))
    session = Session(connection, sending=to_service, receiving=to_client, reads_errors=True)
    return session, Peer(signer=_signing_key(signer), attestation=found)


def answer(connection: Connection, kind: str) -> Frame:
    """Receive the service's answer in the open.

    Raises:
        ServiceBusyError: it is busy.
        ServiceError: it refused, or answered something else.
    """
    frame = connection.receive(kind, "busy", "refused")
    fields = MessageFields(frame, str(frame["kind"]))
    if frame["kind"] == "busy":
        raise ServiceBusyError(fields.integer("retry_after_s", 1, 3600))
    if frame["kind"] == "refused":
        reason = fields.text("reason", 40)
        raise ServiceError(
            f"the service refused the connection: {reason}",
            reason=reason,
            remedy="use the same version of Luma on both sides",
        )
    return frame


def _judge(
    trust: Trust, nonce: bytes, public_key: bytes, signer: bytes, document: bytes | None
) -> Attestation | None:
    """Judge who is on the other side."""
    if trust.policy is None:
        if document is None:
            return None
        raise ServiceError(
            "attest.document: the service is an enclave, but no measurements were given to judge it",
            reason="trust",
            remedy="give its measurements with --measurements FILE",
        )
    if document is None:
        raise ServiceError(
            "attest.document: the service has none, so it is no enclave; measurements were given",
            reason="trust",
            remedy="connect to the enclave, or leave the measurements out for level L1",
        )
    found = verify_attestation(
        document,
        policy=trust.policy,
        nonce=nonce,
        user_data=_signer_claim(signer),
        roots=trust.roots,
        freshness=trust.freshness,
    )
    if found.public_key != public_key:
        raise ServiceError(
            "attest.public_key: is not the key in the attestation document", reason="trust"
        )
    return found


def _said(
    nonce: bytes, public_key: bytes, signer: bytes, document: bytes | None, wrapped: bytes
) -> bytes:
    """Give the SHA-384 of all that was said in the open."""
    digest = None if document is None else hashlib.sha384(document).digest()
    return hashlib.sha384(
        encode([_LABEL, VERSION, nonce, public_key, signer, digest, wrapped])
    ).digest()


def _keys(secret: bytes, said: bytes) -> tuple[bytes, bytes]:
    """Give the keys (client to service, service to client)."""
    both = HKDF(hashes.SHA384(), 2 * _KEY_BYTES, salt=said, info=_LABEL + b"records").derive(secret)
    return both[:_KEY_BYTES], both[_KEY_BYTES:]


def _number(count: int) -> bytes:
    """Give a record's nonce: each key serves one direction of one connection."""
    return count.to_bytes(12, "big")


def _fresh_signing_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _signer_claim(signer: bytes) -> bytes:
    """Give the user_data that names a signing key; no artifact's digest has its length."""
    return b"luma service signer 1 " + hashlib.sha384(signer).digest()


def _spki(key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _rsa_key(data: bytes) -> rsa.RSAPublicKey:
    key = _public_key(data, "attest.public_key")
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size != _RSA_BITS:
        raise ServiceError(
            f"attest.public_key: expected an RSA key of {_RSA_BITS} bits", reason="trust"
        )
    return key


def _signing_key(data: bytes) -> ec.EllipticCurvePublicKey:
    key = _public_key(data, "attest.signer")
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise ServiceError("attest.signer: expected a P-384 key", reason="trust")
    return key


def _public_key(data: bytes, where: str) -> object:
    try:
        return serialization.load_der_public_key(data)
    except (ValueError, TypeError) as error:
        raise ServiceError(f"{where}: is no public key", reason="trust") from error
