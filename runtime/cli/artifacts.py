"""`luma compile`, `verify`, `inspect`: make, check and read a `.luma` artifact."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from runtime.cli.output import JsonFlag, note, print_json, print_rows, print_table, write
from runtime.spec.errors import ArtifactError, SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric import ec

    from runtime.artifact import KeyService, Verification
    from runtime.cli.compiling import ServiceOptions
    from runtime.run.target_report import TargetReport

Level = Literal["L0", "L1", "L2", "L3"]  # as `runtime.artifact.levels`, whose import takes long
ArtifactPath = Annotated[Path, Parameter(help="the artifact, or a run folder that holds one")]
KeyFile = Annotated[Path | None, Parameter(help="the data key file (default: this machine's own)")]
Customer = Annotated[
    str | None,
    Parameter(
        help="open a seal under KMS as this customer, with the AWS credentials of the environment"
    ),
]
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
    service: str | None = None,
    measurements: Path | None = None,
    image: str | None = None,
    seal: Annotated[Literal["L2", "L3"] | None, Parameter(negative="")] = None,
    json: JsonFlag = False,
) -> int:
    """Capture a job's model, compile it for its targets, and write one sealed artifact.

    A target that fails leaves the others: the artifact then holds those that compiled, and the exit
    code is 1. Figures are those of one optimizer step on one chip.

    For example:

        luma compile job.yaml --target cuda-sm90,tpu-v5ex4 -o model.luma

        luma compile job.yaml --service vsock:16:5005 --measurements image/measurements.json

    Args:
        job: the job file
        output: the artifact (default NAME.luma in the working folder)
        target: targets instead of the job's, with commas between; `all` for every one
        service: compile there instead of in a service of this process: unix:/path, or
            vsock:CID:PORT
        measurements: accept only an enclave of these measurements, for level L2
        image: the one of the measurements' images
        seal: the level that the artifact claims, of an enclave (default: L2)
        json: print JSON: {artifact, targets: [{target, state, seconds, ...}]}
    """
    from runtime.cli.compiling import compile_in
    from runtime.cli.targets import target_overrides
    from runtime.run.folder import RunFolder
    from runtime.run.progress import ConsoleReporter
    from runtime.spec import JobSpec

    overrides = target_overrides(target)
    spec = JobSpec.from_yaml(job).with_overrides(overrides)
    path = output or Path(f"{spec.name}.luma")
    if not path.resolve().parent.is_dir():
        raise SpecError(f"--output: the folder '{path.resolve().parent}' does not exist")
    options = _service_options(service, measurements, image, seal)
    with tempfile.TemporaryDirectory(prefix="luma-compile-") as temporary:
        made, reports = compile_in(
            spec,
            job,
            overrides,
            RunFolder(Path(temporary)),
            artifact_path=path,
            options=options,
            reporter=ConsoleReporter(),
        )
    rows = [report.to_json() for report in reports]
    place = str(path) if made else None
    document = {"artifact": place, **made, "targets": rows}
    if json:
        print_json(document)
    else:
        _print_targets(document, reports)
    failed = [report for report in reports if report.state == "failed"]
    for report in failed:
        note(f"luma: {report.target}: {report.error}")
    _note_misfits(reports)
    if made:
        signer = f" --signer {made['signer_file']}" if "signer_file" in made else ""
        note(f"next:\n  luma verify {path}{signer} --leaks")
    return 1 if failed else 0


def _service_options(
    service: str | None,
    measurements: Path | None,
    image: str | None,
    seal: Literal["L2", "L3"] | None,
) -> ServiceOptions:
    """Give where to compile, and who is believed there."""
    from runtime.cli.compiling import ServiceOptions

    others = {"--measurements": measurements, "--image": image, "--seal": seal}
    given = [name for name, value in others.items() if value is not None]
    if service is not None:
        return ServiceOptions(address=service, measurements=measurements, image=image, seal=seal)
    if given:
        raise SpecError(f"{', '.join(given)}: needs --service, the address of the enclave")
    return ServiceOptions()


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
    require: Annotated[Level | None, Parameter(negative="")] = None,
    leaks: Annotated[bool, Parameter(negative="")] = False,
    key_file: KeyFile = None,
    customer: Customer = None,
    signer: Signer = None,
    measurements: Path | None = None,
    key_policy: Path | None = None,
    json: JsonFlag = False,
) -> int:
    """Check an artifact's chain of evidence and every byte; say which seal level it reaches.

    Exit code 1 where it does not reach the required level. Without `--require` that is the level
    that it claims itself: so a sealed artifact without its key is not verified.

    For example:

        luma verify runs/quickstart/artifact.luma --leaks

        luma verify model.luma --signer signer.pem --customer acme

        luma verify model.luma --require L2 --measurements measurements.json --json

    Args:
        artifact: the artifact, or a run folder that holds one
        require: the seal level that it must reach (default: the one that it claims)
        leaks: list what a holder of the key could still read in the payloads, and refuse those
            that call themselves scrubbed and are not
        key_file: the data key file (default: this machine's own)
        customer: open a seal under KMS as this customer; nothing of AWS is asked without it
        signer: public key (PEM) of the signer to trust (default: this machine's own)
        measurements: the images to accept, for L2; such as `luma enclave build` writes
        key_policy: the JSON of the KMS key's policy, for L3
        json: print JSON: {level, evidence: [{name, state, ...}], failed, ...}
    """
    from runtime.artifact import AcceptedMeasurements, KeyPolicy, verify_artifact

    path, trusted = _artifact_path(artifact), _trusted_signer(signer)
    accepted = None if measurements is None else AcceptedMeasurements.from_file(measurements)
    policy = None if key_policy is None else KeyPolicy.from_file(key_policy)
    try:
        found = verify_artifact(
            path,
            trusted_signer=trusted,
            key=_key(path, trusted, key_file=key_file, customer=customer),
            accepted=accepted,
            key_policy=policy,
            scan_leaks=leaks,
        )
    except ArtifactError as error:
        if json:
            print_json(_unverified(error, require))
        raise
    if json:
        print_json(found.to_json(asked=require))
    else:
        _print_verification(found, path, with_leaks=leaks)
    enough = found.complete if require is None else found.reaches(require)
    if not enough:
        note(f"luma: {_incomplete(found, require)}")
    return 0 if enough else 1


def _unverified(error: ArtifactError, require: Level | None) -> dict[str, Any]:
    """Give the JSON of an artifact that is refused as a whole: no level, and no evidence."""
    return {
        "level": "none",
        "level_required": require,
        "evidence": [],
        "failed": ["artifact"],
        "error": error.message,
    }


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


def _key(
    path: Path,
    trusted: ec.EllipticCurvePublicKey | None,
    *,
    key_file: Path | None,
    customer: str | None,
) -> bytes | KeyService | None:
    """Give what opens the artifact's seal: a key file's key, or the customer's keys in KMS."""
    from runtime.artifact import KeyReference, open_artifact
    from runtime.artifact.kms import KmsKeys

    seal = open_artifact(path, trusted_signer=trusted).manifest.seal
    sealed_by = None if seal is None else seal.kms
    if customer is None:
        # This machine's own key file is for what was sealed with one.
        return None if sealed_by is not None and key_file is None else _data_key(key_file)
    if sealed_by is None:
        raise SpecError("--customer: the artifact is not sealed under a KMS key; leave it out")
    if trusted is None:
        raise SpecError("--customer: needs --signer; a manifest of unknown origin names no key")
    return KmsKeys(KeyReference(arn=sealed_by.arn, customer=customer))


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


def _incomplete(found: Verification, require: Level | None) -> str:
    """Say which of the evidence held, which did not, and what to do."""
    asked, how = (found.claimed, "claimed") if require is None else (require, "required")
    held = ", ".join(item.name for item in found.evidence if item.holds)
    failed = found.failed(asked)
    details = [item.detail for item in found.evidence if item.name in failed]
    needed = [item.needed for item in found.evidence if item.name in failed]
    if "claim" in failed:
        details.insert(0, f"the artifact claims only {found.claimed}")
        needed.insert(0, f"an artifact that was compiled at seal level {asked}")
    return (
        f"not verified as {how} ({asked}): {held} verified; not verified: {'; '.join(details)}\n"
        f"  needed: {'; '.join(filter(None, needed))}"
    )


def _print_verification(found: Verification, path: Path, *, with_leaks: bool) -> None:
    from runtime.cli.trust_chain import chain_lines

    rows = [("level", found.label), ("claimed", found.claimed)]
    if not with_leaks:
        rows.append(("leaks", "not looked for, nor whether payloads are as scrubbed as they say"))
    print_rows(rows)
    for line in chain_lines(found, path):
        write(line)
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
