"""SSM Run Command: commands wait for their instance instead of succeeding by themselves.

moto answers every command with success at once. Here a command is `Pending` until it is answered:

- by a player of instances, which takes it, runs its script and reports the exit code, or
- by a rule that a test sets: `Success`, `Failed`, `TimedOut`, `Cancelled` at once, or `silent`
  (never answered, until the command's delivery time-out makes it `TimedOut`).

Without a rule and without players moto's own answer stands; a command goes to the instances that it
names, and not, as in moto, to all others too. Documented behaviour added to it: an
instance that is not running has no agent, so `SendCommand` refuses it (`InvalidInstanceId`).
"""

import threading
import time
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.ec2.models import ec2_backends
from moto.ssm.models import Command, SimpleSystemManagerBackend, ssm_backends

from tests.emulator.patching import extends

DONE = ("Success", "Failed", "TimedOut", "Cancelled")
PLAYED = "played"  # answered by a player of instances
SILENT = "silent"

_lock = threading.RLock()
_rules: dict[str, str] = {}  # instance id or "*" -> an answer, PLAYED or SILENT
_open: list[tuple[float, Command, dict[str, Any]]] = []  # deadline, command, invocation


def install() -> None:
    """Change Run Command in this process; call it before the first request."""
    extends(SimpleSystemManagerBackend, "send_command")(_send_command)
    extends(SimpleSystemManagerBackend, "get_command_invocation")(_get_command_invocation)


def set_rule(instance: str, answer: str | None) -> None:
    """Say how commands to an instance (`*`: to any) are answered; `None` removes the rule."""
    if answer is not None and answer not in (*DONE, PLAYED, SILENT):
        raise ValueError(f"answer: {answer!r} is none of {(*DONE, PLAYED, SILENT)}")
    with _lock:
        if answer is None:
            _rules.pop(instance, None)
        else:
            _rules[instance] = answer


def take(instance_id: str) -> list[dict[str, Any]]:
    """The commands that wait for an instance; they are `InProgress` from now on.

    Returns:
        For each `command_id`, the `document`'s content and the `parameters`.
    """
    with _lock:
        taken = []
        for _, command, invocation in _open:
            if invocation["InstanceId"] == instance_id and invocation["Status"] == "Pending":
                _set(command, invocation, "InProgress", -1)
                taken.append(_as_sent(command))
        return taken


def answer(command_id: str, instance_id: str, code: int, out: str, err: str) -> None:
    """Report a script's end: exit code 0 is `Success`, anything else `Failed`."""
    with _lock:
        for entry in list(_open):
            _, command, invocation = entry
            if command.command_id == command_id and invocation["InstanceId"] == instance_id:
                _set(command, invocation, "Success" if code == 0 else "Failed", code)
                invocation["StandardOutputContent"] = out[-24000:]
                invocation["StandardErrorContent"] = err[-8000:]
                _open.remove(entry)


def _as_sent(command: Command) -> dict[str, Any]:
    backend = ssm_backends[command.account_id][command.backend_region]
    document = backend._documents.get(command.document_name)
    return {
        "command_id": command.command_id,
        "document_name": command.document_name,
        "document": document.find(document.default_version).content if document else None,
        "parameters": command.parameters,
    }


def _set(command: Command, invocation: dict[str, Any], status: str, code: int) -> None:
    invocation.update(Status=status, StatusDetails=status, ResponseCode=code)
    command.status = status


def _send_command(original: Any, backend: SimpleSystemManagerBackend, *args: Any, **kw: Any) -> Any:
    for instance_id in kw.get("instance_ids") or []:
        _require_running(backend, instance_id)
    named = list(kw.get("instance_ids") or [])
    command = original(backend, *args, **kw)
    if not kw.get("targets"):
        # moto takes no targets for all instances there are.
        command.instance_ids = named
        command.invocations = [i for i in command.invocations if i["InstanceId"] in named]
    command.backend_region = backend.region_name
    deadline = time.monotonic() + float(command.timeout_seconds)
    with _lock:
        for invocation in command.invocations:
            rule = _rules.get(invocation["InstanceId"], _rules.get("*"))
            if rule in DONE:
                _set(command, invocation, rule, 0 if rule == "Success" else 1)
            elif rule is not None:
                _set(command, invocation, "Pending", -1)
                _open.append((deadline, command, invocation))
    return command


def _require_running(backend: SimpleSystemManagerBackend, instance_id: str) -> None:
    ec2 = ec2_backends[backend.account_id][backend.region_name]
    states = {i.id: i.state for r in ec2.reservations.values() for i in r.instances}
    if instance_id.startswith("i-") and states.get(instance_id) != "running":
        raise JsonRESTError(
            "InvalidInstanceId", f"Instances [[{instance_id}]] not in a valid state for account"
        )


def _get_command_invocation(
    original: Any, backend: SimpleSystemManagerBackend, *args: Any, **kwargs: Any
) -> Any:
    with _lock:
        for entry in list(_open):
            deadline, command, invocation = entry
            if time.monotonic() > deadline:
                _set(command, invocation, "TimedOut", -1)
                invocation["StatusDetails"] = "DeliveryTimedOut"
                _open.remove(entry)
    return original(backend, *args, **kwargs)
