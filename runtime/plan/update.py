"""A catalogue of today: the rows that come with Luma, with what AWS says of some regions.

The shape of a type, its zones and its prices are AWS's; the figures of a chip (arithmetic, bandwidth)
stay those of the package, which AWS does not tell. A type that the package does not list gets a row
where its chip is one that it knows, so that new sizes of a known chip can be planned with at once.

Nothing is written here: a reading that fails half-way leaves the old file as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from runtime.plan import aws_answers as aws
from runtime.plan.aws_answers import TypeShape
from runtime.spec import Accelerator, Catalogue, SpecError
from runtime.spec.catalogue import CapacityBlock, RegionOffer, SpotPrice

__all__ = ["ClientFactory", "update_catalogue"]

ClientFactory = Callable[[str, str], Any]
"""Makes the client of a service in a region."""

_ARM = "arm64"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What AWS said of one region.

    Attributes:
        region: the region.
        shapes: its instance types.
        zones: zones that offer each type of the catalogue.
        spot: spot prices of those.
        on_demand: on-demand prices of those.
        blocks: capacity blocks of those that are sold so.
    """

    region: str
    shapes: Mapping[str, TypeShape]
    zones: Mapping[str, tuple[str, ...]]
    spot: Mapping[str, tuple[SpotPrice, ...]]
    on_demand: Mapping[str, float | None]
    blocks: Mapping[str, tuple[CapacityBlock, ...]]


def update_catalogue(
    package: Catalogue,
    old: Catalogue | None,
    regions: Sequence[str],
    *,
    client: ClientFactory,
    now: datetime,
    with_blocks: bool = True,
    progress: Callable[[str], None] = lambda _text: None,
) -> Catalogue:
    """Ask AWS about some regions and give the new catalogue.

    Args:
        package: the catalogue that comes with Luma.
        old: the user's catalogue so far; what it says of other regions is kept, with its days.
        regions: regions to ask about.
        client: makes a client of `ec2` or `pricing` in a region.
        now: the time of the reading.
        with_blocks: whether capacity blocks are asked for.
        progress: called with lines of progress.

    Raises:
        SpecError: no region is named.
        AwsError: AWS refused a question, or cannot be asked.
    """
    if not regions:
        raise SpecError("--region: names no region", remedy="name one, such as us-east-1")
    rows = (*package.accelerators, *_learned_before(package, old))
    readings = []
    for region in dict.fromkeys(regions):
        progress(f"{region}: instance types")
        shapes = aws.instance_types(client("ec2", region))
        listed = (*rows, *_new_rows(rows, shapes))
        names = [row.name for row in listed if row.launchable]
        readings.append(
            _read(names, shapes, region, client, now, with_blocks=with_blocks, progress=progress)
        )
        rows = listed
    kept = {} if old is None else {row.name: row.offers for row in old.accelerators}
    day = now.date().isoformat()
    updated = {reading.region for reading in readings}
    known = updated | set(() if old is None else old.updated_regions)
    return package.model_copy(
        update={
            "updated": now.isoformat(timespec="seconds"),
            "updated_regions": tuple(sorted(known)),
            "accelerators": tuple(
                _updated(row, readings, kept.get(row.name, ()), updated, day) for row in rows
            ),
        }
    )


def _learned_before(package: Catalogue, old: Catalogue | None) -> list[Accelerator]:
    """Give the rows of the user's catalogue that the package does not have."""
    listed = {row.name for row in package.accelerators}
    return [] if old is None else [row for row in old.accelerators if row.name not in listed]


def _read(
    names: Sequence[str],
    shapes: Mapping[str, TypeShape],
    region: str,
    client: ClientFactory,
    now: datetime,
    *,
    with_blocks: bool,
    progress: Callable[[str], None],
) -> _Reading:
    """Ask where some types are offered in a region, and for how much."""
    ec2, pricing = client("ec2", region), client("pricing", aws.PRICING_REGION)
    progress(f"{region}: zones and spot prices of {len(names)} types")
    zones = aws.zones_of(ec2, names)
    offered = [name for name in names if name in zones]
    spot = aws.spot_prices(ec2, offered, now) if offered else {}
    progress(f"{region}: on-demand prices of {len(offered)} types")
    on_demand = {name: aws.on_demand_price(pricing, name, region) for name in offered}
    blocks = {}
    if with_blocks:
        sold = [n for n in offered if n in shapes and "capacity-block" in shapes[n].usage_classes]
        progress(f"{region}: capacity blocks of {len(sold)} types")
        blocks = {name: aws.capacity_blocks(ec2, name) for name in sold}
    return _Reading(
        region=region, shapes=shapes, zones=zones, spot=spot, on_demand=on_demand, blocks=blocks
    )


def _updated(
    row: Accelerator,
    readings: Iterable[_Reading],
    old: Sequence[RegionOffer],
    asked: set[str],
    day: str,
) -> Accelerator:
    """Give a row with what the readings say of it."""
    if not row.launchable:
        return row
    offers = [offer for offer in old if offer.region not in asked]
    changes: dict[str, Any] = {}
    for reading in readings:
        shape = reading.shapes.get(row.name)
        if shape is not None:
            changes |= _changes(row, shape)
        offers.append(
            RegionOffer(
                region=reading.region,
                date=day,
                zones=reading.zones.get(row.name, ()),
                usd_per_hour_on_demand=reading.on_demand.get(row.name),
                spot=reading.spot.get(row.name, ()),
                capacity_blocks=reading.blocks.get(row.name, ()),
            )
        )
    recalled = tuple(name for name in row.memory_fields if name not in changes)
    changes |= {
        "offers": tuple(sorted(offers, key=lambda offer: offer.region)),
        "memory_fields": recalled,
        "checked": "memory" if recalled else "doc",
    }
    return row.model_copy(update=changes)


def _changes(row: Accelerator, shape: TypeShape) -> dict[str, Any]:
    """Give the fields of a row that AWS knows better."""
    changes: dict[str, Any] = {
        "vcpus": shape.vcpus,
        "host_memory_gib": shape.host_memory_gib,
        "efa_interfaces": shape.efa_interfaces,
        "nitro_tpm": shape.nitro_tpm,
        "nitro_enclaves": shape.nitro_enclaves,
        "usage_classes": shape.usage_classes,
    }
    if row.network_gbps is None:
        changes["network_gbps"] = shape.network_gbps
    if shape.count is not None:
        changes["count"] = shape.count
    if row.is_cpu:
        changes |= {"cores": shape.cores, "clock_mhz": shape.clock_mhz}
    return changes


def _new_rows(
    rows: Sequence[Accelerator], shapes: Mapping[str, TypeShape]
) -> tuple[Accelerator, ...]:
    """Give rows for types that are not listed and have a listed chip of the same architecture.

    Which of AWS's names is which chip is learned from the listed types: no second list to keep.
    """
    listed = {row.name for row in rows}
    samples: dict[tuple[str, bool], Accelerator] = {}
    for row in rows:
        shape = shapes.get(row.name)
        if shape is not None and shape.chip is not None and row.count:
            samples.setdefault((shape.chip, _ARM in shape.architectures), row)
    found = []
    for name, shape in sorted(shapes.items()):
        sample = samples.get((shape.chip or "", _ARM in shape.architectures))
        if name not in listed and sample is not None and shape.count:
            found.append(_row_like(sample, name, shape))
    return tuple(found)


def _row_like(sample: Accelerator, name: str, shape: TypeShape) -> Accelerator:
    """Give the row of a type that is not listed, with the chip's figures of one that is."""
    return sample.model_copy(
        update={
            "name": name,
            "usd_per_hour_on_demand": None,
            "price_region": None,
            "price_date": None,
            "regions": None,
            "offers": (),
            "note": f"Not in the package's catalogue: its chip's figures are those of {sample.name}.",
            **_changes(sample, shape),
        }
    )
