"""`luma check --account`: what a launch into an account needs, each with its remedy.

Every check is a read. Quotas are counted in vCPUs by family and way of buying; AWS gives their names
as text, and a fleet's instance types are held against those.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from runtime.plan.catalogue_file import current_catalogue
from runtime.run.account.stack import Stack, open_stack
from runtime.spec import Catalogue
from runtime.spec.account import Fleet
from runtime.spec.aws import AwsError, aws_client, aws_errors
from runtime.spec.errors import LumaError

__all__ = ["Check", "check_account", "judge_quota"]

BOOTSTRAP_PARAMETER: Final = "/cdk-bootstrap/hnb659fds/version"
_BOOTSTRAP_LEAST: Final = 6
"""What the templates of CDK's default synthesizer ask for."""

_ON_DEMAND: Final = re.compile(r"Running On-Demand (.+) instances")
_SPOT: Final = re.compile(r"All (.+) Spot Instance Requests")
_FAMILY: Final = re.compile(r"[A-Za-z]+\d*")
_TYPE: Final = re.compile(r"([a-z]+)(\d+)")


@dataclass(frozen=True, slots=True)
class Check:
    """What one look found.

    Attributes:
        check: what was looked at.
        ok: whether a launch can rely on it.
        detail: what was found, with the remedy where it is wrong.
    """

    check: str
    ok: bool
    detail: str

    def to_json(self) -> dict[str, Any]:
        """Give it as plain values."""
        return {"check": self.check, "ok": self.ok, "detail": self.detail}


def check_account(stack_name: str, *, region: str | None = None) -> list[Check]:
    """Look at an account: credentials, bootstrap, stack, quotas of its fleets.

    Args:
        stack_name: the stack's name.
        region: its region; default: that of the environment.

    Returns:
        The checks in order. Without credentials nothing after them is asked.
    """
    found = [_look("credentials", lambda: _identity(region))]
    if not found[0].ok:
        return found
    found.append(_look("bootstrap", lambda: _bootstrap(region)))
    opened: list[Stack] = []

    def read_stack() -> str:
        opened.append(open_stack(stack_name, region=region))
        return _describe(opened[0])

    found.append(_look(f"stack {stack_name}", read_stack))
    for stack in opened:
        found += [*_parts(stack), *_quotas(stack)]
    return found


def _look(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, ok=True, detail=look())
    except LumaError as error:
        return Check(name, ok=False, detail=error.diagnostics())


def _identity(region: str | None) -> str:
    with aws_errors("ask who this is"):
        answer = aws_client("sts", region=region).get_caller_identity()
    return f"account {answer['Account']}, {answer['Arn']}"


def _bootstrap(region: str | None) -> str:
    remedy = "run `cdk bootstrap aws://ACCOUNT/REGION` once, then deploy"
    try:
        with aws_errors(f"read the parameter {BOOTSTRAP_PARAMETER}"):
            answer = aws_client("ssm", region=region).get_parameter(Name=BOOTSTRAP_PARAMETER)
    except AwsError as error:
        if error.reason != "missing":
            raise
        raise AwsError("this region is not bootstrapped", reason="missing", remedy=remedy) from None
    version = answer["Parameter"]["Value"]
    if not version.isdigit() or int(version) < _BOOTSTRAP_LEAST:
        raise AwsError(
            f"bootstrap version {version}; at least {_BOOTSTRAP_LEAST} is needed",
            reason="request",
            remedy=remedy,
        )
    return f"version {version}"


def _describe(stack: Stack) -> str:
    fleets = ", ".join(f"{f.name} ({f.target}, {f.purchase})" for f in stack.fleets.values())
    compiler = "a compiler" if stack.config.compiler_queue else "no compiler: jobs compile here"
    return f"in {stack.region}: {compiler}; fleets: {fleets or 'none'}"


def _parts(stack: Stack) -> Iterator[Check]:
    """Look whether what the parameters name is there, and may be read."""
    region, config = stack.region, stack.config

    def ask(what: str, service: str, operation: str, **arguments: Any) -> Callable[[], str]:
        def look() -> str:
            with aws_errors(f"look at {what}"):
                getattr(aws_client(service, region=region), operation)(**arguments)
            return what

        return look

    looks = {
        "bucket": ask(config.bucket, "s3", "head_bucket", Bucket=config.bucket),
        "table": ask(config.table, "dynamodb", "describe_table", TableName=config.table),
        "machine": ask(
            config.jobs_machine,
            "stepfunctions",
            "describe_state_machine",
            stateMachineArn=config.jobs_machine,
        ),
    }
    for fleet in stack.fleets.values():
        looks[f"queue of {fleet.name}"] = ask(
            fleet.queue, "sqs", "get_queue_attributes", QueueUrl=fleet.queue
        )
    for name, look in looks.items():
        yield _look(name, look)


def _quotas(stack: Stack) -> Iterator[Check]:
    """Hold each fleet on EC2 against the account's quotas."""
    fleets = [fleet for fleet in stack.fleets.values() if fleet.asg is not None]
    if not fleets:
        return
    try:
        quotas = _read_quotas(stack.region)
    except AwsError as error:
        yield Check("quotas", ok=False, detail=error.diagnostics())
        return
    catalogue = current_catalogue()
    for fleet in fleets:
        yield judge_quota(fleet, quotas, catalogue)


def _read_quotas(region: str) -> dict[str, float]:
    with aws_errors("read the quotas of EC2"):
        pages = (
            aws_client("service-quotas", region=region)
            .get_paginator("list_service_quotas")
            .paginate(ServiceCode="ec2")
        )
        return {
            item["QuotaName"]: float(item["Value"]) for page in pages for item in page["Quotas"]
        }


def judge_quota(fleet: Fleet, quotas: Mapping[str, float], catalogue: Catalogue) -> Check:
    """Say how many instances of a fleet the account's quotas allow.

    Args:
        fleet: the fleet.
        quotas: EC2's quotas by name, in vCPUs.
        catalogue: for the vCPUs of its instance types.
    """
    name = f"quota of {fleet.name}"
    ways = {"spot": (_SPOT,), "on-demand": (_ON_DEMAND,)}.get(fleet.purchase, (_SPOT, _ON_DEMAND))
    texts, ok = [], True
    for kind in fleet.instance_types:
        vcpus = _vcpus(catalogue, kind)
        for way in ways:
            found = _quota_for(kind, way, quotas)
            if found is None:
                texts.append(f"{kind}: AWS names no quota for it")
                continue
            quota, value = found
            count = None if vcpus is None else math.floor(value / vcpus)
            ok = ok and value > 0 and count != 0
            shown = "an unknown number" if count is None else str(count)
            texts.append(f"{kind}: {shown} of it ({quota}: {value:g} vCPUs)")
    detail = "; ".join(texts) or "no instance type is listed"
    if not ok:
        detail += (
            "\n  remedy: ask for more in the console of Service Quotas (EC2), or give the fleet "
            "other instance types"
        )
    return Check(name, ok=ok, detail=detail)


def _quota_for(
    kind: str, way: re.Pattern[str], quotas: Mapping[str, float]
) -> tuple[str, float] | None:
    """Give the quota of an instance type: that of its generation, else of its family."""
    match = _TYPE.match(kind)
    if match is None:
        return None
    family, generation = match[1], match[1] + match[2]
    named = {name: set(_families(way, name)) for name in quotas}
    for wanted in (generation, family):
        for name, families in named.items():
            if wanted in families:
                return name, quotas[name]
    return None


def _families(way: re.Pattern[str], name: str) -> Iterable[str]:
    match = way.fullmatch(name)
    if match is None:
        return ()
    return (word.lower() for word in _FAMILY.findall(match[1]) if word not in {"and", "Standard"})


def _vcpus(catalogue: Catalogue, kind: str) -> int | None:
    try:
        return catalogue.by_name(kind).vcpus
    except KeyError:
        return None
