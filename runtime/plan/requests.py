"""What a job accepts to run on, matched with the catalogue: accelerators, targets, regions.

`resources.accelerators` lists requests, best first: a chip (`H100:8`), a target's chip (`trn2:1`,
`cpu:1`), an instance type (`g6.xlarge`), or memory a chip (`24GB..:1`). A place may be the beginning
of regions' names; it then means those regions that the catalogue knows something of.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runtime.spec import Accelerator, Catalogue, JobSpec, SpecError, parse_accelerator
from runtime.spec.target_name import TargetName
from runtime.spec.units import parse_memory_range

__all__ = ["Request", "check_requests", "known_regions", "regions_of", "requests_of", "target_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One acceptable accelerator of an island.

    Attributes:
        text: as the job has it.
        rank: place in the job's list, 0 for the best.
        name: chip, target's chip or instance type, lower-case; "" for a range of memory.
        count: chips of an island.
        memory_gib: least and most memory a chip, GiB; None where a name is asked for.
    """

    text: str
    rank: int
    name: str
    count: int
    memory_gib: tuple[float, float] | None

    def takes(self, row: Accelerator) -> bool:
        """Whether the chip of an instance type is what is asked for."""
        if self.memory_gib is not None:
            low, high = self.memory_gib
            return not row.is_cpu and low <= row.memory_gib_per_chip <= high
        return self.name in _names(row)


def requests_of(spec: JobSpec) -> tuple[Request, ...]:
    """Give the accelerators that a job accepts, best first."""
    return tuple(_request(text, rank) for rank, text in enumerate(spec.resources.accelerators))


def check_requests(requests: Iterable[Request], catalogue: Catalogue) -> None:
    """Refuse accelerators that nothing in the catalogue has.

    Raises:
        SpecError: at least one; the message names each with those that are spelt alike.
    """
    rows = catalogue.accelerators
    unknown = [request for request in requests if not any(request.takes(row) for row in rows)]
    if unknown:
        raise SpecError(
            "\n".join(_unknown(request, rows) for request in unknown),
            remedy="`luma catalogue show` lists chips and instance types",
        )


def target_for(row: Accelerator, count: int, targets: Sequence[str]) -> str | None:
    """Give the target that an island of so many chips runs.

    Args:
        row: the instance type.
        count: chips of the island.
        targets: those that the job is compiled for; one with tensor parallelism counts too.

    Returns:
        The first of them that fits, else the plain name of the lacking one; None where Luma cannot
        compile for the chip.
    """
    if row.compile_target is None:
        return None
    for text in targets:
        name = TargetName.parse(text)
        if (name.chip, name.chips) == (row.compile_target, count):
            return text
    return str(TargetName(chip=row.compile_target, chips=count))


def regions_of(places: Iterable[str], catalogue: Catalogue) -> tuple[str, ...]:
    """Give the regions of AWS that places mean, each once; a pattern means those that are known.

    Raises:
        SpecError: a pattern means none of them.
    """
    known = known_regions(catalogue)
    found: dict[str, None] = {}
    for place in places:
        name = place.removeprefix("aws/")
        if place == "local":
            continue
        if not name.endswith("*"):
            found[name] = None
            continue
        matching = [region for region in known if region.startswith(name[:-1])]
        if not matching:
            raise SpecError(
                f"resources.infra: {place!r} matches no region that the catalogue knows "
                f"({', '.join(known)})",
                remedy="name a region, or run `luma catalogue update --region REGION`",
            )
        found.update(dict.fromkeys(matching))
    return tuple(found)


def known_regions(catalogue: Catalogue) -> tuple[str, ...]:
    """Give the regions that the catalogue has a price of, or that AWS was asked about, sorted."""
    priced = {row.price_region for row in catalogue.accelerators if row.price_region}
    return tuple(sorted(priced | set(catalogue.updated_regions)))


def _request(text: str, rank: int) -> Request:
    name, count = parse_accelerator(text)
    memory = parse_memory_range(name)
    plain = "" if memory is not None else name.lower()
    return Request(text=text, rank=rank, name=plain, count=count, memory_gib=memory)


def _names(row: Accelerator) -> set[str]:
    """Give the names that an instance type answers to."""
    names = {row.name, row.chip, row.compile_target}
    return {name.lower() for name in names if name is not None}


def _unknown(request: Request, rows: Sequence[Accelerator]) -> str:
    """Say that nothing in the catalogue has an accelerator."""
    field = f"resources.accelerators[{request.rank}]"
    if request.memory_gib is not None:
        most = max(row.memory_gib_per_chip for row in rows if not row.is_cpu)
        return f"{field}: no chip has the memory {request.text!r}; the largest has {most:.0f} GiB"
    known = sorted({name for row in rows for name in _names(row)})
    close = difflib.get_close_matches(request.name, known, n=3)
    hint = f"did you mean {' or '.join(close)}" if close else "expected a chip, target or instance"
    return f"{field}: {request.text!r} is not in the catalogue; {hint}"
