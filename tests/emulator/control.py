"""The emulator's own end-points beside moto's: how a test reaches into the server's process.

All are POST with a JSON body under `/luma-emulator/`:

- `capacity` {"pool", "launches"}: see `capacity.set_left`;
- `command-rule` {"instance", "answer"}, `take-commands` {"instance"}, `answer-command`: see
  `commands`;
- `emit` {"source", "detail-type", "detail", "resources"}: an event of AWS on the default bus;
- `fault` (a `faults.Fault`), `lift-faults` (ends holds too);
- `hold` {"service", "operation"}, `release` {"service", "operation", "all"}, `held`: see
  `faults.Holds`;
- `end-instance` {"instance"}: AWS takes an instance away.

Calls that write to DynamoDB or S3 pass one at a time: moto checks a condition and writes in two
steps, and a transaction that fails puts back a copy of its whole table, over what others wrote
meanwhile. Both services promise the opposite.
"""

import contextlib
import io
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.autoscaling.models import autoscaling_backends
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from tests.emulator import bridge, capacity, commands, faults

PREFIX = "/luma-emulator/"


class Control:
    """A WSGI application around moto's: own end-points first, then ordered faults, then moto."""

    def __init__(self, moto: Callable, region: str):
        self._moto = moto
        self._region = region
        self._faults = faults.Faults()
        self._holds = faults.Holds()
        self._one_at_a_time = {"dynamodb": threading.Lock(), "s3": threading.Lock()}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path.startswith(PREFIX):
            return self._own(path.removeprefix(PREFIX), environ, start_response)
        if self._faults.ordered or self._holds.active:
            body = _read(environ)
            environ["wsgi.input"] = io.BytesIO(body)
            self._holds.wait(environ, body)
            fault = self._faults.met_by(environ, body)
            if fault is not None:
                return faults.answer(fault, environ, start_response)
        with self._turn(environ):
            return self._moto(environ, start_response)

    def _turn(self, environ: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
        """The lock that a call waits for."""
        if environ.get("HTTP_X_AMZ_TARGET", "").startswith("DynamoDB_"):
            return self._one_at_a_time["dynamodb"]
        reads = environ.get("REQUEST_METHOD") in ("GET", "HEAD")
        if not reads and faults.signed_service(environ) == "s3":
            return self._one_at_a_time["s3"]
        return contextlib.nullcontext()

    def _own(self, name: str, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            result = self._do(name, json.loads(_read(environ) or b"{}"))
            status = "200 OK"
        except (KeyError, TypeError, ValueError) as problem:
            result, status = {"error": f"{type(problem).__name__}: {problem}"}, "400 Bad Request"
        body = json.dumps(result).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(status, headers)
        return [body]

    def _do(self, name: str, order: dict[str, Any]) -> Any:
        match name:
            case "capacity":
                capacity.set_left(order["pool"], order["launches"])
            case "command-rule":
                commands.set_rule(order["instance"], order["answer"])
            case "take-commands":
                return commands.take(order["instance"])
            case "answer-command":
                commands.answer(**order)
            case "emit":
                region = order.pop("region", self._region)
                return {"id": bridge.emit(order, account=DEFAULT_ACCOUNT_ID, region=region)}
            case "fault":
                self._faults.order(faults.Fault(**order))
            case "hold":
                self._holds.hold(order["service"], order["operation"])
            case "release":
                self._holds.release(
                    order["service"], order["operation"], everything=order.get("all", False)
                )
            case "held":
                return self._holds.waiting()
            case "lift-faults":
                self._holds.release_all()
                return {"met": self._faults.lift()}
            case "end-instance":
                self._end(order["instance"])
            case _:
                raise ValueError(f"no end-point {name!r}")
        return {}

    def _end(self, instance_id: str) -> None:
        ec2_backends[DEFAULT_ACCOUNT_ID][self._region].terminate_instances([instance_id])
        groups = autoscaling_backends[DEFAULT_ACCOUNT_ID][self._region]
        groups.notify_terminate_instances([instance_id])


def _read(environ: dict[str, Any]) -> bytes:
    if environ.get("HTTP_TRANSFER_ENCODING", "").lower() == "chunked":
        return environ["wsgi.input"].read()
    return environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
