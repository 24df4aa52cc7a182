"""The names that a job in an AWS account goes by: parameters, table items, objects, work messages.

`luma_constructs/_names.py` has the same for the constructs, which import nothing of ours; a test
compares both. Nothing here talks to AWS.

    /luma/STACK/config           what every reader of a stack needs (an SSM parameter, JSON)
    /luma/STACK/fleets/FLEET     one fleet of the stack
    /luma-keys/STACK/RUN         the data key of a run that is sealed with a key file (SecureString)
    runs/RUN/...                 objects of a run, as its folder has them; `run.json` is put last
    RUN#RUN | NODE#ID | ...      partition keys of the table; the sort keys stand below
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from runtime.spec.errors import SpecError

ACCOUNT_SCHEMA: Final = "luma/account/1"
WORK_SCHEMA: Final = "luma/work/1"
DEFAULT_STACK: Final = "Luma"
COORDINATOR_FLEET: Final = "coordinator"
COMPILER_FLEET: Final = "compiler"

RUN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
STACK_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}", re.ASCII)
DRAIN_HOOK: Final = "luma-drain"
"""The lifecycle hook that holds a leaving instance until its island has left."""
DEPLOYMENT_TAG: Final = "luma:deployment"
"""Tag of every resource and instance: the stack's name."""
FLEET_TAG: Final = "luma:fleet"
"""Tag of an instance: its fleet's name."""
METRIC_NAMESPACE: Final = "Luma"
"""CloudWatch namespace of what nodes report."""

RUN_STATES: Final = (
    "pending",
    "provisioning",
    "running",
    "terminating",
    "done",
    "failed",
    "terminated",
)
LIVE_STATES: Final = ("pending", "provisioning", "running", "terminating")

WorkKind = Literal["compile", "coordinate", "island", "export"]
Purchase = Literal["spot", "on-demand", "mixed"]

INTERRUPTED: Final = "Luma.Interrupted"
"""The node is reclaimed or drained: give the work to another one."""
RETRYABLE: Final = "Luma.Retryable"
"""Nothing is wrong with the work or the fleet: give it again."""
REFUSED: Final = "Luma.Refused"
"""This fleet cannot do it: do not give it to this fleet again."""
JOB_FAILED: Final = "Luma.JobFailed"
"""The job itself is wrong: it ends the run."""
FAILURES: Final = (INTERRUPTED, RETRYABLE, REFUSED, JOB_FAILED)

MAX_SLOT: Final = 97
"""Islands of one run are 98 at most: a Map state of the machine works on 100 places."""


# ------------------------------------------------------------------ parameters


def parameters_path(stack: str) -> str:
    """Give the path below which all parameters of a stack lie."""
    return f"/luma/{stack}/"


def config_parameter(stack: str) -> str:
    """Give the name of the parameter with the stack's configuration."""
    return f"/luma/{stack}/config"


def fleet_parameter(stack: str, fleet: str) -> str:
    """Give the name of a fleet's parameter."""
    return f"/luma/{stack}/fleets/{fleet}"


def key_parameter(stack: str, run: str) -> str:
    """Give the name of the parameter with the data key of a run that is sealed with a key file."""
    return f"/luma-keys/{stack}/{run}"


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountConfig:
    """What every reader of a stack needs to know; the value of its parameter `config`.

    Attributes:
        stack: the stack's name.
        region: its region.
        bucket: name of the bucket of runs.
        table: name of the table of runs.
        jobs_machine: ARN of the state machine that runs a job.
        failover_machine: ARN of the one that handles interruptions.
        topic: ARN of the topic of notices; None where there is none.
        coordinator_fleet: name of the fleet that coordinates.
        compiler_queue: URL of the compiler's queue; None where jobs are compiled before launch.
        compiler_fleet: name of the compiler's fleet, likewise.
        compiler_asg: its Auto Scaling group, where the stack says so.
    """

    stack: str
    region: str
    bucket: str
    table: str
    jobs_machine: str
    failover_machine: str | None
    topic: str | None
    coordinator_fleet: str
    compiler_queue: str | None
    compiler_fleet: str | None
    compiler_asg: str | None = None

    @classmethod
    def from_json(cls, text: str, *, name: str = "config") -> AccountConfig:
        """Read a parameter's value.

        Raises:
            SpecError: it is no configuration of this version.
        """
        fields = _Fields(text, name)
        fields.literal("schema", ACCOUNT_SCHEMA)
        config = cls(
            stack=fields.text("stack"),
            region=fields.text("region"),
            bucket=fields.text("bucket"),
            table=fields.text("table"),
            jobs_machine=fields.text("jobs_machine"),
            failover_machine=fields.optional_text("failover_machine"),
            topic=fields.optional_text("topic"),
            coordinator_fleet=fields.text("coordinator_fleet"),
            compiler_queue=fields.optional_text("compiler_queue"),
            compiler_fleet=fields.optional_text("compiler_fleet"),
            compiler_asg=fields.optional_text("compiler_asg"),
        )
        fields.end()
        return config


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """One fleet of a stack; the value of its parameter.

    Attributes:
        name: the fleet's name.
        target: what its islands run, such as `cuda-sm90`; `coordinator` for the coordinator's host.
        chips: chips of one island.
        queue: URL of the queue that its nodes take work from.
        asg: name of its Auto Scaling group; None for nodes outside EC2.
        purchase: how its instances are bought.
        instance_types: the types that it may get, the preferred first.
        order: its place in the order of preference.
        usd_per_hour: price of one instance, where the stack's author or the plan knows it.
        most: instances that it may have at once, where the stack says so (`max`).
    """

    name: str
    target: str
    chips: int
    queue: str
    asg: str | None
    purchase: Purchase
    instance_types: tuple[str, ...]
    order: int
    usd_per_hour: float | None = None
    most: int | None = None

    @classmethod
    def from_json(cls, text: str, *, name: str = "fleet") -> Fleet:
        """Read a parameter's value.

        Raises:
            SpecError: it is no fleet of this version.
        """
        fields = _Fields(text, name)
        purchase = fields.text("purchase")
        if purchase not in get_args(Purchase):
            raise fields.wrong("purchase", f"one of {', '.join(get_args(Purchase))}")
        fleet = cls(
            name=fields.text("fleet"),
            target=fields.text("target"),
            chips=fields.integer("chips", 1, 1 << 16),
            queue=fields.text("queue"),
            asg=fields.optional_text("asg"),
            purchase=cast("Purchase", purchase),
            instance_types=fields.texts("instance_types"),
            order=fields.integer("order", 0, 1 << 16),
            usd_per_hour=fields.optional_number("usd_per_hour"),
            most=fields.optional_integer("max", 0, 1 << 16),
        )
        fields.end()
        return fleet


# ----------------------------------------------------------------- work messages


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One message of a state machine to the nodes of a fleet.

    Attributes:
        kind: what is to be done.
        run: the run's name.
        slot: which island of the run; 0 for other kinds.
        attempt: how often this work was given before.
        token: the task token that every answer carries; never logged.
        heartbeat_s: silence after which the state machine gives the work again, in seconds.
    """

    kind: WorkKind
    run: str
    slot: int
    attempt: int
    token: str
    heartbeat_s: float

    def to_json(self) -> str:
        """Give the message's body."""
        return json.dumps(
            {
                "schema": WORK_SCHEMA,
                "kind": self.kind,
                "run": self.run,
                "slot": self.slot,
                "attempt": self.attempt,
                "token": self.token,
                "heartbeat_s": self.heartbeat_s,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Work:
        """Read a message's body strictly.

        Raises:
            SpecError: it is no work message of this version; the text never holds the token.
        """
        fields = _Fields(text, "work message", secret=("token",))
        fields.literal("schema", WORK_SCHEMA)
        kind = fields.text("kind")
        if kind not in get_args(WorkKind):
            raise fields.wrong("kind", f"one of {', '.join(get_args(WorkKind))}")
        run = fields.text("run")
        if not RUN_NAME.fullmatch(run):
            raise fields.wrong("run", "1 to 63 of a-z, 0-9 and '-'")
        work = cls(
            kind=cast("WorkKind", kind),
            run=run,
            slot=fields.integer("slot", 0, MAX_SLOT),
            attempt=fields.integer("attempt", 0, 1 << 31),
            token=fields.text("token"),
            heartbeat_s=fields.number("heartbeat_s", 0.1, 86_400.0),
        )
        fields.end()
        return work


# ------------------------------------------------------------------------- items


def run_key(run: str) -> str:
    """Give the partition key of everything about a run."""
    return f"RUN#{run}"


def node_key(instance: str) -> str:
    """Give the partition key of a node's item."""
    return f"NODE#{instance}"


def fleet_key(fleet: str) -> str:
    """Give the partition key of a fleet's desired size and of the runs' claims on it."""
    return f"FLEET#{fleet}"


def event_key(event: str) -> str:
    """Give the partition key of an interruption event."""
    return f"EVENT#{event}"


RUN_ITEM: Final = "RUN"
NODE_ITEM: Final = "NODE"
EVENT_ITEM: Final = "EVENT"
FLEET_ITEM: Final = "FLEET"
COORDINATOR_ITEM: Final = "COORDINATOR"
EXPIRES: Final = "expires_at"


def slot_item(slot: int) -> str:
    """Give the sort key of an island's slot."""
    return f"SLOT#{slot:02d}"


def claim_item(run: str) -> str:
    """Give the sort key of a run's claim on a fleet."""
    return f"RUN#{run}"


def commit_item(step: int) -> str:
    """Give the sort key of a committed step."""
    return f"COMMIT#{step:010d}"


def recommit_item(step: int, number: int) -> str:
    """Give the sort key of a step that was computed again."""
    return f"RECOMMIT#{step:010d}#{number:06d}"


def epoch_item(epoch: int) -> str:
    """Give the sort key of a membership epoch."""
    return f"EPOCH#{epoch:010d}"


def checkpoint_item(step: int) -> str:
    """Give the sort key of a durable checkpoint."""
    return f"CHECKPOINT#{step:010d}"


def note_item(number: int) -> str:
    """Give the sort key of a run's event."""
    return f"NOTE#{number:010d}"


# ----------------------------------------------------------------------- objects


def run_prefix(run: str) -> str:
    """Give the prefix of a run's objects."""
    return f"runs/{run}/"


def run_object(run: str, path: str) -> str:
    """Give the key of a run's object: `run.json`, `artifact.luma`, `logs/island-0.log`, ..."""
    return f"runs/{run}/{path}"


ARTIFACT_OBJECT: Final = "artifact.luma"
ARTIFACT_RECORD: Final = "artifact.json"
CERTIFICATE_OBJECT: Final = "certificate.json"
EVENTS_OBJECT: Final = "events.jsonl"
EXPORT_PREFIX: Final = "export/"
LOGS_PREFIX: Final = "logs/"


def check_run_name(value: str) -> str:
    """Give a run's name as it is.

    Raises:
        SpecError: it has another form.
    """
    if RUN_NAME.fullmatch(value):
        return value
    raise SpecError(
        f"run: {value!r} is no run's name; expected 1 to 63 of a-z, 0-9 and '-', "
        "the first a letter or a digit"
    )


def check_stack_name(value: str) -> str:
    """Give a stack's name as it is.

    Raises:
        SpecError: it has another form.
    """
    if STACK_NAME.fullmatch(value):
        return value
    raise SpecError(
        f"stack: {value!r} is no stack's name; expected a letter, then letters, digits and '-'"
    )


class _Fields:
    """Takes the fields of a JSON object one by one; what is left at the end is a mistake."""

    def __init__(self, text: str, name: str, *, secret: tuple[str, ...] = ()) -> None:
        self._name, self._secret = name, secret
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise SpecError(f"{name}: is no JSON") from None
        if not isinstance(document, dict):
            raise SpecError(f"{name}: is no JSON object")
        self._all: Mapping[str, Any] = document
        self._left = dict(document)

    def wrong(self, field: str, expected: str) -> SpecError:
        """Give the error of a field; a secret's value is left out."""
        if field not in self._all:
            found = "is missing"
        elif field in self._secret:
            found = "has a wrong value"
        else:
            found = f"{self._all[field]!r:.80} is not allowed"
        return SpecError(f"{self._name}.{field}: {found}; expected {expected}")

    def literal(self, field: str, value: str) -> None:
        if self._left.pop(field, None) != value:
            raise self.wrong(field, repr(value))

    def text(self, field: str) -> str:
        value = self._left.pop(field, None)
        if not isinstance(value, str) or not value:
            raise self.wrong(field, "text")
        return value

    def optional_text(self, field: str) -> str | None:
        value = self._left.pop(field, None)
        if value is None or (isinstance(value, str) and value):
            return value
        raise self.wrong(field, "text or null")

    def texts(self, field: str) -> tuple[str, ...]:
        value = self._left.pop(field, None)
        if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
            return tuple(value)
        raise self.wrong(field, "a list of texts")

    def integer(self, field: str, low: int, high: int) -> int:
        value = self._left.pop(field, None)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(field, f"a whole number from {low} to {high}")
        return value

    def number(self, field: str, low: float, high: float) -> float:
        value = self._left.pop(field, None)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise self.wrong(field, f"a number from {low} to {high}")
        return float(value)

    def optional_number(self, field: str) -> float | None:
        if self._left.get(field) is None:
            self._left.pop(field, None)
            return None
        return self.number(field, 0.0, 1e6)

    def optional_integer(self, field: str, low: int, high: int) -> int | None:
        if self._left.get(field) is None:
            self._left.pop(field, None)
            return None
        return self.integer(field, low, high)

    def end(self) -> None:
        if self._left:
            unknown = ", ".join(sorted(self._left))
            raise SpecError(
                f"{self._name}: has unknown fields: {unknown}",
                remedy="use the luma of the version that the stack was deployed with",
            )
