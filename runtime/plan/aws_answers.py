"""What AWS answers about instance types, one function a question; nothing is changed there.

    ec2:DescribeInstanceTypes              shapes, chips, how a type is sold
    ec2:DescribeInstanceTypeOfferings      zones that offer a type
    ec2:DescribeSpotPriceHistory           newest spot price of each zone
    ec2:DescribeCapacityBlockOfferings     blocks that could be reserved
    pricing:GetProducts                    Linux on-demand prices

Each of these needs the permission of its name. Answers are checked for what is used of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from runtime.spec.aws import AwsError, aws_errors
from runtime.spec.catalogue import CapacityBlock, SpotPrice, UsageClass

__all__ = [
    "PRICING_REGION",
    "TypeShape",
    "capacity_blocks",
    "instance_types",
    "on_demand_price",
    "spot_prices",
    "zones_of",
]

PRICING_REGION: Final = "us-east-1"
"""The Price List service has an endpoint there for all regions of the commercial partition."""

_BATCH: Final = 100
_LINUX: Final = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
_BLOCK_HOURS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeShape:
    """What EC2 says of an instance type.

    Attributes:
        name: the type.
        chip: AWS's name of its accelerator; None for a host without one.
        count: accelerators; None where it has none.
        vcpus: virtual CPUs.
        cores: physical cores.
        clock_mhz: sustained clock; None where EC2 does not say.
        host_memory_gib: main memory, GiB.
        network_gbps: baseline rate of all network cards; None where EC2 does not say.
        efa_interfaces: EFA interfaces.
        nitro_tpm: whether it can have a NitroTPM.
        nitro_enclaves: whether it can run an enclave.
        usage_classes: how it is sold.
        architectures: of its processor.
    """

    name: str
    chip: str | None
    count: int | None
    vcpus: int
    cores: int | None
    clock_mhz: int | None
    host_memory_gib: int
    network_gbps: float | None
    efa_interfaces: int
    nitro_tpm: bool
    nitro_enclaves: bool
    usage_classes: tuple[UsageClass, ...]
    architectures: tuple[str, ...]


def instance_types(ec2: Any) -> dict[str, TypeShape]:
    """Give the shapes of all instance types of a region.

    Raises:
        AwsError: AWS refused, cannot be asked, or answered something else.
    """
    what = "ec2 DescribeInstanceTypes"
    pages = _pages(ec2, "describe_instance_types", what)
    return {item["InstanceType"]: _shape(item) for page in pages for item in page["InstanceTypes"]}


def zones_of(ec2: Any, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Give the zones of a region that offer each type; a type that is not offered is missing.

    Raises:
        AwsError: as `instance_types`.
    """
    found: dict[str, set[str]] = {}
    for some in _batches(names):
        pages = _pages(
            ec2,
            "describe_instance_type_offerings",
            "ec2 DescribeInstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": list(some)}],
        )
        for offering in (o for page in pages for o in page["InstanceTypeOfferings"]):
            found.setdefault(offering["InstanceType"], set()).add(offering["Location"])
    return {name: tuple(sorted(zones)) for name, zones in found.items()}


def spot_prices(ec2: Any, names: Sequence[str], now: datetime) -> dict[str, tuple[SpotPrice, ...]]:
    """Give the newest Linux spot price of each type in each zone that has one.

    Raises:
        AwsError: as `instance_types`.
    """
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    for some in _batches(names):
        pages = _pages(
            ec2,
            "describe_spot_price_history",
            "ec2 DescribeSpotPriceHistory",
            InstanceTypes=list(some),
            ProductDescriptions=list(_LINUX),
            StartTime=now,  # then only the prices that hold now are told
        )
        for item in (i for page in pages for i in page["SpotPriceHistory"]):
            place = item["InstanceType"], item["AvailabilityZone"]
            price = item["Timestamp"], float(item["SpotPrice"])
            if price[1] > 0 and (place not in newest or newest[place][0] < price[0]):
                newest[place] = price
    found: dict[str, list[SpotPrice]] = {}
    for (name, zone), (since, price) in sorted(newest.items()):
        entry = SpotPrice(zone=zone, usd_per_hour=price, since=since.isoformat())
        found.setdefault(name, []).append(entry)
    return {name: tuple(prices) for name, prices in found.items()}


def capacity_blocks(ec2: Any, name: str) -> tuple[CapacityBlock, ...]:
    """Give the blocks of one instance and one day that could be reserved.

    Raises:
        AwsError: as `instance_types`.
    """
    pages = _pages(
        ec2,
        "describe_capacity_block_offerings",
        f"ec2 DescribeCapacityBlockOfferings of {name}",
        InstanceType=name,
        InstanceCount=1,
        CapacityDurationHours=_BLOCK_HOURS,
    )
    return tuple(
        CapacityBlock(
            zone=item["AvailabilityZone"],
            start=item["StartDate"].isoformat(),
            hours=item["CapacityBlockDurationHours"],
            instances=item["InstanceCount"],
            usd=float(item["UpfrontFee"]),
        )
        for page in pages
        for item in page["CapacityBlockOfferings"]
    )


def on_demand_price(pricing: Any, name: str, region: str) -> float | None:
    """Give the Linux on-demand price of a type in a region, US dollars per hour; None without one.

    Raises:
        AwsError: as `instance_types`.
    """
    asked = {
        "instanceType": name,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    what = f"pricing GetProducts of {name} in {region}"
    pages = _pages(
        pricing,
        "get_products",
        what,
        ServiceCode="AmazonEC2",
        FormatVersion="aws_v1",
        Filters=[{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in asked.items()],
    )
    found = [price for page in pages for text in page["PriceList"] for price in _prices(text, what)]
    return max(found, default=None)


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut names into lists that one question may have."""
    for start in range(0, len(names), _BATCH):
        yield names[start : start + _BATCH]


def _prices(text: str, what: str) -> Iterator[float]:
    """Yield the hourly prices of one product of the price list.

    Raises:
        AwsError: it is no product of the form `aws_v1`.
    """
    try:
        terms: Mapping[str, Any] = json.loads(text)["terms"].get("OnDemand", {})
        for term in terms.values():
            for dimension in term["priceDimensions"].values():
                price = float(dimension["pricePerUnit"].get("USD", 0))
                if dimension["unit"] == "Hrs" and price > 0:
                    yield price
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AwsError(
            f"{what}: no price list of the form aws_v1 ({type(error).__name__})", reason="request"
        ) from None


def _pages(client: Any, method: str, what: str, **asked: Any) -> Iterable[dict[str, Any]]:
    """Give all pages of an answer, read before anything is made of them.

    Raises:
        AwsError: AWS refused or cannot be asked.
    """
    with aws_errors(what):
        return list(client.get_paginator(method).paginate(**asked))


def _shape(item: Mapping[str, Any]) -> TypeShape:
    processor, cpus = item.get("ProcessorInfo", {}), item["VCpuInfo"]
    network = item.get("NetworkInfo", {})
    chip, count = _devices(item)
    clock = processor.get("SustainedClockSpeedInGhz")
    rates = [card.get("BaselineBandwidthInGbps") for card in network.get("NetworkCards", ())]
    known = [rate for rate in rates if rate is not None]
    return TypeShape(
        name=item["InstanceType"],
        chip=chip,
        count=count,
        vcpus=cpus["DefaultVCpus"],
        cores=cpus.get("DefaultCores"),
        clock_mhz=None if clock is None else round(clock * 1000),
        host_memory_gib=item["MemoryInfo"]["SizeInMiB"] // 1024,
        network_gbps=sum(known) if known and len(known) == len(rates) else None,
        efa_interfaces=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        nitro_tpm=item.get("NitroTpmSupport") == "supported",
        nitro_enclaves=item.get("NitroEnclavesSupport") == "supported",
        usage_classes=tuple(sorted(item.get("SupportedUsageClasses", ()))),
        architectures=tuple(processor.get("SupportedArchitectures", ())),
    )


def _devices(item: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Give (name, number) of a type's accelerators."""
    devices = [
        *item.get("GpuInfo", {}).get("Gpus", ()),
        *item.get("NeuronInfo", {}).get("NeuronDevices", ()),
    ]
    if not devices:
        return None, None
    return devices[0].get("Name"), sum(device.get("Count", 0) for device in devices)
