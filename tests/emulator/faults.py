"""Errors that a test orders for AWS calls: denied, throttled, broken.

A fault names a service and an operation, how AWS would answer, and how many calls it meets. It
is given before moto sees the call, so nothing has happened. The interpreter's own calls pass here
as well: a state's Retry and Catch can be driven.

Calls can also be held: each waits in its own thread until it is released, and is then answered as
usual. So a test decides the order of what runs at once, and where something is stopped half-way.
"""

import json
import re
import threading
import urllib.parse
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

_SERVICE = re.compile(r"Credential=[^/]+/\d+/[^/]+/(?P<service>[^/]+)/aws4_request")
_XML = (
    '<?xml version="1.0" encoding="UTF-8"?><ErrorResponse><Error><Type>Sender</Type>'
    "<Code>{code}</Code><Message>{message}</Message></Error>"
    "<RequestId>injected</RequestId></ErrorResponse>"
)
_XML_EC2 = (
    '<?xml version="1.0" encoding="UTF-8"?><Response><Errors><Error><Code>{code}</Code>'
    "<Message>{message}</Message></Error></Errors><RequestID>injected</RequestID></Response>"
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One ordered error.

    Attributes:
        service: the name in a request's signature: `s3`, `sqs`, `states`, `autoscaling`.
        operation: as the API names it (`SendMessage`); for S3 the HTTP method; `*` for any.
        code: AWS's error code: `AccessDenied`, `ThrottlingException`.
        message: AWS's text.
        status: HTTP status.
        times: how many calls meet it; 0 for all until it is lifted.
        holding: only calls whose body or path holds this text.
    """

    service: str
    operation: str = "*"
    code: str = "AccessDenied"
    message: str = "injected by the test"
    status: int = 400
    times: int = 0
    holding: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fault as the control end-point takes it."""
        return asdict(self)


class Holds:
    """Calls that wait for a test's word."""

    def __init__(self):
        self._changed = threading.Condition()
        self._held: set[tuple[str, str]] = set()
        self._waiting: list[tuple[str, str]] = []
        self._passes: dict[tuple[str, str], int] = {}

    def hold(self, service: str, operation: str) -> None:
        """Hold the coming calls of an operation."""
        with self._changed:
            self._held.add((service, operation))

    def release(self, service: str, operation: str, *, everything: bool = False) -> None:
        """Let one waiting call go on; with `everything` all of them, and hold none any more."""
        call = (service, operation)
        with self._changed:
            if everything:
                self._held.discard(call)
                self._passes.pop(call, None)
            elif call in self._waiting:
                self._passes[call] = self._passes.get(call, 0) + 1
            self._changed.notify_all()

    def release_all(self) -> None:
        """Hold nothing any more."""
        with self._changed:
            self._held.clear()
            self._passes.clear()
            self._changed.notify_all()

    @property
    def active(self) -> bool:
        """Whether any call is to be held."""
        return bool(self._held)

    def waiting(self) -> list[tuple[str, str]]:
        """The calls that wait now, oldest first."""
        with self._changed:
            return list(self._waiting)

    def wait(self, environ: dict[str, Any], body: bytes) -> None:
        """Wait until this call may go on; at once where it is not held."""
        call = named(environ, body)
        with self._changed:
            if call not in self._held:
                return
            self._waiting.append(call)
            self._changed.wait_for(lambda: call not in self._held or self._passes.get(call, 0) > 0)
            self._waiting.remove(call)
            if self._passes.get(call, 0) > 0:
                self._passes[call] -= 1


class Faults:
    """The orders of one server, and the calls it has seen."""

    def __init__(self):
        self._lock = threading.Lock()
        self._orders: list[list[Any]] = []  # [fault, calls left or None]
        self.met = 0

    def order(self, fault: Fault) -> None:
        """Add an order; the oldest that fits a call is the one it meets."""
        with self._lock:
            self._orders.append([fault, fault.times or None])

    def lift(self) -> int:
        """Forget all orders; returns how many calls have met one so far."""
        with self._lock:
            self._orders.clear()
            return self.met

    @property
    def ordered(self) -> bool:
        """Whether any call can meet a fault."""
        return bool(self._orders)

    def met_by(self, environ: dict[str, Any], body: bytes) -> Fault | None:
        """The fault that a call meets, counted; `None` if it passes."""
        service, operation = named(environ, body)
        where = environ.get("PATH_INFO", "") + body.decode("utf-8", "replace")
        with self._lock:
            for entry in self._orders:
                fault, left = entry
                fits = fault.service == service and fault.operation in ("*", operation)
                if fits and fault.holding in where:
                    self.met += 1
                    if left is not None:
                        entry[1] = left - 1
                        if entry[1] == 0:
                            self._orders.remove(entry)
                    return fault
        return None


def signed_service(environ: dict[str, Any]) -> str:
    """The service that a call is signed for; empty for an unsigned one."""
    signed = _SERVICE.search(environ.get("HTTP_AUTHORIZATION", ""))
    return signed["service"] if signed else ""


def named(environ: dict[str, Any], body: bytes) -> tuple[str, str]:
    """The service and operation of a signed call."""
    service = signed_service(environ)
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        return service, target.rpartition(".")[2]
    form = urllib.parse.parse_qs(body.decode("utf-8", "replace")) if b"Action=" in body else {}
    if "Action" in form:
        return service, form["Action"][0]
    return service, environ.get("REQUEST_METHOD", "")


def answer(fault: Fault, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Write a fault as the call's protocol does: JSON, or the query protocol's XML."""
    if environ.get("HTTP_X_AMZ_TARGET"):
        body = json.dumps({"__type": fault.code, "message": fault.message}).encode()
        kind = "application/x-amz-json-1.1"
    elif fault.service == "s3":
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{fault.code}</Code>'
            f"<Message>{fault.message}</Message></Error>"
        ).encode()
        kind = "application/xml"
    else:
        form = _XML_EC2 if fault.service == "ec2" else _XML
        body = form.format(code=fault.code, message=fault.message).encode()
        kind = "text/xml"
    headers = [
        ("Content-Type", kind),
        ("Content-Length", str(len(body))),
        ("x-amzn-RequestId", "injected"),
        ("x-amz-request-id", "injected"),
    ]
    start_response(f"{fault.status} Injected", headers)
    return [body]
