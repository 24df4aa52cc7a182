"""Tells a node outside EC2 who it is, as an instance's metadata would. Standard library alone.

    host_identity.py --region REGION --chip CHIP [--address ADDRESS] [--port N]

The node's daemon asks the metadata service (IMDSv2) for its identity and for notices. A host outside
EC2 has none, so this answers on loopback: the identity document, and 404 for everything else, above
all for notices and credentials, which such a host gets by other ways.

The id follows from the machine's own (machine-id(5)), by a hash, so that it stays and tells nothing.
The address is the one that this host uses towards `--towards`, an address in the VPC.
"""

# ruff: noqa: INP001 (a script of the host, no module of the package)

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import secrets
import socket
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

LOOPBACK = "127.0.0.1"
PORT = 9254
_DOCUMENT = "/latest/dynamic/instance-identity/document"
_TOKEN = "/latest/api/token"  # noqa: S105 (a path)
_ID_FIELD = "/latest/meta-data/instance-id"


def host_id(machine_id: str) -> str:
    """Give the id of a host: `ext-` and 17 hex digits, as many as an instance's has."""
    key = b"luma external host"
    return f"ext-{hmac.new(key, machine_id.strip().encode(), hashlib.sha256).hexdigest()[:17]}"


def own_address(towards: str) -> str:
    """Give the address that this host uses towards another one; nothing is sent.

    Raises:
        OSError: there is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))
        return str(probe.getsockname()[0])


def identity(*, instance: str, region: str, chip: str, address: str) -> dict[str, str]:
    """Give the identity document."""
    return {
        "instanceId": instance,
        "instanceType": chip,
        "region": region,
        "availabilityZone": "external",
        "privateIp": address,
    }


class Server(ThreadingHTTPServer):
    """Answers on loopback until it is shut down.

    Args:
        document: the identity document.
        port: to listen on; 0 takes a free one.
    """

    daemon_threads = True

    def __init__(self, document: dict[str, str], port: int = PORT) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.document = document
        self.token = secrets.token_urlsafe(32)


class _Handler(BaseHTTPRequestHandler):
    @property
    def _ours(self) -> Server:
        """The server, as the kind that it is."""
        return cast("Server", self.server)

    def do_PUT(self) -> None:
        """Give the token."""
        self._answer(self._ours.token if self.path == _TOKEN else None)

    def do_GET(self) -> None:
        """Give the identity to whoever has the token; nothing else is known."""
        told = self.headers.get("X-aws-ec2-metadata-token", "")
        if not hmac.compare_digest(told.encode("latin-1"), self._ours.token.encode()):
            self.send_error(401)
            return
        document = self._ours.document
        pages = {_DOCUMENT: json.dumps(document), _ID_FIELD: document["instanceId"]}
        self._answer(pages.get(self.path))

    def _answer(self, text: str | None) -> None:
        if text is None:
            self.send_error(404)
            return
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of each request."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--region", required=True)
    parser.add_argument("--chip", required=True)
    parser.add_argument("--towards", default="10.0.0.1", help="an address in the VPC")
    parser.add_argument("--address", help="this host's address (default: the one used towards it)")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--machine-id", type=Path, default=Path("/etc/machine-id"))
    options = parser.parse_args(arguments)
    document = identity(
        instance=host_id(options.machine_id.read_text(encoding="ascii")),
        region=options.region,
        chip=options.chip,
        address=options.address or own_address(options.towards),
    )
    with Server(document, options.port) as server:
        print(json.dumps(document), flush=True)  # noqa: T201
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
