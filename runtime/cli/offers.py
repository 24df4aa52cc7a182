"""`luma offers`: what could run a job, at what price, and what the plan would take."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from runtime.cli.output import JsonFlag, note, print_json, print_rows, print_table
from runtime.spec.errors import SpecError

if TYPE_CHECKING:
    from runtime.plan.costs import TargetCosts
    from runtime.plan.priced import OfferPlan
    from runtime.spec import JobSpec

_HEADER = (
    "#", "INFRA", "INSTANCE", "ACCELERATORS", "MEM", "SPOT", "$/H", "$/Mtok", "STEP",
    "EST.INTERRUPT", "AVAIL", "SEAL", "WHY",
)  # fmt: skip
_SHOWN = 12
"""Rows that are shown without --all, the chosen ones beside them."""


def register(app: App) -> None:
    """Add the command."""
    app.command(offers)


def offers(
    job: Path,
    /,
    *,
    artifact: Path | None = None,
    infra: Annotated[list[str] | None, Parameter(negative="")] = None,
    no_compile: Annotated[bool, Parameter(negative="")] = False,
    require: Literal["L2", "L3"] | None = None,
    every: Annotated[bool, Parameter(name="--all", negative="")] = False,
    json: JsonFlag = False,
) -> int:
    """Show what could run a job, with prices and predictions, and what the plan would take.

    The job is compiled for its targets as `luma check` does (the compile cache makes that quick the
    second time), since memory and speed follow from the compiled programs. Prices are those of
    `luma catalogue show`; nothing is asked of AWS and nothing is rented.

    For example:

        luma offers job.yaml --infra aws/us-east-1

    Args:
        job: the job file
        artifact: take memory and work from this artifact's public figures, and compile nothing
        infra: places instead of the job's, with commas between: aws/us-east-1, aws/us-*, local
        no_compile: show prices only
        require: seal level that every node must be able to reach
        every: show all rows
        json: print JSON: {catalogue, offers: [{infra, instance, ..., chosen, reason}], choice, error}
    """
    from runtime.plan.catalogue_file import current_catalogue
    from runtime.plan.here import plan_here
    from runtime.plan.priced import plan_offers
    from runtime.spec import JobSpec

    if artifact is not None and no_compile:
        raise SpecError("offers: --artifact and --no-compile exclude each other; give one of them")
    overrides = _infra_overrides(infra)
    spec = JobSpec.from_yaml(job).with_overrides(overrides)
    costs = {} if no_compile else _costs(job, overrides, spec, artifact)
    if spec.resources.is_local:
        plan = plan_here(spec, costs)
    else:
        plan = plan_offers(spec, costs, current_catalogue(), require=require)
    if json:
        print_json({"job": str(job), **plan.to_json()})
    else:
        _print(plan, every=every)
    if plan.error is None:
        return 0
    note(f"luma: {plan.error.diagnostics()}")
    return plan.error.exit_code


def _infra_overrides(infra: list[str] | None) -> dict[str, Any]:
    """Give the override for `--infra`, commas resolved; {} where it is not given."""
    if infra is None:
        return {}
    names = [name.strip() for text in infra for name in text.split(",") if name.strip()]
    return {"resources.infra": names}


def _costs(
    job: Path, overrides: dict[str, Any], spec: JobSpec, artifact: Path | None
) -> Mapping[str, TargetCosts]:
    """Learn what the job costs on its targets, from an artifact or by compiling it."""
    from runtime.plan.costs import costs_of_payloads, costs_of_statistics

    if artifact is None:
        return costs_of_payloads(_compile(job, overrides, spec))
    from runtime.artifact import open_artifact

    path = artifact / "artifact.luma" if artifact.is_dir() else artifact
    manifest = open_artifact(path, trusted_signer=None).manifest
    found = costs_of_statistics(manifest.statistics, spec)
    if not found:
        raise SpecError(
            f"--artifact: '{path}' carries no figures of its targets",
            remedy="compile the job again with this version",
        )
    return found


def _compile(job: Path, overrides: dict[str, Any], spec: JobSpec) -> Mapping[str, Any]:
    """Capture and compile the job for those targets whose compilers are installed."""
    from runtime.compiler.targets import back_end, find_target
    from runtime.run.build import compile_targets
    from runtime.run.folder import RunFolder
    from runtime.run.prepare import prepare
    from runtime.run.progress import ConsoleReporter

    missing = {}
    for name in spec.compile.targets:
        target = find_target(name)
        missing[name] = back_end(target).missing(target)
    here = [name for name, lacking in missing.items() if lacking is None]
    for name, lacking in missing.items():
        if lacking is not None:
            note(f"{name}: its compiler '{lacking.package}' is not installed here; not judged")
    if not here:
        return {}
    reporter = ConsoleReporter()
    with tempfile.TemporaryDirectory(prefix="luma-offers-") as temporary:
        folder = RunFolder(Path(temporary))
        prepare(job, overrides, folder, capture_only=True, progress=reporter.stage)
        chosen = spec.with_overrides({"compile.targets": here})
        payloads, _ = compile_targets(chosen, folder, reporter)
    return payloads


def _print(plan: OfferPlan, *, every: bool) -> None:
    """Print the table, then what the choice comes to."""
    document = plan.to_json()
    rows = document["offers"]
    shown = rows if every else [r for i, r in enumerate(rows) if i < _SHOWN or r["chosen"]]
    print_table(_HEADER, [_row(number, row) for number, row in enumerate(shown, 1)])
    if len(shown) < len(rows):
        note(f"... and {len(rows) - len(shown)} more; --all shows them")
    note(f"prices: {document['catalogue']}")
    sources = {row["interruptions_from"] for row in shown if row["interruptions_from"]}
    for source in sorted(sources):
        note(f"interruptions of spot capacity: {source}")
    if document["choice"] is not None:
        print_rows(_totals(document["choice"]))


def _row(number: int, row: dict[str, Any]) -> Sequence[str]:
    """Give a row's cells; the chosen ones have their count of islands in front."""
    mark = f"{row['islands']}x" if row["chosen"] else str(number)
    bound = "<=" if row["price_is_limit"] else ""
    rate = row["interruptions_per_hour"]
    return (
        mark,
        row["zone"] or row["infra"].removeprefix("aws/"),
        row["instance"],
        row["accelerators"],
        f"{row['memory_gib']:.0f}G",
        {"spot": "yes", "on-demand": "no"}.get(row["purchase"], row["purchase"]),
        "-" if row["usd_per_hour"] is None else f"{bound}{row['usd_per_hour']:.4g}",
        "-" if row["usd_per_mtok"] is None else f"{bound}{row['usd_per_mtok']:.3g}",
        "-" if row["step_s"] is None else f"{row['step_s']:.2g}s",
        "-" if not rate else f"{rate:.2g}/h",
        row["availability"],
        row["seal"],
        row["reason"],
    )


def _totals(choice: dict[str, Any]) -> list[tuple[str, str]]:
    """Give what the choice comes to as (label, text) rows."""
    rows = [("chosen", f"{choice['islands']} islands, {choice['usd_per_hour']:.4g} $/h")]
    if choice["step_s"] is not None:
        rows.append(("predicted", f"{choice['step_s']:.2g} s a step"))
    if choice["hours"] is not None:
        rows.append(("job", f"{choice['hours']:.2g} h, {choice['cost_usd']:.2f} $"))
    return rows + [("note", text) for text in choice["notes"]]
