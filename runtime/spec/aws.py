"""Clients of AWS: one way to make them, and one way to say why AWS refused.

Credentials come from boto3's own chain: the environment, shared files, then the role of the
instance or container. The region is AWS_REGION or AWS_DEFAULT_REGION, the endpoint what
AWS_ENDPOINT_URL (or AWS_ENDPOINT_URL_S3 and the like) names; only a loopback endpoint may be
without TLS. Throttling, time-outs and failures on AWS's side are tried again by botocore's adaptive
mode, which slows this client down by itself; what is left of them is a `transient` error.

boto3 is an extra (`luma[aws]`): nothing here imports it before a client is asked for. The client of
KMS keeps to botocore alone, since an enclave holds nothing else (`runtime.artifact.kms`).
"""

from __future__ import annotations

import functools
import ipaddress
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import urlsplit

from runtime.spec.errors import LumaError

__all__ = ["AwsError", "AwsReason", "aws_client", "aws_errors", "error_code", "is_loopback"]

AwsReason = Literal[
    "denied",
    "missing",
    "throttled",
    "credentials",
    "unavailable",
    "unreachable",
    "request",
    "extra",
]
"""Why AWS did not do what was asked."""

_ATTEMPTS = 6
_CONNECT_TIMEOUT_S = 3.0
_READ_TIMEOUT_S = 20.0
_SHOWN = 300

_REMEDIES: dict[AwsReason, str] = {
    "denied": "give the role of this process that permission; docs/reference lists each role's",
    "missing": "check the name, the account and the region; `luma check --account` lists what is there",
    "throttled": "try again later, or raise the account's quota",
    "credentials": "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run with a role",
    "unavailable": "try again later",
    "unreachable": "check the network, the region and AWS_ENDPOINT_URL",
    "request": "check the request against AWS's message",
    "extra": "pip install 'luma[aws]'",
}

_REASONS: dict[str, AwsReason] = {
    "AccessDenied": "denied",
    "AccessDeniedException": "denied",
    "UnauthorizedOperation": "denied",
    "403": "denied",
    "ResourceNotFoundException": "missing",
    "NoSuchBucket": "missing",
    "NoSuchKey": "missing",
    "ParameterNotFound": "missing",
    "404": "missing",
    "ThrottlingException": "throttled",
    "Throttling": "throttled",
    "ThrottledException": "throttled",
    "ProvisionedThroughputExceededException": "throttled",
    "RequestLimitExceeded": "throttled",
    "LimitExceededException": "throttled",
    "TooManyRequestsException": "throttled",
    "SlowDown": "throttled",
    "503": "throttled",
    "ExpiredToken": "credentials",
    "ExpiredTokenException": "credentials",
    "UnrecognizedClientException": "credentials",
    "InvalidAccessKeyId": "credentials",
    "InvalidClientTokenId": "credentials",
    "SignatureDoesNotMatch": "credentials",
    "InvalidSignatureException": "credentials",
    "InternalServerError": "unavailable",
    "InternalError": "unavailable",
    "InternalFailure": "unavailable",
    "ServiceUnavailable": "unavailable",
    "ServiceUnavailableException": "unavailable",
    "RequestTimeout": "unavailable",
    "500": "unavailable",
}


class AwsError(LumaError):
    """AWS refused a request, or could not be asked.

    Args:
        message: as `LumaError`.
        reason: the kind of refusal.
        remedy: as `LumaError`; default: the usual one for the reason.
    """

    def __init__(self, message: str, *, reason: AwsReason, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy or _REMEDIES[reason])
        self.reason: AwsReason = reason

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later, unchanged."""
        return self.reason in {"throttled", "unavailable", "unreachable"}

    @property
    def elsewhere(self) -> bool:
        """Whether another node may succeed where this one did not.

        Credentials count too: those of a role come from the metadata service, which may be slow.
        """
        return self.transient or self.reason == "credentials"


def aws_client(service: str, *, region: str | None = None) -> Any:
    """Make a client of one service; it may be used by several threads.

    Args:
        service: boto3's name of it, such as `dynamodb`.
        region: default: AWS_REGION, AWS_DEFAULT_REGION, or what the profile says.

    Raises:
        AwsError: boto3 is not installed, no region is known, or the endpoint is not safe.
    """
    try:
        import boto3
        import botocore.session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise AwsError(f"{service}: boto3 is not installed", reason="extra") from None
    core = botocore.session.Session()
    core.register_component("data_loader", _loader())
    # boto3 knows AWS_DEFAULT_REGION alone; every other SDK, and our instances, AWS_REGION.
    region = region or os.environ.get("AWS_REGION") or None
    # Any: its stubs know a service's name as a literal only.
    session: Any = boto3.session.Session(botocore_session=core, region_name=region)
    try:
        client = session.client(
            service,
            config=Config(
                connect_timeout=_CONNECT_TIMEOUT_S,
                read_timeout=_READ_TIMEOUT_S,
                retries={"mode": "adaptive", "total_max_attempts": _ATTEMPTS},
                max_pool_connections=16,
            ),
        )
    except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
        raise AwsError(
            f"{service}: no client ({error})",
            reason="request",
            remedy="set AWS_REGION to the region that the stack is in",
        ) from None
    _check_endpoint(service, client.meta.endpoint_url)
    return client


@contextmanager
def aws_errors(what: str) -> Generator[None]:
    """Turn what boto3 raises in the block into an `AwsError`.

    Args:
        what: the operation and its resource, such as `dynamodb PutItem of table 'luma'`.

    Raises:
        AwsError: the block raised an error of botocore.
    """
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        raise _of_answer(what, error.response) from None
    except exceptions.BotoCoreError as error:
        # Its text may quote what was sent: the kind is enough.
        raise _of_transport(what, error) from None


def error_code(error: Any) -> str:
    """Give the code of a `ClientError`, such as `PreconditionFailed`."""
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def is_loopback(host: str) -> bool:
    """Say whether a host's name or address stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _of_answer(what: str, answer: Mapping[str, Any]) -> AwsError:
    error = answer.get("Error", {})
    code = str(error.get("Code", "unknown"))
    said = "".join(c for c in str(error.get("Message", "")) if c.isprintable())[:_SHOWN]
    status = str(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    reason = _REASONS.get(code) or ("unavailable" if status.startswith("5") else "request")
    return AwsError(f"{what}: {reason} ({f'{code}: {said}' if said else code})", reason=reason)


def _of_transport(what: str, error: Exception) -> AwsError:
    from botocore import exceptions

    no_credentials = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.TokenRetrievalError,
    )
    reason: AwsReason = "request"
    if isinstance(error, no_credentials):
        reason = "credentials"
    elif isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError):
        reason = "unreachable"
    return AwsError(f"{what}: {reason} ({type(error).__name__})", reason=reason)


@functools.cache
def _loader() -> Any:
    """Give one reader of botocore's service descriptions: they cost more than a client does."""
    from botocore.loaders import create_loader

    return create_loader()


def _check_endpoint(service: str, url: str) -> None:
    """Refuse an endpoint that would send state and tokens over a network in the open."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise AwsError(
            f"{service} endpoint: {url} is not https; only a loopback endpoint may be without TLS",
            reason="request",
            remedy="use https, or unset AWS_ENDPOINT_URL",
        )
