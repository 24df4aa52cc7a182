"""The accelerator catalogue: what can be rented, in figures with their dates.

The file is the offline fallback; live prices come first where an account is configured. A figure
that is not known is None, never zero, and every row says whether its figures were read in a
document or recalled (`checked`), so a plan can show how far to trust them.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Row(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


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
    note: str | None = None
    """what a planner must know beside the figures"""


class Source(_Row):
    """Where some fields of the catalogue were read."""

    fields: str
    """the fields"""
    origin: Annotated[str, Field(alias="from")]
    """the document, with its date"""


class Catalogue(_Row):
    """All accelerators, with the sources of the figures and the rules for reading them."""

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
    text = files("runtime.spec").joinpath("accelerators.json").read_text(encoding="utf-8")
    return Catalogue.model_validate_json(text)
