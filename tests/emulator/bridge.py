"""The three gaps between moto's EventBridge, CloudFormation and Step Functions, closed.

1. CloudFormation puts a state machine where it is never executed. Both names now mean one backend.
2. A rule cannot start a state machine: `put_events` fails, and later targets get nothing. Such
   targets are now started here, with a name of their own for each execution.
3. An event's `time` is a number; the copy for a state machine has AWS's ISO form, and lacks moto's
   own `ingestion-time`.

Bypassed: the target's role, its retry policy and its dead-letter queue (a start that fails is
logged). They are asserted on the template.
"""

import copy
import json
import logging
import threading
import uuid
from datetime import UTC, datetime
from typing import Any

import jsonpath_ng.ext
import moto.stepfunctions.models as sfn_models
from moto.core.config import default_user_config
from moto.events.models import Rule, events_backends
from moto.stepfunctions.parser.models import stepfunctions_parser_backends
from moto.utilities.arns import parse_arn

from tests.emulator.patching import extends

log = logging.getLogger(__name__)
_ONE_DELIVERY = threading.RLock()  # `targets` of a rule is reduced while moto delivers to the rest


def install() -> None:
    """Close the three gaps in this process; call it before the first request."""
    default_user_config["stepfunctions"] = {"execute_state_machine": True}
    sfn_models.stepfunctions_backends = stepfunctions_parser_backends
    extends(Rule, "send_to_targets")(_send_to_targets)


def emit(event: dict[str, Any], *, account: str, region: str) -> str:
    """Deliver an event of AWS itself (`aws.ec2`, `aws.states`) to the default bus of a region.

    `PutEvents` refuses sources that begin with `aws.`, so this is the emulator's alone.

    Args:
        event: `source`, `detail-type`, `detail`; optionally `resources` and `id`.
        account: whose bus.
        region: of the bus.

    Returns:
        The event's id.
    """
    event_id = event.get("id") or str(uuid.uuid4())
    now = datetime.now(UTC).timestamp()
    message = {
        "version": "0",
        "id": event_id,
        "detail-type": event["detail-type"],
        "source": event["source"],
        "account": account,
        "time": now,
        "region": region,
        "resources": list(event.get("resources", [])),
        "detail": event["detail"],
        "ingestion-time": now,
    }
    bus = events_backends[account][region].describe_event_bus("default")
    for rule in list(bus.rules.values()):
        try:
            rule.send_to_targets(copy.deepcopy(message))
        except Exception:  # a target that is gone fails no call of the API that caused the event
            log.exception("rule %s did not get %s", rule.name, event["detail-type"])
    return event_id


def _send_to_targets(
    original: Any, rule: Rule, event: dict[str, Any], transform_input: bool = True
) -> None:
    if rule.state != "ENABLED" or not rule.event_pattern.matches_event(event):
        return
    machines = [t for t in rule.targets if parse_arn(t["Arn"]).service == "states"]
    for target in machines:
        _start(target, event)
    with _ONE_DELIVERY:
        everything = rule.targets
        rule.targets = [t for t in everything if t not in machines]
        try:
            original(rule, event, transform_input)
        finally:
            rule.targets = everything


def _start(target: dict[str, Any], event: dict[str, Any]) -> None:
    arn = parse_arn(target["Arn"])
    backend = stepfunctions_parser_backends[arn.account][arn.region]
    text = json.dumps(machine_input(target, as_delivered(event)))
    try:
        backend.start_execution(target["Arn"], str(uuid.uuid4()), text)
    except Exception:  # AWS would try again and then fill the dead-letter queue
        log.exception("the rule's target %s could not be started", target["Arn"])


def as_delivered(event: dict[str, Any]) -> dict[str, Any]:
    """The event as AWS hands it to a target: ISO time, none of moto's own keys."""
    delivered = {k: copy.deepcopy(v) for k, v in event.items() if k != "ingestion-time"}
    if isinstance(delivered.get("time"), int | float):
        moment = datetime.fromtimestamp(delivered["time"], tz=UTC)
        delivered["time"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    return delivered


def machine_input(target: dict[str, Any], event: dict[str, Any]) -> Any:
    """What a target gets: the whole event, `Input`, `InputPath` or `InputTransformer`."""
    if "InputTransformer" in target:
        return _transformed(target["InputTransformer"], event)
    if "Input" in target:
        return json.loads(target["Input"])
    if "InputPath" in target:
        return _at(target["InputPath"], event)
    return event


def _at(path: str, event: dict[str, Any]) -> Any:
    found = jsonpath_ng.ext.parse(path).find(event)
    return found[0].value if found else None


def _transformed(transformer: dict[str, Any], event: dict[str, Any]) -> Any:
    """A template with its placeholders filled; AWS writes a string's quotes where they are missing."""
    text = transformer["InputTemplate"]
    for name, path in transformer.get("InputPathsMap", {}).items():
        value = _at(path, event)
        if isinstance(value, str):
            text = text.replace(f'"<{name}>"', json.dumps(value))
        text = text.replace(f"<{name}>", json.dumps(value))
    return json.loads(text)
