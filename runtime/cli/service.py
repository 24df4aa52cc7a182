"""The compile service on the command line: run it, read its figures, compile in it.

`luma compile --service` and the compile in this process go the same way but for `build_in_service`,
which captures here, has the rest done there, and judges what comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App

from runtime.cli.output import note, write
from runtime.spec.errors import CompileError, SpecError

if TYPE_CHECKING:
    from enclave_image.service.client import CompiledInService, CompileOrder
    from enclave_image.service.messages import TargetResult
    from enclave_image.service.session import Trust
    from runtime.artifact import Level
    from runtime.run.folder import RunFolder
    from runtime.run.progress import Reporter
    from runtime.run.target_report import TargetReport
    from runtime.spec import JobSpec

_TOLD_FROM_S = 3.0
"""A stage of a compile that took so long gets a line of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Where a job is compiled, and who is believed.

    Attributes:
        address: of the service.
        measurements: the accepted images; None for a local service.
        image: the one of them.
        seal: the level that an enclave's artifact claims; None for L2.
    """

    address: str
    measurements: Path | None = None
    image: str | None = None
    seal: Literal["L2", "L3"] | None = None


def register(app: App) -> None:
    """Add the commands to the group `enclave`."""
    app["enclave"].command(serve)
    app["enclave"].command(metrics)


def serve(*, listen: str, compiles: int = 1, queue: int = 8) -> int:
    """Run the compile service as a plain process of this machine, until Ctrl-C.

    Its level is L1: whoever has root here can look into it. The same service in the enclave's
    image is what level L2 needs.

    For example:

        luma enclave serve --listen unix:/run/luma/compile.sock

    Args:
        listen: unix:/path; the socket is for this user alone
        compiles: compiling processes at once
        queue: requests that may wait beside those; what is more is told to come back
    """
    from enclave_image.service.__main__ import serve as serve_until_signal
    from enclave_image.service.address import Address

    for name, value in (("--compiles", compiles), ("--queue", queue)):
        if not 0 < value <= 256:
            raise SpecError(f"{name}: {value} is not allowed; expected 1 to 256")
    address = Address.parse(listen)
    if address.family == "unix" and not Path(address.path).absolute().parent.is_dir():
        raise SpecError(f"--listen: the folder '{Path(address.path).parent}' does not exist")
    note(f"L1 (local service) on {address}; Ctrl-C ends it")
    serve_until_signal(address, compiles=compiles, queue=queue)
    return 0


def metrics(service: str, /) -> int:
    """Print the figures of a running compile service, as Prometheus reads them.

    For example:

        luma enclave metrics unix:/run/luma/compile.sock

    Args:
        service: unix:/path or vsock:CID:PORT
    """
    from enclave_image.service.address import Address
    from enclave_image.service.client import read_metrics

    write(read_metrics(Address.parse(service)).removesuffix("\n"))
    return 0


def build_in_service(
    spec: JobSpec,
    job_file: Path,
    overrides: dict[str, Any],
    folder: RunFolder,
    *,
    artifact_path: Path,
    options: ServiceOptions,
    reporter: Reporter,
) -> tuple[dict[str, Any], tuple[TargetReport, ...]]:
    """Capture a job here, and have it compiled and sealed by a service.

    Args:
        spec: the job, overrides applied.
        job_file: its file.
        overrides: the overrides that `spec` has.
        folder: gets the graph.
        artifact_path: where the artifact goes; the key that checks its signature goes beside it.
        options: the service.
        reporter: told of each stage.

    Returns:
        The artifact's `digest`, `seal` and so on, empty where every target failed; the targets.

    Raises:
        LumaError: a stage failed; nothing is in the artifact's place then.
    """
    from enclave_image.service.address import Address
    from enclave_image.service.client import compile_in_service
    from runtime.run.prepare import prepare

    address, trust = Address.parse(options.address), _trust(options)
    prepared = prepare(job_file, overrides, folder, capture_only=True, progress=reporter.stage)
    order, key_file = _order(spec, folder, prepared["capture"], options)
    results: dict[str, TargetResult] = {}

    def said(result: TargetResult) -> None:
        results[result.target] = result
        state = "failed" if result.error else f"compiled in {result.seconds:.1f} s"
        reporter.stage(f"{result.target}: {state}, by {address}")

    try:
        made = compile_in_service(
            address,
            order,
            output=artifact_path,
            trust=trust,
            progress=lambda event: _tell(reporter, event),
            said=said,
        )
    except CompileError:
        if any(result.error is None for result in results.values()) or not results:
            raise
        return {}, _reports(spec, results, None)
    signer_file = _write_signer(artifact_path, made)
    artifact = {
        "digest": made.artifact.digest,
        "seal": _label(order, made),
        "key_file": None if key_file is None else str(key_file),
        "kms": None if spec.compile.kms is None else spec.compile.kms.model_dump(),
        "bytes": artifact_path.stat().st_size,
        "signer_file": str(signer_file),
    }
    return artifact, _reports(spec, results, made)


def _trust(options: ServiceOptions) -> Trust:
    """Give what is accepted on the other side."""
    from enclave_image.service.expected import expected_policy
    from enclave_image.service.session import Trust

    if options.measurements is None:
        if options.image is not None or options.seal is not None:
            raise SpecError(
                "--image, --seal: are for an enclave, which needs --measurements",
                remedy="give the file that `luma enclave build` wrote beside the image",
            )
        return Trust()
    return Trust(policy=expected_policy(options.measurements, options.image))


def _order(
    spec: JobSpec, folder: RunFolder, capture: Mapping[str, Any], options: ServiceOptions
) -> tuple[CompileOrder, Path | None]:
    """Give what is asked for, and the key file that seals it."""
    from enclave_image.service.client import CompileOrder
    from runtime.artifact import KeyReference
    from runtime.artifact.kms import AwsAccess

    asked = spec.compile
    level: Level = asked.seal
    if options.measurements is not None and level != "L0":
        level = options.seal or "L2"
    key_file, data_key, kms, access = None, None, None, AwsAccess()
    if asked.kms is not None:
        if options.measurements is None:
            raise SpecError(
                "compile.kms: a local service is given no key of KMS",
                remedy="name an enclave with --measurements, or compile without --service",
            )
        kms = KeyReference(arn=asked.kms.key_arn, customer=asked.kms.customer)
        access = AwsAccess(instance_role=asked.kms.instance_role)
    elif level != "L0":
        key_file, data_key = _key_file(spec)
    order = CompileOrder(
        package=folder.graph_file.read_bytes(),
        targets=asked.targets,
        micro_shards=spec.train.micro_shards,
        level=level,
        data_key=data_key,
        kms=kms,
        access=access,
        statistics={
            "parameters": capture["parameters"],
            "micro_shards": spec.train.micro_shards,
            "micro_batch": spec.train.micro_batch,
            "seq_len": spec.train.seq_len,
            "packing": spec.data.packing,
        },
    )
    return order, key_file


def _key_file(spec: JobSpec) -> tuple[Path, bytes]:
    """Give the job's key file, else this machine's own, and the key in it."""
    from runtime.artifact import load_data_key, load_or_create_keys

    if spec.compile.key_file is not None:
        path = spec.resolve(spec.compile.key_file)
        return path, load_data_key(path)
    keys = load_or_create_keys()
    return keys.data_key_file, keys.data_key


def _label(order: CompileOrder, made: CompiledInService) -> str:
    """Give the level as it is printed: never more than was seen."""
    if made.attested:
        return f"{order.level} (attested enclave)"
    return f"{order.level} (local service)"


def _write_signer(artifact: Path, made: CompiledInService) -> Path:
    """Write the service's public key beside the artifact, for `luma verify --signer`."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    from runtime.run.files import write_bytes

    path = artifact.with_suffix(".signer.pem")
    write_bytes(path, made.signer.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return path


def _reports(
    spec: JobSpec, results: Mapping[str, TargetResult], made: CompiledInService | None
) -> tuple[TargetReport, ...]:
    """Report each target; figures of a payload need the key that it is sealed under."""
    from runtime.run.target_report import TargetReport, report_targets

    readable = made is not None and made.artifact.can_read_payloads
    reports: list[TargetReport] = []
    for target in spec.compile.targets:
        result = results[target]
        if result.error is None and not readable:
            seconds = round(result.seconds, 3)
            reports.append(
                TargetReport(target=target, state="compiled", seconds=seconds, cached=False)
            )
        else:
            reports += report_targets([_outcome(result, made)], spec)
    return tuple(reports)


def _outcome(result: TargetResult, made: CompiledInService | None) -> Any:
    """Give a target's outcome as a compile in this process would have."""
    from runtime.compiler import CompileResult, TargetOutcome

    compiled = None
    if result.error is None and made is not None:
        compiled = CompileResult(
            payload=made.artifact.target_payload(result.target),
            cached=False,
            seconds=result.seconds,
        )
    return TargetOutcome(
        target=result.target, result=compiled, error=result.error, seconds=result.seconds
    )


def _tell(reporter: Reporter, event: Mapping[str, object]) -> None:
    """Turn an event of a compile into a line of progress, where it is worth one."""
    stage, seconds = event.get("stage"), event.get("seconds")
    long = isinstance(seconds, float) and seconds >= _TOLD_FROM_S
    if stage in {"lower", "compile"} and long:
        done = "lowered" if stage == "lower" else "compiled"
        reporter.stage(f"{event.get('target')}: program {event.get('program')} {done}")
