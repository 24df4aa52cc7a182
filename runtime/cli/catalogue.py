"""`luma catalogue`: the instance types and prices that plans count with, and asking AWS for new ones."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from runtime.cli.output import JsonFlag, note, print_json, print_table

if TYPE_CHECKING:
    from runtime.spec import Accelerator, Catalogue

_HEADER = ("INSTANCE", "CHIP", "COUNT", "MEM", "TARGET", "SEAL", "$/H", "SPOT $/H", "OF", "FIGURES")


def register(app: App) -> None:
    """Add the commands."""
    group = App(name="catalogue", help="The instance types and prices that plans count with.")
    group.command(show)
    group.command(update)
    app.command(group)


def show(
    name: str | None = None,
    /,
    *,
    region: str = "us-east-1",
    json: JsonFlag = False,
) -> int:
    """Show instance types, chips and prices, with their days and whether figures were only recalled.

    For example:

        luma catalogue show H100

    Args:
        name: only this chip, target or instance type
        region: whose prices are shown
        json: print JSON: the catalogue's rows as they are
    """
    from runtime.plan.catalogue_file import current_catalogue, user_file
    from runtime.plan.priced import catalogue_words

    catalogue = current_catalogue()
    rows = _matching(catalogue, name)
    if json:
        print_json(
            {
                "updated": catalogue.updated,
                "accelerators": [row.model_dump(mode="json") for row in rows],
            }
        )
        return 0
    print_table(_HEADER, [_row(row, region) for row in rows])
    note(f"prices: {catalogue_words(catalogue)}")
    if catalogue.updated is not None:
        note(f"file: {user_file()}")
    return 0


def update(
    *,
    region: Annotated[list[str], Parameter(negative="")],
    no_capacity_blocks: Annotated[bool, Parameter(negative="")] = False,
    json: JsonFlag = False,
) -> int:
    """Ask AWS for shapes, zones, prices and capacity blocks, and keep them for plans.

    Reads only: ec2:DescribeInstanceTypes, DescribeInstanceTypeOfferings, DescribeSpotPriceHistory,
    DescribeCapacityBlockOfferings and pricing:GetProducts. The file in Luma's home is replaced whole
    or not at all; what it says of other regions stays, with its days. Needs the extra `luma[aws]`.

    For example:

        luma catalogue update --region us-east-1,us-west-2

    Args:
        region: regions to ask about, with commas between
        no_capacity_blocks: do not ask for capacity blocks
        json: print JSON: {path, updated, regions, types}
    """
    from runtime.plan.catalogue_file import read_catalogue, user_file, write_catalogue
    from runtime.plan.update import update_catalogue
    from runtime.spec import load_catalogue
    from runtime.spec.aws import aws_client

    regions = [part.strip() for text in region for part in text.split(",") if part.strip()]
    old = read_catalogue(user_file()) if user_file().exists() else None
    found = update_catalogue(
        load_catalogue(),
        old,
        regions,
        client=lambda service, place: aws_client(service, region=place),
        now=datetime.now(UTC),
        with_blocks=not no_capacity_blocks,
        progress=note,
    )
    path = write_catalogue(found)
    if json:
        print_json(
            {
                "path": str(path),
                "updated": found.updated,
                "regions": list(found.updated_regions),
                "types": len(found.accelerators),
            }
        )
    note(f"wrote {path}: {len(found.accelerators)} rows")
    return 0


def _matching(catalogue: Catalogue, name: str | None) -> list[Accelerator]:
    """Give the rows of a chip, target or instance type.

    Raises:
        SpecError: there are none.
    """
    if name is None:
        return list(catalogue.accelerators)
    from runtime.spec import SpecError

    wanted = name.lower()
    rows = [
        row
        for row in catalogue.accelerators
        if wanted in {row.name.lower(), row.chip.lower(), (row.compile_target or "").lower()}
    ]
    if not rows:
        chips = ", ".join(sorted({row.chip for row in catalogue.accelerators}))
        raise SpecError(
            f"{name!r} is not in the catalogue; chips are {chips}",
            remedy="`luma catalogue show` lists all rows",
        )
    return rows


def _row(row: Accelerator, region: str) -> tuple[str, ...]:
    """Give a row's cells; what is not known is a dash."""
    from runtime.plan.offers import seal_of

    listed, said = row.on_demand(region), row.offer(region)
    spot = [price.usd_per_hour for price in said.spot] if said is not None else []

    def shown(value: Any) -> str:
        return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    return (
        row.name,
        row.chip,
        shown(row.count),
        f"{row.memory_gib_per_chip:.0f}G",
        shown(row.compile_target),
        seal_of(row),
        shown(listed[0] if listed else None),
        shown(min(spot, default=None)),
        shown(listed[1] if listed else None),
        "read" if row.checked == "doc" else f"recalled: {', '.join(row.memory_fields)}",
    )
