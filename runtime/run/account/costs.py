"""Everything of a stack that costs money now, whoever left it there.

Looked at: every instance that carries the stack's tag, in a group or not; every group's desired
size; load balancers, NAT gateways and interface endpoints with the tag; claims of runs on fleets. A
row is `left` where no live run accounts for it: that is what a crashed launch leaves, and what
`luma down` ends.

Prices are those of the fleet's parameter, else the catalogue's on-demand price, which a spot
instance stays below; None where neither is known. Disks, requests and stored bytes are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from runtime.plan.catalogue_file import current_catalogue
from runtime.run.account.stack import Stack
from runtime.run.account.start import is_live
from runtime.spec import Catalogue
from runtime.spec.account import (
    DEPLOYMENT_TAG,
    FLEET_TAG,
    NODE_ITEM,
    RUN_ITEM,
    fleet_key,
    node_key,
)
from runtime.spec.aws import aws_client, aws_errors

__all__ = ["CostRow", "cost_rows", "rate_text"]

_BILLED: Final = ("pending", "running", "stopping", "shutting-down")

_LIST_PRICES: Final = {"load balancer": 0.0225, "nat gateway": 0.045, "interface endpoint": 0.01}
"""List prices of us-east-1 in dollars an hour, recalled and not read, without what flows through
(an interface endpoint: for each zone)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostRow:
    """One thing that costs money, or soon will.

    Attributes:
        kind: `instance`, `group`, `load balancer`, `nat gateway`, `interface endpoint` or `claim`.
        name: its id or name.
        detail: what it is, in words.
        state: as AWS calls it.
        run: the run that it works for, where one says so.
        usd_per_hour: its price; None where it is not known, 0 for what costs nothing by itself.
        left: whether no live run accounts for it.
    """

    kind: str
    name: str
    detail: str
    state: str
    run: str | None
    usd_per_hour: float | None
    left: bool

    def to_json(self) -> dict[str, Any]:
        """Give it as plain values."""
        return asdict(self)


def cost_rows(stack: Stack) -> list[CostRow]:
    """Look at a stack for everything that costs money.

    Raises:
        AwsError: AWS refuses one of the looks; nothing is shown then rather than a part.
    """
    live = {
        item["pk"].removeprefix("RUN#")
        for item in stack.table.scan(RUN_ITEM)
        if is_live(stack, item)
    }
    return [
        *_instances(stack, live),
        *_groups(stack, live),
        *_claims(stack, live),
        *_balancers(stack),
        *_network(stack),
    ]


def rate_text(rows: list[CostRow]) -> str:
    """Give what the rows cost an hour together."""
    known = sum(row.usd_per_hour for row in rows if row.usd_per_hour is not None)
    unknown = sum(row.usd_per_hour is None for row in rows)
    return f"{known:.4g} $/h" + (f", and {unknown} of unknown price" if unknown else "")


def _instances(stack: Stack, live: set[str]) -> Iterator[CostRow]:
    catalogue = current_catalogue()
    for instance in _described(stack):
        tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
        fleet = tags.get(FLEET_TAG, "")
        node = stack.table.get(node_key(instance["InstanceId"]), NODE_ITEM) or {}
        run = node.get("run") if node.get("state") in {"working", "leaving"} else None
        kind = instance["InstanceType"]
        bought = instance.get("InstanceLifecycle", "on-demand")
        yield CostRow(
            kind="instance",
            name=instance["InstanceId"],
            detail=f"{kind}, {bought}, fleet '{fleet}'",
            state=instance["State"]["Name"],
            run=run,
            usd_per_hour=_price(stack, catalogue, fleet, kind),
            left=not live if run is None else run not in live,
        )


def _described(stack: Stack) -> Iterator[dict[str, Any]]:
    ec2 = aws_client("ec2", region=stack.region)
    filters = [
        {"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [stack.name]},
        {"Name": "instance-state-name", "Values": list(_BILLED)},
    ]
    with aws_errors("list the stack's instances"):
        for page in ec2.get_paginator("describe_instances").paginate(Filters=filters):
            for reservation in page["Reservations"]:
                yield from reservation["Instances"]


def _price(stack: Stack, catalogue: Catalogue, fleet: str, kind: str) -> float | None:
    known = stack.fleets.get(fleet)
    if known is not None and known.usd_per_hour is not None:
        return known.usd_per_hour
    try:
        found = catalogue.by_name(kind).on_demand(stack.region)
    except KeyError:
        return None
    return None if found is None else found[0]


def _groups(stack: Stack, live: set[str]) -> Iterator[CostRow]:
    names = {fleet.asg: fleet for fleet in stack.fleets.values() if fleet.asg is not None}
    if not names:
        return
    client = aws_client("autoscaling", region=stack.region)
    with aws_errors("list the stack's Auto Scaling groups"):
        pages = client.get_paginator("describe_auto_scaling_groups").paginate(
            AutoScalingGroupNames=list(names)
        )
        groups = [group for page in pages for group in page["AutoScalingGroups"]]
    for group in groups:
        desired, there = group["DesiredCapacity"], len(group["Instances"])
        if desired or there:
            yield CostRow(
                kind="group",
                name=group["AutoScalingGroupName"],
                detail=f"fleet '{names[group['AutoScalingGroupName']].name}': wants {desired}, "
                f"has {there}; its instances are priced above",
                state="scaling" if desired != there else "steady",
                run=None,
                usd_per_hour=0.0,
                left=not live,
            )


def _claims(stack: Stack, live: set[str]) -> Iterator[CostRow]:
    for fleet in stack.fleets:
        for item in stack.table.query(fleet_key(fleet), "RUN#"):
            run = str(item["sk"]).removeprefix("RUN#")
            if item.get("count"):
                yield CostRow(
                    kind="claim",
                    name=f"{fleet}/{run}",
                    detail=f"run '{run}' keeps {item['count']} of fleet '{fleet}'",
                    state="claimed",
                    run=run,
                    usd_per_hour=0.0,
                    left=run not in live,
                )


def _balancers(stack: Stack) -> Iterator[CostRow]:
    client = aws_client("elbv2", region=stack.region)
    with aws_errors("list the stack's load balancers"):
        pages = client.get_paginator("describe_load_balancers").paginate()
        found = {item["LoadBalancerArn"]: item for page in pages for item in page["LoadBalancers"]}
        tagged = [
            item["ResourceArn"]
            for begin in range(0, len(found), 20)  # DescribeTags takes 20 at a time
            for item in client.describe_tags(ResourceArns=list(found)[begin : begin + 20])[
                "TagDescriptions"
            ]
            if _is_ours(stack, item["Tags"])
        ]
    for arn in tagged:
        item = found[arn]
        state = item.get("State", {}).get("Code", "unknown")
        yield _standing("load balancer", item["LoadBalancerName"], item["Type"], state)


def _network(stack: Stack) -> Iterator[CostRow]:
    ec2 = aws_client("ec2", region=stack.region)
    ours = [{"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [stack.name]}]
    with aws_errors("list the stack's gateways and endpoints"):
        gateways = ec2.describe_nat_gateways(Filters=ours)["NatGateways"]
        endpoints = ec2.describe_vpc_endpoints(Filters=ours)["VpcEndpoints"]
    for item in gateways:
        if item["State"] in {"pending", "available"}:
            yield _standing("nat gateway", item["NatGatewayId"], item["VpcId"], item["State"])
    for item in endpoints:
        if item["VpcEndpointType"] == "Interface":
            zones = max(1, len(item.get("SubnetIds", ())))
            name, state = item["VpcEndpointId"], item["State"]
            yield _standing("interface endpoint", name, item["ServiceName"], state, count=zones)


def _standing(kind: str, name: str, detail: str, state: str, *, count: int = 1) -> CostRow:
    """Give the row of what stands as long as the stack does."""
    return CostRow(
        kind=kind,
        name=name,
        detail=detail,
        state=state,
        run=None,
        usd_per_hour=count * _LIST_PRICES[kind],
        left=False,
    )


def _is_ours(stack: Stack, tags: list[Mapping[str, str]]) -> bool:
    return any(tag["Key"] == DEPLOYMENT_TAG and tag["Value"] == stack.name for tag in tags)
