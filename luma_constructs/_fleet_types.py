"""Which instance types a fleet uses, and what is wrong with those that its author named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from aws_cdk import aws_ec2 as ec2

from luma_constructs._catalogue import (
    Architecture,
    InstanceRow,
    TargetParts,
    architecture_of,
    fitting,
    hosts,
    known_targets,
    offered,
    row_of,
)
from luma_constructs._default_types import default_types
from luma_constructs._validation import Problems, is_known
from luma_constructs.fleet_purchase import Purchase

__all__ = ["FleetNetwork", "FleetTypes", "choose_types"]

_MOST_TYPES = 40
"""Instance types of one group (EC2 Auto Scaling, API reference of MixedInstancesPolicy)."""


class FleetNetwork(Enum):
    """How the instances of a fleet are networked."""

    STANDARD = "standard"
    """One interface, in any zone."""

    EFA = "efa"
    """Elastic Fabric Adapters on every network card, in one placement group, so in one zone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetTypes:
    """The instance types of a fleet.

    Attributes:
        names: the types, the catalogue's order or the author's.
        architecture: their processor.
        rows: their rows in the catalogue, by name; unlisted types have none.
    """

    names: tuple[str, ...]
    architecture: Architecture
    rows: dict[str, InstanceRow]

    @property
    def usd_per_hour(self) -> float | None:
        """Highest on-demand price among them, so that a budget ends too soon and never too late."""
        prices = [row.usd_per_hour for row in self.rows.values()]
        known = [price for price in prices if price is not None]
        return max(known) if known and len(known) == len(self.names) else None

    @property
    def by_efa(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """The types by their number of EFA interfaces, the largest number first."""
        numbers = {name: row.efa_interfaces or 0 for name, row in self.rows.items()}
        return tuple(
            (number, tuple(name for name in self.names if numbers[name] == number))
            for number in sorted(set(numbers.values()), reverse=True)
        )


def choose_types(
    problems: Problems,
    target_name: str,
    *,
    named: Sequence[ec2.InstanceType] | None,
    unlisted: Sequence[ec2.InstanceType],
    purchase: Purchase,
    region: str,
    network: FleetNetwork = FleetNetwork.STANDARD,
) -> tuple[TargetParts, FleetTypes]:
    """Give a target and the instance types that run it.

    Args:
        problems: what is wrong with the other props.
        target_name: such as "cuda-sm90x8".
        named: types of the catalogue; None for the default ones.
        unlisted: types that the catalogue does not have.
        purchase: how they are bought.
        region: where; may be a token.
        network: how they are networked.

    Raises:
        PropError: all that is wrong, with these and the other props.
    """
    target = _target(problems, target_name)
    if target is None:
        problems.fail()
    outside = tuple(one.to_string() for one in unlisted)
    names: tuple[str, ...] = ()
    if named is not None:
        names = tuple(one.to_string() for one in named)
    elif not outside:
        efa = network is FleetNetwork.EFA
        names = default_types(target, with_efa=efa, region=region, purchase=purchase)
    everything = tuple(dict.fromkeys((*names, *outside)))
    rows = {name: row for name in everything if (row := row_of(name)) is not None}
    _check_listed(problems, target, names, rows)
    _check_unlisted(problems, outside, rows)
    _check_number(problems, target, everything, network, region, purchase)
    _check_network(problems, everything, rows, network)
    _check_offer(problems, rows, region, purchase)
    architecture = _architecture(problems, everything)
    problems.raise_all()
    return target, FleetTypes(names=everything, architecture=architecture, rows=rows)


def _architecture(problems: Problems, names: Sequence[str]) -> Architecture:
    """Give the processor that the types have; one image is for one."""
    kinds = {architecture_of(name) for name in names}
    problems.check(
        len(kinds) < 2,
        "instance_types",
        list(names),
        "types of one processor architecture",
        "make one fleet of x86_64 types and one of arm64 types",
    )
    return "arm64" if kinds == {"arm64"} else "x86_64"


def _target(problems: Problems, name: str) -> TargetParts | None:
    """Give a target that EC2 types run; note what is wrong and give None otherwise."""
    target = TargetParts.parse(name)
    targets = known_targets("ec2")
    if target is None:
        problems.add("target", name, f"one of {', '.join(targets)}, with xN for an island")
        return None
    if target.chip in targets:
        return target
    outside = target.chip in known_targets("external")
    problems.add(
        "target",
        name,
        f"one that an instance type of EC2 runs: {', '.join(targets)}",
        "join such hosts with ExternalFleet" if outside else "",
    )
    return None


def _check_listed(
    problems: Problems,
    target: TargetParts,
    names: Sequence[str],
    rows: dict[str, InstanceRow],
) -> None:
    """Check named types against the catalogue."""
    known = [row.name for row in hosts(target)]
    for name in names:
        row = rows.get(name)
        if row is None:
            problems.add(
                "instance_types",
                name,
                f"types of the catalogue: {', '.join(known) or 'none for this target'}",
                "name it in unlisted_instance_types if you know that it runs the target",
            )
        elif row.target != target.chip:
            problems.add(
                "instance_types",
                name,
                f"a type that runs {target.chip}: {', '.join(known) or 'there is none'}",
            )
        elif target.chip != "cpu" and row.count is not None and row.count < target.chips:
            problems.add(
                "instance_types", name, f"a type with {target.chips} chips; it has {row.count}"
            )


def _check_unlisted(problems: Problems, names: Sequence[str], rows: dict[str, InstanceRow]) -> None:
    """Refuse listed types among the unlisted ones: there their target would not be checked."""
    for name in names:
        problems.check(
            name not in rows,
            "unlisted_instance_types",
            name,
            "types that the catalogue does not have",
            "name it in instance_types",
        )


def _check_number(
    problems: Problems,
    target: TargetParts,
    names: Sequence[str],
    network: FleetNetwork,
    region: str,
    purchase: Purchase,
) -> None:
    """Check how many types there are."""
    if not names:
        _say_none(problems, target, network, region, purchase)
    if purchase.label == "capacity-block":
        problems.check(
            len(names) == 1,
            "instance_types",
            list(names),
            "the one type of the capacity block",
        )
    problems.check(
        len(names) <= _MOST_TYPES, "instance_types", len(names), f"at most {_MOST_TYPES} types"
    )


def _say_none(
    problems: Problems,
    target: TargetParts,
    network: FleetNetwork,
    region: str,
    purchase: Purchase,
) -> None:
    """Say why there is no type: no host has so many chips, or none that has them is to be had."""
    chips = sorted({row.count for row in hosts(target) if row.count})
    wanted = "an island that one listed host holds"
    if network is FleetNetwork.EFA:
        wanted += ", with EFA"
    if any(fitting(target, kind) for kind in ("x86_64", "arm64")):
        where = f" in {region}" if is_known(region) else ""
        wanted += f", sold as {' and '.join(purchase.usage_classes)}{where}"
    problems.add(
        "target",
        target.name,
        f"{wanted}; hosts have {', '.join(map(str, chips)) or 'an unknown number of'} chips",
        "change the target's xN, the purchase or the region, or name instance_types",
    )


def _check_network(
    problems: Problems,
    names: Sequence[str],
    rows: dict[str, InstanceRow],
    network: FleetNetwork,
) -> None:
    """Refuse EFA on types that have none, and on those of which nobody knows."""
    if network is not FleetNetwork.EFA:
        return
    for name in names:
        row = rows.get(name)
        number = None if row is None else row.efa_interfaces
        problems.check(
            bool(number),
            "network",
            "EFA",
            "types with EFA interfaces",
            f"{name} has {'an unknown number' if number is None else 'none'}: "
            "leave it out, or use FleetNetwork.STANDARD",
        )


def _check_offer(
    problems: Problems, rows: Mapping[str, InstanceRow], region: str, purchase: Purchase
) -> None:
    """Refuse types that the region lacks, or that are not sold in the wanted way."""
    for row in rows.values():
        problems.check(
            offered(row, region),
            "instance_types",
            row.name,
            f"types of region {region}",
            f"it is offered in {', '.join(row.regions or ())}",
        )
        sold = row.usage_classes
        lacking = [] if sold is None else [one for one in purchase.usage_classes if one not in sold]
        problems.check(
            not lacking,
            "purchase",
            purchase.label,
            f"one that {row.name} can be bought as: {', '.join(sold or ())}",
        )
