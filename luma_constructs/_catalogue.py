"""The accelerator catalogue at synth: which instance types run a target.

`data/accelerators.json` is a copy of the runtime's catalogue; a test keeps them equal. A figure that
the catalogue does not know is None, never zero, and nothing is refused because of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

__all__ = [
    "Architecture",
    "InstanceRow",
    "TargetParts",
    "architecture_of",
    "fitting",
    "hosts",
    "known_regions",
    "known_targets",
    "load_rows",
    "offered",
    "row_of",
]

Architecture = Literal["x86_64", "arm64"]
"""Processor of a host."""

_TARGET = re.compile(
    r"(?P<chip>cpu|cuda-sm\d{2,3}|tpu-v\d[a-z]{0,2}|rocm-gfx[0-9a-f]{3,4}|trn[1-3]|inf2)"
    r"(?:x(?P<chips>[1-9]\d{0,3})(?:-tp(?P<tensor>[1-9]\d{0,3}))?)?",
    re.ASCII,
)
_FAMILY = re.compile(r"[a-z]+\d+([a-z]*)")
_NVIDIA_ARM = re.compile(r"-gb\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetParts:
    """A target's name, taken apart.

    Attributes:
        name: as written, such as "cuda-sm90x8-tp4".
        chip: the kind of chip, such as "cuda-sm90".
        chips: chips of an island.
    """

    name: str
    chip: str
    chips: int

    @property
    def family(self) -> str:
        """The vendor's stack: "cpu", "cuda", "tpu", "rocm" or "neuron"."""
        head = self.chip.partition("-")[0]
        return "neuron" if head.startswith(("trn", "inf")) else head

    @classmethod
    def parse(cls, name: object) -> TargetParts | None:
        """Take a name apart; None where it has another form, or groups that do not divide it."""
        found = _TARGET.fullmatch(name) if isinstance(name, str) else None
        if found is None:
            return None
        chips = int(found["chips"] or 1)
        if chips % int(found["tensor"] or 1):
            return None
        return cls(name=found[0], chip=found["chip"], chips=chips)


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceRow:
    """One row of the catalogue.

    Attributes:
        name: instance type, or a chip outside of EC2.
        chip: the chip, such as "L4".
        count: chips; None where it is not known.
        vcpus: processors of the host; None where it is not known.
        host_memory_gib: its memory; None where it is not known.
        efa_interfaces: None where it is not known.
        usd_per_hour: Linux on demand, in the catalogue's region; None where it is not known.
        target: compile target of one chip; None where Luma cannot compile for it.
        where: "ec2" or "external".
        regions: where the type is offered; None where the catalogue does not know.
        usage_classes: of "spot", "on-demand" and "capacity-block" those that it can be bought as;
            None where it is not known.
        nitro_enclaves: whether it can be an enclave's parent; None where it is not known.
    """

    name: str
    chip: str
    count: int | None
    vcpus: int | None
    host_memory_gib: int | None
    efa_interfaces: int | None
    usd_per_hour: float | None
    target: str | None
    where: str
    regions: tuple[str, ...] | None
    usage_classes: tuple[str, ...] | None
    nitro_enclaves: bool | None

    @property
    def launchable(self) -> bool:
        """Whether an Auto Scaling group can launch it: an UltraServer has no instance type."""
        return self.where == "ec2" and "." in self.name


@cache
def load_rows() -> tuple[InstanceRow, ...]:
    """Read the catalogue that comes with this package."""
    text = files("luma_constructs").joinpath("data/accelerators.json").read_text(encoding="utf-8")
    return tuple(_row(row) for row in json.loads(text)["accelerators"])


@cache
def known_regions() -> frozenset[str]:
    """Give the regions that the catalogue knows anything about; of another it knows nothing."""
    return frozenset(region for row in load_rows() for region in row.regions or ())


def offered(row: InstanceRow, region: str) -> bool:
    """Tell whether a type is offered in a region, as far as the catalogue knows.

    Args:
        row: the type.
        region: may be a token, of which nothing is known.
    """
    return row.regions is None or region not in known_regions() or region in row.regions


def row_of(instance_type: str) -> InstanceRow | None:
    """Give the row of an instance type, None where the catalogue has none."""
    return next((row for row in load_rows() if row.name == instance_type), None)


def known_targets(where: str) -> tuple[str, ...]:
    """Give the targets of one chip that something runs, "ec2" or "external", sorted."""
    return tuple(sorted({row.target for row in load_rows() if row.target and row.where == where}))


def hosts(target: TargetParts) -> tuple[InstanceRow, ...]:
    """Give the instance types with a target's chip, whatever their number of chips."""
    return tuple(row for row in load_rows() if row.target == target.chip and row.launchable)


def fitting(target: TargetParts, architecture: Architecture) -> tuple[InstanceRow, ...]:
    """Give the instance types that hold exactly one island of a target.

    A host with more chips than the island has would leave them idle; it can be named explicitly. A
    CPU is no chip that is counted: its islands divide whatever the host has.
    """
    return tuple(
        row
        for row in hosts(target)
        if (row.count == target.chips or target.chip == "cpu")
        and architecture_of(row.name) == architecture
    )


def architecture_of(instance_type: str) -> Architecture:
    """Give the processor of an instance type from its name.

    A `g` behind the generation's digit is Graviton (c7g, g5g); `gb200` is NVIDIA's Grace (AWS,
    "Amazon EC2 instance type naming conventions").
    """
    family = instance_type.partition(".")[0]
    found = _FAMILY.match(family)
    graviton = family == "a1" or (found is not None and "g" in found[1])
    return "arm64" if graviton or _NVIDIA_ARM.search(family) else "x86_64"


def _row(row: dict) -> InstanceRow:
    """Read one row; what is not known here does not matter at synth."""
    regions, classes = row.get("regions"), row.get("usage_classes")
    return InstanceRow(
        name=row["name"],
        chip=row["chip"],
        count=row["count"],
        vcpus=row["vcpus"],
        host_memory_gib=row["host_memory_gib"],
        efa_interfaces=row["efa_interfaces"],
        usd_per_hour=row["usd_per_hour_on_demand"],
        target=row["compile_target"],
        where=row["where"],
        regions=None if regions is None else tuple(regions),
        usage_classes=None if classes is None else tuple(classes),
        nitro_enclaves=row.get("nitro_enclaves"),
    )
