"""Refusals of KMS, as errors that say what to do.

KMS's own text is shown, since it names the policy that refused, but only its printable beginning.
A response body is never shown: it may hold a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from runtime.spec.errors import ArtifactError

__all__ = ["KeyServiceError", "Reason", "of_answer", "of_transport"]

Reason = Literal[
    "denied",
    "context",
    "disabled",
    "missing",
    "throttled",
    "credentials",
    "request",
    "unavailable",
    "unreachable",
    "answer",
    "extra",
]
"""Why no key came: what a caller, a metric or a script can tell refusals apart by."""

_SHOWN = 300


class KeyServiceError(ArtifactError):
    """The key service refused, or could not be asked.

    Args:
        message: as `LumaError`.
        reason: the kind of refusal.
        remedy: as `LumaError`.
    """

    def __init__(self, message: str, *, reason: Reason, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.reason: Reason = reason


class _Refusal(NamedTuple):
    """What a code of KMS means for a user."""

    reason: Reason
    text: str
    remedy: str


_DENIED = _Refusal(
    reason="denied",
    text="the key's policy does not allow it",
    remedy="use the role that the key policy names; where it asks for an attested image, check "
    "that its measurements are in it and that the attestation document is fresh",
)
_CONTEXT = _Refusal(
    reason="context",
    text="the wrapped key was not made by this key for this customer and artifact, or was changed",
    remedy="open it as the customer that it was sealed for; a copied or edited one never opens",
)
_DISABLED = _Refusal(
    reason="disabled",
    text="the key is disabled or waits for its deletion",
    remedy="enable the key; a revoked customer's artifacts do not open",
)
_MISSING = _Refusal(
    reason="missing",
    text="there is no such key in this account and region",
    remedy="check the key's ARN; a deleted key cannot come back",
)
_THROTTLED = _Refusal(
    reason="throttled",
    text="too many requests",
    remedy="try again later, or raise the account's quota",
)
_CREDENTIALS = _Refusal(
    reason="credentials",
    text="the AWS credentials are missing, expired or wrong",
    remedy="set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; the role of an "
    "instance is used only where it is asked for",
)
_UNAVAILABLE = _Refusal(
    reason="unavailable", text="KMS failed on its side", remedy="try again later"
)
_UNREACHABLE = _Refusal(
    reason="unreachable",
    text="no answer came",
    remedy="check the network and the endpoint; an enclave needs its parent's vsock proxy",
)
_REQUEST = _Refusal(
    reason="request",
    text="KMS refused the request",
    remedy="check the request against the message of KMS",
)
_UNASKED = _Refusal(
    reason="request",
    text="the request could not be made",
    remedy="check the endpoint, the region and the AWS configuration",
)

_BY_CODE = {
    "AccessDeniedException": _DENIED,
    "InvalidGrantTokenException": _DENIED,
    "InvalidCiphertextException": _CONTEXT,
    "IncorrectKeyException": _CONTEXT,
    "DisabledException": _DISABLED,
    "KMSInvalidStateException": _DISABLED,
    "NotFoundException": _MISSING,
    "ThrottlingException": _THROTTLED,
    "LimitExceededException": _THROTTLED,
    "ExpiredTokenException": _CREDENTIALS,
    "UnrecognizedClientException": _CREDENTIALS,
    "InvalidSignatureException": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "IncompleteSignature": _CREDENTIALS,
    "MissingAuthenticationTokenException": _CREDENTIALS,
    "KMSInternalException": _UNAVAILABLE,
    "DependencyTimeoutException": _UNAVAILABLE,
    "KeyUnavailableException": _UNAVAILABLE,
}


def of_answer(operation: str, arn: str, answer: Mapping[str, Any]) -> KeyServiceError:
    """Give the error for an error answer.

    Args:
        operation: what was asked, such as "Decrypt".
        arn: the key's ARN.
        answer: `ClientError.response`.
    """
    error = answer.get("Error", {})
    code = str(error.get("Code", "unknown"))
    said = "".join(c for c in str(error.get("Message", "")) if c.isprintable())[:_SHOWN]
    return _error(operation, arn, _BY_CODE.get(code, _REQUEST), f"{code}: {said}" if said else code)


def of_transport(operation: str, arn: str, error: Exception) -> KeyServiceError:
    """Give the error where no answer came; tells the kind of failure, not what was sent."""
    from botocore import exceptions

    no_credentials = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.TokenRetrievalError,
    )
    if isinstance(error, no_credentials):
        refusal = _CREDENTIALS
    elif isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError):
        refusal = _UNREACHABLE
    else:
        refusal = _UNASKED
    return _error(operation, arn, refusal, type(error).__name__)


def _error(operation: str, arn: str, refusal: _Refusal, detail: str) -> KeyServiceError:
    return KeyServiceError(
        f"kms {operation}: {refusal.text} ({detail}); key {arn}",
        reason=refusal.reason,
        remedy=refusal.remedy,
    )
