"""The instance's metadata service (IMDSv2): who this node is, and the notices that AWS leaves there.

Every request carries a session token, got by PUT; a token that the service forgot is got anew. The
endpoint is AWS_EC2_METADATA_SERVICE_ENDPOINT where it is set, as AWS's own clients have it, else
the link-local address. Where AWS_EC2_METADATA_DISABLED is true and no endpoint is named, making a
client is an error: a node without metadata would never hear of a notice.

Paths and formats: EC2 User Guide, "Retrieve instance metadata" and "Spot Instance interruption
notices".
"""

from __future__ import annotations

import http.client
import json
import os
import time
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlsplit

from runtime.spec.errors import RunError

__all__ = ["Identity", "Imds", "ImdsError"]

_LINK_LOCAL: Final = "http://169.254.169.254"
_TIMEOUT_S: Final = 2.0
_IDENTITY_ATTEMPTS: Final = 5
_PAUSE_S: Final = 1.0
_TOKEN_TTL_S: Final = 21600
_MAX_BYTES: Final = 1 << 16
_DOCUMENT: Final = "dynamic/instance-identity/document"


class ImdsError(RunError):
    """The metadata service does not answer, or answers something else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who this node is.

    Attributes:
        instance: the instance's id.
        instance_type: its type, such as `g6.xlarge`.
        region: its region.
        zone: its availability zone.
        address: its private IPv4 address.
    """

    instance: str
    instance_type: str
    region: str
    zone: str
    address: str


class Imds:
    """A client of the metadata service.

    Args:
        endpoint: URL of the service.
    """

    def __init__(self, endpoint: str = _LINK_LOCAL) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme != "http" or parts.hostname is None:
            raise ImdsError(
                f"AWS_EC2_METADATA_SERVICE_ENDPOINT: '{endpoint}' is not allowed; "
                "expected http://HOST[:PORT]"
            )
        self._host, self._port = parts.hostname, parts.port or 80
        self._token: str | None = None

    @classmethod
    def from_environment(cls) -> Self:
        """Give the client of the endpoint that the environment names.

        Raises:
            ImdsError: metadata is switched off, or the endpoint is no URL.
        """
        endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
        if endpoint:
            return cls(endpoint)
        if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            raise ImdsError(
                "AWS_EC2_METADATA_DISABLED is true: this node could not hear of an interruption",
                remedy="unset it, or name the service with AWS_EC2_METADATA_SERVICE_ENDPOINT",
            )
        return cls()

    def get(self, path: str) -> str | None:
        """Read one item below `latest/`; None where the service has none (404).

        Raises:
            ImdsError: the service does not answer, or refuses.
        """
        for renewed in (False, True):
            if self._token is None:
                self._token = self._new_token()
            status, body = self._ask(
                "GET", f"/latest/{path}", {"X-aws-ec2-metadata-token": self._token}
            )
            if status == http.HTTPStatus.UNAUTHORIZED and not renewed:
                self._token = None
                continue
            if status == http.HTTPStatus.NOT_FOUND:
                return None
            if status != http.HTTPStatus.OK:
                break
            return body
        raise ImdsError(f"instance metadata: GET {path} was answered with status {status}")

    def get_json(self, path: str) -> dict[str, Any] | None:
        """Read one item that is a JSON object; None where there is none.

        Raises:
            ImdsError: the service does not answer, or the item is something else.
        """
        text = self.get(path)
        if text is None:
            return None
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ImdsError(f"instance metadata: {path} holds no JSON object: {text[:80]!r}")
        return document

    def identity(self) -> Identity:
        """Read who this node is; a service that is slow while the instance boots is asked again.

        Raises:
            ImdsError: the service does not answer, or its document lacks a field.
        """
        document = self._patiently(_DOCUMENT) or {}
        names = {
            "instance": "instanceId",
            "instance_type": "instanceType",
            "region": "region",
            "zone": "availabilityZone",
            "address": "privateIp",
        }
        lacking = [field for field in names.values() if not isinstance(document.get(field), str)]
        if lacking:
            raise ImdsError(f"instance metadata: {_DOCUMENT} lacks {', '.join(lacking)}")
        return Identity(**{name: document[field] for name, field in names.items()})

    def _patiently(self, path: str) -> dict[str, Any] | None:
        for _ in range(_IDENTITY_ATTEMPTS - 1):
            try:
                return self.get_json(path)
            except ImdsError:
                time.sleep(_PAUSE_S)
        return self.get_json(path)

    def _new_token(self) -> str:
        status, body = self._ask(
            "PUT",
            "/latest/api/token",
            {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)},
        )
        if status != http.HTTPStatus.OK or not body:
            raise ImdsError(f"instance metadata: a session token was refused (status {status})")
        return body

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_MAX_BYTES).decode(errors="replace").strip()
        except (OSError, http.client.HTTPException) as error:
            raise ImdsError(
                f"instance metadata at {self._host}:{self._port} does not answer ({error})",
                remedy="the node must run on an instance with IMDSv2 and a hop limit that fits",
            ) from error
        finally:
            connection.close()
