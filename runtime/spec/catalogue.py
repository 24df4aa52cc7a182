"""The accelerator catalogue: what can be rented, in figures with their dates.

The file that comes with Luma is the offline fallback; `luma catalogue update` writes one of the same
form with what AWS itself says of some regions (`offers` of a row). A figure that is not known is
None, never zero, and every row says whether its figures were read in a document or recalled
(`checked`), so a plan can show how far to trust them.

A host without accelerators is a row too: its chip is `CPU`, count 1, with the host's memory.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

CPU: Final = "CPU"
"""The chip of a host without accelerators."""

_FILE: Final = "accelerators.json"


class _Row(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class SpotPrice(_Row):
    """What spot capacity costs in one zone."""

    zone: str
    """availability zone, such as `us-east-1a`; the letters differ between accounts"""
    usd_per_hour: Annotated[float, Field(gt=0)]
    """newest Linux price of the instance, US dollars per hour"""
    since: str
    """when that price came, ISO 8601"""


class CapacityBlock(_Row):
    """A block of time that could be reserved when it was asked for, paid beforehand."""

    zone: str
    """availability zone"""
    start: str
    """when it starts, ISO 8601"""
    hours: Annotated[int, Field(gt=0)]
    """its length"""
    instances: Annotated[int, Field(gt=0)]
    """instances of the block"""
    usd: Annotated[float, Field(ge=0)]
    """price of the whole block, US dollars"""

    @property
    def usd_per_hour(self) -> float:
        """Price of one instance, US dollars per hour."""
        return self.usd / (self.hours * self.instances)


class RegionOffer(_Row):
    """What AWS said of one instance type in one region."""

    region: str
    """the region"""
    date: str
    """day on which it was asked, ISO 8601"""
    zones: tuple[str, ...]
    """zones that offer the type; empty where the region does not"""
    usd_per_hour_on_demand: Annotated[float, Field(gt=0)] | None = None
    """Linux on-demand price of the instance, US dollars per hour"""
    spot: tuple[SpotPrice, ...] = ()
    """newest spot price of each zone that has one"""
    capacity_blocks: tuple[CapacityBlock, ...] = ()
    """blocks that could be reserved"""


UsageClass = Literal["on-demand", "spot", "capacity-block"]
"""How EC2 sells instances of a type."""


class Accelerator(_Row):
    """One instance type (or, outside EC2, one chip) and its chips."""

    name: str
    """instance type, such as `trn2.48xlarge`"""
    chip: str
    """name of the chip, such as `H100`"""
    vendor: str
    """maker of the chip, lower-case"""
    count: Annotated[int, Field(ge=0)] | None
    """chips of the instance; 0 is a fraction of one chip"""
    memory_gib_per_chip: Annotated[float, Field(gt=0)]
    """device memory of one chip, GiB"""
    vcpus: int | None
    """virtual CPUs of the host"""
    host_memory_gib: int | None
    """main memory of the host, GiB"""
    network_gbps: float | None
    """baseline network rate, Gbit/s"""
    efa_interfaces: int | None
    """EFA interfaces of the instance"""
    bf16_tflops_per_chip: float | None
    """dense bf16 peak of one chip, TFLOP/s"""
    memory_bandwidth_tb_s: float | None
    """memory bandwidth of one chip, TB/s (10^12 bytes)"""
    usd_per_hour_on_demand: Annotated[float, Field(gt=0)] | None
    """Linux on-demand price of the instance, US dollars per hour"""
    price_region: str | None
    """region of that price"""
    price_date: str | None
    """day of that price, ISO 8601"""
    compile_target: str | None
    """target of the chip; None where Luma cannot compile for it"""
    where: Literal["ec2", "external"]
    """rented on EC2, or joined from elsewhere"""
    checked: Literal["doc", "memory"]
    """whether all figures were read in a source, or at least one was recalled"""
    memory_fields: tuple[str, ...] = ()
    """the figures that were recalled"""
    cores: Annotated[int, Field(gt=0)] | None = None
    """physical cores of a host without accelerators"""
    clock_mhz: Annotated[int, Field(gt=0)] | None = None
    """sustained clock of such a host, MHz"""
    nitro_tpm: bool | None = None
    """whether instances can have a NitroTPM, which an attested runtime needs; None where not known"""
    nitro_enclaves: bool | None = None
    """whether instances can run a Nitro Enclave, which compiles sealed; None where not known"""
    usage_classes: tuple[UsageClass, ...] | None = None
    """how the type is sold; None where not known"""
    regions: tuple[str, ...] | None = None
    """regions that offered the type when that was read; None where it was not"""
    offers: tuple[RegionOffer, ...] = ()
    """what AWS said of single regions, in a file that `luma catalogue update` wrote"""
    note: str | None = None
    """what a planner must know beside the figures"""

    @property
    def is_cpu(self) -> bool:
        """Whether it is a host without accelerators."""
        return self.chip == CPU

    @property
    def launchable(self) -> bool:
        """Whether EC2 launches it under this name: an UltraServer has no instance type."""
        return self.where == "ec2" and "." in self.name

    def offer(self, region: str) -> RegionOffer | None:
        """Give what AWS said of a region, None where it was not asked."""
        return next((offer for offer in self.offers if offer.region == region), None)

    def offered(self, region: str) -> bool | None:
        """Say whether a region offers the type; None where that is not known.

        What was read some time ago can tell that a region has the type. That one lacks it, only AWS
        itself can: regions gain types every month.
        """
        said = self.offer(region)
        if said is not None:
            return bool(said.zones)
        return True if region in {self.price_region, *(self.regions or ())} else None

    def sold(self, usage: UsageClass) -> bool:
        """Whether the type is sold in a way, or nobody knows that it is not."""
        return self.usage_classes is None or usage in self.usage_classes

    def on_demand(self, region: str) -> tuple[float, str] | None:
        """Give the on-demand price in a region and its day; None where it is not known."""
        said = self.offer(region)
        if said is not None and said.usd_per_hour_on_demand is not None:
            return said.usd_per_hour_on_demand, said.date
        if region != self.price_region or self.usd_per_hour_on_demand is None:
            return None
        return self.usd_per_hour_on_demand, self.price_date or ""


class Source(_Row):
    """Where some fields of the catalogue were read."""

    fields: str
    """the fields"""
    origin: Annotated[str, Field(alias="from")]
    """the document, with its date"""


class Catalogue(_Row):
    """All accelerators, with the sources of the figures and the rules for reading them."""

    updated: str | None = None
    """when `luma catalogue update` wrote the file, ISO 8601; None for the one of the package"""
    updated_regions: tuple[str, ...] = ()
    """regions that were asked then"""
    about: str
    """what the catalogue is for"""
    sources: tuple[Source, ...]
    """where the figures were read"""
    rules: tuple[str, ...]
    """how to read null, 0 and the marks"""
    accelerators: tuple[Accelerator, ...]
    """one row an instance type"""

    def by_name(self, name: str) -> Accelerator:
        """Give the row of an instance type.

        Raises:
            KeyError: there is no such row.
        """
        for row in self.accelerators:
            if row.name == name:
                return row
        raise KeyError(name)

    def by_chip(self, chip: str) -> tuple[Accelerator, ...]:
        """Give the rows with a chip, such as `H100`, in the catalogue's order."""
        return tuple(row for row in self.accelerators if row.chip.lower() == chip.lower())

    def by_target(self, target: str) -> tuple[Accelerator, ...]:
        """Give the rows that a compile target such as `cuda-sm90` runs on."""
        return tuple(row for row in self.accelerators if row.compile_target == target)


@cache
def load_catalogue() -> Catalogue:
    """Read the catalogue that comes with Luma."""
    return Catalogue.model_validate_json(packaged_text())


def packaged_text() -> str:
    """Give the text of the catalogue that comes with Luma."""
    return files("runtime.spec").joinpath(_FILE).read_text(encoding="utf-8")
