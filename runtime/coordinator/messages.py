"""What an island may say to the coordinator, field by field.

A message is checked here before the state machine sees it, so that the state machine may rely on
its fields, and a fault in it is a bug of ours and never a peer's doing.
"""

from __future__ import annotations

from types import UnionType

from runtime.coordinator.wire import Message
from runtime.spec.errors import CoordinationError

_Fields = dict[str, type | UnionType]

_NUMBER = int | float
_STEP: _Fields = {"step": int, "attempt": int}
_EPOCH: _Fields = {"epoch": int, **_STEP}
_COUNTERS = dict.fromkeys(("loss", "tokens", "overflow", "nonfinite", "vanished"), int)

_FIELDS: dict[str, _Fields] = {
    "hello": {
        "island": str,
        "run_id": str,
        "pid": int,
        "host": str,
        "port": int,
        "sum": dict | None,
        **_STEP,
    },
    "loaded": {"request": int, "step": int, "state_hash": str},
    "heartbeat": {"task_s": _NUMBER},
    "done": {"shard": int, "seconds": _NUMBER | None, **_STEP},
    "cannot_reduce": _EPOCH,
    "ring_failed": {"reason": str, **_EPOCH},
    "summed": {"hash": str, **_COUNTERS, **_EPOCH},
    "applied": {"step": int, "grad_norm": _NUMBER, "state_hash": str | None},
    "synced": {"request": int, **_STEP},
    "sync_failed": {"request": int, "reason": str},
    "checkpointed": {
        "step": int,
        "state_hash": str,
        "path": str,
        "seconds": _NUMBER,
        "stall_s": _NUMBER,
    },
    "checkpoint_failed": {"step": int, "error": str},
    "leaving": {"reason": str},
    "error": {"error": str},
}
_SUM: _Fields = {"step": int, "hash": str}


def check_message(message: Message) -> Message:
    """Give a message of an island back if it has every field that its type needs.

    Raises:
        CoordinationError: its type is unknown, or a field is missing or of another type.
    """
    kind = message["type"]
    fields = _FIELDS.get(kind)
    if fields is None:
        raise CoordinationError(f"an island sent a message of type '{str(kind)[:40]}'")
    _check_fields(message, fields, kind)
    if kind == "hello" and message["sum"] is not None:
        _check_fields(message["sum"], _SUM, "hello.sum")
    return message


def _check_fields(values: Message, fields: _Fields, where: str) -> None:
    for name, kind in fields.items():
        if name not in values or not isinstance(values[name], kind):
            shown = repr(values[name])[:40] if name in values else "nothing"
            raise CoordinationError(
                f"message '{where}': field '{name}' has {shown}, expected {_type_name(kind)}"
            )


def _type_name(kind: type | UnionType) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
