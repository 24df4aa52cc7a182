"""`luma compile`, `verify`, `inspect`: make, check and read a `.luma` artifact."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from runtime.cli.output import JsonFlag, note, print_json, print_rows, print_table
from runtime.spec.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric import ec

    from runtime.artifact import Verification
    from runtime.run.target_report import TargetReport

ArtifactPath = Annotated[Path, Parameter(help="the artifact, or a run folder that holds one")]
KeyFile = Annotated[Path | None, Parameter(help="the data key file (default: this machine's own)")]
Signer = Annotated[
    Path | None,
    Parameter(help="public key (PEM) of the signer to trust (default: this machine's own)"),
]

_EXAMPLE_WIDTH = 100  # characters; the JSON form gives the examples whole


def register(app: App) -> None:
    """Add the commands."""
    app.command(compile_job, name="compile")
    app.command(verify)
    app.command(inspect)


def compile_job(
    job: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    target: Annotated[list[str] | None, Parameter(negative="")] = None,
    json: JsonFlag = False,
) -> int:
    """Capture a job's model, compile it for its targets, and write one sealed artifact.

    A target that fails leaves the others: the artifact then holds those that compiled, and the exit
    code is 1. Figures are those of one optimizer step on one chip.

    For example:

        luma compile job.yaml --target cuda-sm90,tpu-v5ex4 -o model.luma

    Args:
        job: the job file
        output: the artifact (default NAME.luma in the working folder)
        target: targets instead of the job's, with commas between; `all` for every one
        json: print JSON: {artifact, targets: [{target, state, seconds, ...}]}
    """
    from runtime.cli.targets import target_overrides
    from runtime.run.build import build
    from runtime.run.folder import RunFolder
    from runtime.run.progress import ConsoleReporter
    from runtime.spec import JobSpec

    overrides = target_overrides(target)
    spec = JobSpec.from_yaml(job).with_overrides(overrides)
    path = output or Path(f"{spec.name}.luma")
    if not path.resolve().parent.is_dir():
        raise SpecError(f"--output: the folder '{path.resolve().parent}' does not exist")
    with tempfile.TemporaryDirectory(prefix="luma-compile-") as temporary:
        built = build(
            spec,
            job,
            overrides,
            RunFolder(Path(temporary)),
            artifact_path=path,
            capture_only=True,
            reporter=ConsoleReporter(),
        )
    rows = [report.to_json() for report in built.targets]
    place = str(path) if built.artifact else None
    document = {"artifact": place, **built.artifact, "targets": rows}
    if json:
        print_json(document)
    else:
        _print_targets(document, built.targets)
    failed = [report for report in built.targets if report.state == "failed"]
    for report in failed:
        note(f"luma: {report.target}: {report.error}")
    _note_misfits(built.targets)
    if built.artifact:
        note(f"next:\n  luma verify {path} --leaks")
    return 1 if failed else 0


def _print_targets(document: dict[str, Any], reports: Sequence[TargetReport]) -> None:
    print_rows((key, str(value)) for key, value in document.items() if key != "targets")
    header = ("TARGET", "STATE", "S", "PAYLOAD", "PEAK/CHIP", "TFLOP/STEP", "S/STEP", "ON")
    print_table(header, [_target_row(report) for report in reports])


def _target_row(report: TargetReport) -> tuple[str, ...]:
    """Give a line of the table; "-" stands for what is not known."""

    def shown(value: float | None, scale: float, form: str, unit: str = "") -> str:
        return "-" if value is None else f"{value / scale:{form}}{unit}"

    return (
        report.target,
        report.state,
        f"{report.seconds:.1f}",
        shown(report.payload_bytes, 1e6, ".1f", " MB"),
        shown(report.peak_memory_bytes, 2**30, ".2f", " GiB"),
        shown(report.flops, 1e12, ".3g"),
        shown(report.predicted_step_s, 1, ".2g"),
        report.chip or "-",
    )


def _note_misfits(reports: Sequence[TargetReport]) -> None:
    """Say which chips a target does not fit, and what would make it fit."""
    for fit in (fit for report in reports for fit in report.fit if not fit.fits):
        ways = "; or ".join(fit.ways) or "use a chip with more memory, or a smaller model"
        note(f"luma: {fit.text()}\n  remedy: {ways}")


def verify(
    artifact: ArtifactPath,
    /,
    *,
    leaks: Annotated[bool, Parameter(negative="")] = False,
    key_file: KeyFile = None,
    signer: Signer = None,
    json: JsonFlag = False,
) -> int:
    """Check an artifact's signature, seal and every byte; say which seal level it reaches.

    Exit code 1 when it does not verify, its signer is not trusted, or it is sealed and its key was
    not given, so that the payloads could not be checked.

    For example:

        luma verify runs/quickstart/artifact.luma --leaks

    Args:
        artifact: the artifact, or a run folder that holds one
        leaks: list what a holder of the key could still read in the payloads
        key_file: the data key file (default: this machine's own)
        signer: public key (PEM) of the signer to trust (default: this machine's own)
        json: print JSON
    """
    from runtime.artifact import verify_artifact

    found = verify_artifact(
        _artifact_path(artifact),
        trusted_signer=_trusted_signer(signer),
        key=_data_key(key_file),
        scan_leaks=leaks,
    )
    if json:
        print_json(found.to_json())
    else:
        _print_verification(found, with_leaks=leaks)
    if found.level != "none" and not found.complete:
        note(f"luma: {_incomplete(found)}")
    return 0 if found.complete else 1


def inspect(artifact: ArtifactPath, /, *, json: JsonFlag = False) -> int:
    """Show an artifact's manifest; needs no key.

    For example:

        luma inspect model.luma --json
    """
    from runtime.artifact import open_artifact

    opened = open_artifact(_artifact_path(artifact), trusted_signer=None)
    document = {"digest": opened.digest, **opened.manifest.to_json()}
    if json:
        print_json(document)
    else:
        print_rows(_flat(document))
    return 0


def _flat(document: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Give nested values as dotted labels, lists of plain values on one line."""
    if isinstance(document, dict):
        return [
            row
            for key, value in document.items()
            for row in _flat(value, f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(document, list | tuple) and any(isinstance(v, dict) for v in document):
        return [row for i, v in enumerate(document) for row in _flat(v, f"{prefix}[{i}]")]
    if isinstance(document, list | tuple):
        return [(prefix, ", ".join(map(str, document)))]
    return [(prefix, str(document))]


def _artifact_path(path: Path) -> Path:
    return path / "artifact.luma" if path.is_dir() else path


def _data_key(key_file: Path | None) -> bytes | None:
    """Give the key of a file, or of this machine where it has one."""
    from runtime.artifact import default_home, load_data_key

    own = default_home() / "keys" / "data.key"
    if key_file is None and not own.exists():
        return None
    return load_data_key(key_file or own)


def _trusted_signer(signer: Path | None) -> ec.EllipticCurvePublicKey | None:
    from runtime.artifact import default_home, load_public_key, load_signing_key

    if signer is not None:
        return load_public_key(signer)
    own = default_home() / "keys" / "signing.pem"
    return load_signing_key(own).public_key() if own.exists() else None


def _incomplete(found: Verification) -> str:
    """Say which of the evidence held and which could not be seen."""
    held = ", ".join(item.name for item in found.evidence if item.holds)
    rest = "; ".join(item.detail for item in found.evidence if not item.holds)
    return (
        f"not verified as claimed ({found.claimed}): {held} verified; not verified: {rest}\n"
        "  remedy: give the data key with --key-file"
    )


def _print_verification(found: Verification, *, with_leaks: bool) -> None:
    rows = [("level", found.label), ("claimed", found.claimed), ("digest", found.digest)]
    rows += [
        (item.name, f"{'holds' if item.holds else 'does not hold'}: {item.detail}")
        for item in found.evidence
    ]
    print_rows(rows)
    if not with_leaks:
        return
    if found.leaks is None:
        note("leaks: the payloads are sealed and no key was given")
        return
    table = [
        (target, program, leak.kind, str(leak.count), " | ".join(leak.examples)[:_EXAMPLE_WIDTH])
        for target, programs in found.leaks.items()
        for program, leaks in programs.items()
        for leak in leaks
    ]
    print_table(
        ("TARGET", "PROGRAM", "READABLE WITH THE KEY", "COUNT", "SUCH AS"),
        table or [("all", "all", "nothing", "0", "")],
    )
