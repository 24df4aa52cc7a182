"""A customer's key in AWS KMS, as the key service of artifacts.

Every request names its customer and its artifact in an EncryptionContext of exactly two entries,
`luma:customer` and `luma:artifact`. KMS binds the wrapped key to them, records them in CloudTrail,
and its key policy can ask for them; this side refuses a manifest of another customer, and answers
about another key, whatever KMS would say.

With a `Recipient` each request carries an attestation document, and the key comes back encrypted to
that document's key (`cms`). An answer in the open is then refused: something on the way, or a
service that knows no attestation, ignored the document.

Nothing is asked of an instance's metadata unless `AwsAccess.instance_role` is set. Keys are held in
`bytearray`s, which their users wipe; botocore and `cryptography` make copies that nobody can.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from runtime.artifact.key_service import MAX_WRAPPED_BYTES, DataKey, KeyReference, wipe
from runtime.artifact.kms.errors import KeyServiceError, of_answer, of_transport
from runtime.artifact.kms.recipient import Recipient
from runtime.artifact.sealing import DATA_KEY_BYTES, DIGEST_BYTES
from runtime.spec.errors import ArtifactError

__all__ = ["AwsAccess", "AwsCredentials", "KmsKeys", "encryption_context"]

_RECIPIENT_ALGORITHM = "RSAES_OAEP_SHA_256"
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
# They ask 169.254.169.254 and 169.254.170.2, which on a foreign network may be anyone.
_METADATA_PROVIDERS = ("iam-role", "container-role")


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsCredentials:
    """Credentials that were handed over, as an enclave gets them from its parent.

    Attributes:
        access_key: the access key's id.
        secret_key: its secret.
        token: the session token of temporary credentials.
    """

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsAccess:
    """How KMS is reached.

    Attributes:
        credentials: default: environment and shared files, as the AWS command line reads them.
        instance_role: whether the role of the instance or container may be asked for as well, over
            the network, at the metadata service.
        endpoint_url: default: KMS of the key's region, or what AWS_ENDPOINT_URL names. Only a
            loopback endpoint may be without TLS.
        attempts: requests at most, the first included; only throttling, time-outs and failures on
            KMS's side are tried again (botocore's standard mode).
        connect_timeout_s: seconds.
        read_timeout_s: seconds.
    """

    credentials: AwsCredentials | None = None
    instance_role: bool = False
    endpoint_url: str | None = None
    attempts: int = 3
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 10.0


_DEFAULT_ACCESS = AwsAccess()


def encryption_context(customer: str, digest: bytes) -> dict[str, str]:
    """Give the EncryptionContext of an artifact's data key.

    Args:
        customer: the customer's name.
        digest: SHA-384 of the manifest, 48 bytes.

    Raises:
        ArtifactError: the digest has another length.
    """
    if len(digest) != DIGEST_BYTES:
        raise ArtifactError(f"artifact digest: {len(digest)} bytes; expected {DIGEST_BYTES}")
    return {"luma:customer": customer, "luma:artifact": digest.hex()}


class KmsKeys:
    """A customer's keys in KMS; a `KeyService`.

    Args:
        reference: the customer, and the key that seals new artifacts.
        older: ARNs of keys that sealed earlier ones, where a key was replaced. (Rotation by KMS
            keeps the ARN and needs none.)
        recipient: the attested key pair; None asks without attestation, as at level L1.
        access: how KMS is reached.

    Raises:
        KeyServiceError: botocore is not installed, or the endpoint is not safe.
    """

    def __init__(
        self,
        reference: KeyReference,
        *,
        older: Sequence[str] = (),
        recipient: Recipient | None = None,
        access: AwsAccess = _DEFAULT_ACCESS,
    ) -> None:
        olds = [KeyReference(arn=arn, customer=reference.customer) for arn in older]
        self._reference = reference
        self._arns = {known.arn for known in (reference, *olds)}
        self._recipient = recipient
        self._access = access
        self._clients = {ref.region: _client(ref, access) for ref in (*olds, reference)}

    @property
    def reference(self) -> KeyReference:
        """The customer, and the key that seals new artifacts."""
        return self._reference

    def generate(self, digest: bytes) -> DataKey:
        """Let KMS make a data key for the artifact with this digest.

        Args:
            digest: SHA-384 of the manifest, 48 bytes.

        Raises:
            KeyServiceError: KMS refused, cannot be reached, or answered something else.
            ArtifactError: an answer to an attested request does not open.
        """
        document = self._document(digest)
        answer = self._ask("GenerateDataKey", self._reference, digest, document, KeySpec="AES_256")
        plain = self._plain("GenerateDataKey", answer)
        wrapped = answer.get("CiphertextBlob")
        if not isinstance(wrapped, bytes) or not 0 < len(wrapped) <= MAX_WRAPPED_BYTES:
            wipe(plain)
            raise _unexpected("GenerateDataKey", "no wrapped key")
        return DataKey(plain=plain, wrapped=wrapped, attestation=document)

    def unwrap(self, reference: KeyReference, wrapped: bytes, digest: bytes) -> bytearray:
        """Let KMS open a wrapped data key; the caller wipes it.

        Args:
            reference: what the manifest names.
            wrapped: from the artifact's evidence.
            digest: SHA-384 of the manifest, 48 bytes.

        Raises:
            KeyServiceError: another customer's artifact, a key that is not one of ours; KMS
                refused, cannot be reached, or answered something else.
            ArtifactError: an answer to an attested request does not open.
        """
        if reference.customer != self._reference.customer:
            raise KeyServiceError(
                f"manifest.seal.customer: {reference.customer!r}; "
                f"this side opens artifacts of {self._reference.customer!r}",
                reason="context",
                remedy="open it as the customer that it was sealed for",
            )
        if reference.arn not in self._arns:
            raise KeyServiceError(
                f"manifest.seal.key_arn: {reference.arn} is not one of this side's keys: "
                + ", ".join(sorted(self._arns)),
                reason="context",
                remedy="name the key among the older ones, if it was this customer's",
            )
        document = self._document(digest)
        answer = self._ask("Decrypt", reference, digest, document, CiphertextBlob=wrapped)
        return self._plain("Decrypt", answer)

    def _document(self, digest: bytes) -> bytes | None:
        """Give a fresh attestation document, None where requests are not attested."""
        return None if self._recipient is None else self._recipient.document(digest)

    def _ask(
        self,
        operation: str,
        reference: KeyReference,
        digest: bytes,
        document: bytes | None,
        **parameters: object,
    ) -> dict[str, Any]:
        """Make one request about one key; errors become ours."""
        from botocore.exceptions import BotoCoreError, ClientError

        if document is not None:
            parameters["Recipient"] = {
                "KeyEncryptionAlgorithm": _RECIPIENT_ALGORITHM,
                "AttestationDocument": document,
            }
        client = self._clients[reference.region]
        call = client.generate_data_key if operation == "GenerateDataKey" else client.decrypt
        try:
            answer = call(
                KeyId=reference.arn,
                EncryptionContext=encryption_context(reference.customer, digest),
                **parameters,
            )
        except ClientError as error:
            raise of_answer(operation, reference.arn, error.response) from error
        except BotoCoreError as error:
            # Not chained: some of these errors quote what was sent or received.
            raise of_transport(operation, reference.arn, error) from None
        if answer.get("KeyId") != reference.arn:
            raise _unexpected(operation, "an answer about another key")
        return answer

    def _plain(self, operation: str, answer: dict[str, Any]) -> bytearray:
        """Take the data key out of an answer."""
        in_the_open = answer.pop("Plaintext", None)
        sealed = answer.pop("CiphertextForRecipient", None)
        if self._recipient is None:
            plain = bytearray(in_the_open or b"")
        elif in_the_open or not isinstance(sealed, bytes):
            raise _unexpected(
                operation, "a key in the open, though an attestation document was sent"
            )
        else:
            plain = self._recipient.open(sealed)
        if len(plain) != DATA_KEY_BYTES:
            wipe(plain)
            raise _unexpected(operation, f"a key of {len(plain)} bytes")
        return plain


def _client(reference: KeyReference, access: AwsAccess) -> Any:
    """Make a botocore client for the key's region."""
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise KeyServiceError(
            "kms: botocore is not installed", reason="extra", remedy="pip install 'luma[aws]'"
        ) from error
    # At DEBUG this logger writes response bodies, and with them keys in the open.
    logging.getLogger("botocore.parsers").setLevel(logging.INFO)
    session = Session()
    session.register_component("data_loader", _loader())
    if not access.instance_role:
        resolver = session.get_component("credential_provider")
        for name in _METADATA_PROVIDERS:
            resolver.remove(name)
    session.set_config_variable("defaults_mode", "legacy")  # "auto" asks the instance its region
    given = access.credentials
    try:
        client = session.create_client(
            "kms",
            region_name=reference.region,
            endpoint_url=access.endpoint_url,
            aws_access_key_id=given.access_key if given else None,
            aws_secret_access_key=given.secret_key if given else None,
            aws_session_token=given.token if given else None,
            config=Config(
                connect_timeout=access.connect_timeout_s,
                read_timeout=access.read_timeout_s,
                retries={"mode": "standard", "total_max_attempts": access.attempts},
            ),
        )
    except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
        raise of_transport("client", reference.arn, error) from error
    _check_endpoint(client.meta.endpoint_url)
    return client


@functools.cache
def _loader() -> Any:
    """Give one reader of botocore's service descriptions: they take ten times a client's own time."""
    from botocore.loaders import create_loader

    return create_loader()


def _check_endpoint(url: str) -> None:
    """Refuse an endpoint that would send keys over a network in the open."""
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise KeyServiceError(
            f"kms endpoint: {url} is not https; only a loopback endpoint may be without TLS",
            reason="request",
            remedy="use https, or unset AWS_ENDPOINT_URL",
        )


def _unexpected(operation: str, what: str) -> KeyServiceError:
    """Give the error for an answer that KMS does not make."""
    return KeyServiceError(
        f"kms {operation}: {what}; expected KMS's own answer",
        reason="answer",
        remedy="check that the endpoint is KMS itself; not every emulator knows attestation",
    )
