"""The instance metadata service of one played instance: version 2 only.

Every read needs a token from `PUT /latest/api/token`; without one the answer is 401, as where
IMDSv1 is off. Paths, codes and formats are of EC2's user guide. The private address is loopback's,
since instances are processes of this machine.
"""

import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

_TOKEN_HEADER = "X-aws-ec2-metadata-token"
_TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Metadata:
    """What an instance can read about itself, changed while it runs.

    Attributes:
        instance_id: such as `i-0123456789abcdef0`.
        instance_type: such as `c7i.large`.
        region: such as `us-east-1`.
        zone: such as `us-east-1a`.
        tags: of the instance.
        role: name of its role; None for an instance without a profile.
        lifecycle: `spot` or `on-demand`.
        address: its private address.
        values: what came later: notices, by path below `/latest/meta-data/`.
    """

    instance_id: str
    instance_type: str
    region: str
    zone: str
    role: str | None = "role"
    lifecycle: str = "spot"
    address: str = "127.0.0.1"
    tags: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(
        default_factory=lambda: {"autoscaling/target-lifecycle-state": "InService"}
    )

    def at(self, path: str) -> str | None:
        """The text at a path below `/latest/`, or None for 404."""
        if path == "dynamic/instance-identity/document":
            return json.dumps(self._identity(), indent=2)
        below = path.removeprefix("meta-data/")
        if below == path:
            return None
        return self._fixed().get(below, self.values.get(below))

    def notice_interruption(self, seconds: float = 120, action: str = "terminate") -> None:
        """Let `spot/instance-action` and `spot/termination-time` say that the end is near."""
        at = _stamp(datetime.now(UTC) + timedelta(seconds=seconds))
        self.values["spot/instance-action"] = json.dumps({"action": action, "time": at})
        self.values["spot/termination-time"] = at

    def recommend_rebalance(self) -> None:
        """Let `events/recommendations/rebalance` say that an interruption is likelier now."""
        self.values["events/recommendations/rebalance"] = json.dumps(
            {"noticeTime": _stamp(datetime.now(UTC))}
        )

    def _identity(self) -> dict[str, Any]:
        return {
            "instanceId": self.instance_id,
            "instanceType": self.instance_type,
            "region": self.region,
            "availabilityZone": self.zone,
            "privateIp": self.address,
            "accountId": "123456789012",
            "architecture": "x86_64",
            "version": "2017-09-30",
        }

    def _fixed(self) -> dict[str, str]:
        fixed = {
            "instance-id": self.instance_id,
            "instance-type": self.instance_type,
            "instance-life-cycle": self.lifecycle,
            "local-ipv4": self.address,
            "placement/region": self.region,
            "placement/availability-zone": self.zone,
        }
        fixed |= {f"tags/instance/{name}": value for name, value in self.tags.items()}
        if self.role is not None:
            fixed["iam/security-credentials/"] = self.role
            fixed[f"iam/security-credentials/{self.role}"] = json.dumps(self._credentials())
        return fixed

    @staticmethod
    def _credentials() -> dict[str, str]:
        now = datetime.now(UTC)
        return {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": "ASIAEMULATEDINSTANCE",
            "SecretAccessKey": "emulated",
            "Token": "emulated",
            "LastUpdated": _stamp(now),
            "Expiration": _stamp(now + timedelta(hours=6)),
        }


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def log_message(self, *_args: object) -> None:
        """Say nothing."""

    def do_PUT(self) -> None:
        ttl = self.headers.get(_TTL_HEADER, "")
        if self.path != "/latest/api/token" or not ttl.isdigit() or not 1 <= int(ttl) <= 21600:
            self._answer(400 if self.path == "/latest/api/token" else 405, "")
            return
        token = secrets.token_urlsafe(32)
        self.server.tokens[token] = time.monotonic() + int(ttl)
        self._answer(200, token, {_TTL_HEADER: ttl})

    def do_GET(self) -> None:
        until = self.server.tokens.get(self.headers.get(_TOKEN_HEADER, ""), 0.0)
        if time.monotonic() > until:
            self._answer(401, "")
            return
        text = self.server.metadata.at(self.path.removeprefix("/latest/"))
        self._answer(404 if text is None else 200, text or "")

    def _answer(self, code: int, text: str, headers: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, metadata: Metadata):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.metadata = metadata
        self.tokens: dict[str, float] = {}

    def handle_error(self, *_where: object) -> None:
        """A client that went away before its answer, mostly by SIGKILL, is no error here."""


class FakeImds:
    """A metadata service on a free loopback port, for as long as it is entered."""

    def __init__(self, metadata: Metadata):
        self.metadata = metadata
        self._server = _Server(metadata)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """The URL for `AWS_EC2_METADATA_SERVICE_ENDPOINT`."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> Self:
        """Serve from now on."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()
