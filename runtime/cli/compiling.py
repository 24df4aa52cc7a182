"""How `luma compile` compiles: capture here, have a service compile and seal, judge what comes back.

The service is an enclave, another process, or, where no address is given, a part of this process
that signs with this machine's key and uses its compile cache. All three go the same way.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from runtime.cli.compile_here import CompileHere
from runtime.spec.errors import CompileError, SpecError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

    from enclave_image.service.address import Address
    from enclave_image.service.client import CompiledInService, CompileOrder
    from enclave_image.service.messages import TargetResult
    from enclave_image.service.session import Trust
    from runtime.artifact import Level
    from runtime.run.folder import RunFolder
    from runtime.run.progress import Reporter
    from runtime.run.target_report import TargetReport
    from runtime.spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Where a job is compiled, and who is believed.

    Attributes:
        address: of the service; None for one inside this process.
        measurements: the accepted images; None for a local service.
        image: the one of them.
        seal: the level that an enclave's artifact claims; None for L2.
    """

    address: str | None = None
    measurements: Path | None = None
    image: str | None = None
    seal: Literal["L2", "L3"] | None = None


def compile_in(
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
        options: the service; one inside this process needs no signer's file beside the artifact.
        reporter: told of each stage.

    Returns:
        The artifact's `digest`, `seal` and so on, empty where every target failed; the targets.

    Raises:
        LumaError: a stage failed; nothing is in the artifact's place then.
    """
    from enclave_image.service.client import compile_in_service
    from runtime.run.compile_events import tell_compile_event
    from runtime.run.prepare import prepare

    trust = _trust(options)
    prepared = prepare(job_file, overrides, folder, capture_only=True, progress=reporter.stage)
    order, key_file = _order(spec, folder, prepared["capture"], options)
    results: dict[str, TargetResult] = {}

    def said(result: TargetResult) -> None:
        results[result.target] = result
        tell_compile_event(reporter, _ending(result))

    local = None if options.address is not None else CompileHere(spec, order)
    try:
        with _address(options, local) as address:
            made = compile_in_service(
                address,
                order,
                output=artifact_path,
                trust=trust,
                progress=lambda event: tell_compile_event(reporter, event),
                said=said,
            )
    except CompileError:
        if any(result.error is None for result in results.values()) or not results:
            raise
        return {}, tuple(_report(results[name], {}) for name in spec.compile.targets)
    artifact = {
        "digest": made.artifact.digest,
        "seal": _label(order, made, options),
        "key_file": None if key_file is None else str(key_file),
        "kms": None if spec.compile.kms is None else spec.compile.kms.model_dump(),
        "bytes": artifact_path.stat().st_size,
    }
    if options.address is not None:
        artifact["signer_file"] = str(_write_signer(artifact_path, made.signer))
    size = f"{artifact['bytes'] / 1e6:.1f} MB"
    reporter.stage(f"artifact {made.artifact.digest[:23]}…: {size}, {artifact['seal']}")
    known = local.reports if local is not None else _reports_of(spec, made)
    return artifact, tuple(_report(results[name], known) for name in spec.compile.targets)


def _address(
    options: ServiceOptions, local: CompileHere | None
) -> contextlib.AbstractContextManager[Address]:
    """Give the address of the service: the one that was named, or that of one in this process."""
    from enclave_image.service.address import Address

    if local is not None:
        return local.service()
    return contextlib.nullcontext(Address.parse(str(options.address)))


def _ending(result: TargetResult) -> dict[str, object]:
    """Give the event of a target's end."""
    if result.error is not None:
        return {"target": result.target, "stage": "failed", "message": result.error.message}
    ended = {"stage": "done", "cached": result.cached, "seconds": result.seconds}
    return {"target": result.target, **ended}


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
    from runtime.run.build import job_data_key
    from runtime.run.target_report import job_statistics

    asked = spec.compile
    level: Level = asked.seal
    if options.measurements is not None and level != "L0":
        level = options.seal or "L2"
    key_file, data_key, kms, access = None, None, None, AwsAccess()
    if asked.kms is not None:
        kms = KeyReference(arn=asked.kms.key_arn, customer=asked.kms.customer)
        access = AwsAccess(instance_role=asked.kms.instance_role)
    elif level != "L0":
        key_file, data_key = job_data_key(spec)
    order = CompileOrder(
        package=folder.graph_file.read_bytes(),
        targets=asked.targets,
        micro_shards=spec.train.micro_shards,
        level=level,
        data_key=data_key,
        kms=kms,
        access=access,
        statistics=job_statistics(spec, capture["parameters"]),
    )
    return order, key_file


def _label(order: CompileOrder, made: CompiledInService, options: ServiceOptions) -> str:
    """Give the level as it is printed: never more than was seen."""
    if made.attested:
        return f"{order.level} (attested enclave)"
    if options.address is not None:
        return f"{order.level} (local service)"
    if order.level == "L0":
        return "L0"
    return f"{order.level} ({'KMS' if order.kms is not None else 'key file'})"


def _write_signer(artifact: Path, signer: ec.EllipticCurvePublicKey) -> Path:
    """Write the service's public key beside the artifact, for `luma verify --signer`."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    from runtime.run.files import write_bytes

    path = artifact.with_suffix(".signer.pem")
    write_bytes(path, signer.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return path


def _reports_of(spec: JobSpec, made: CompiledInService) -> Mapping[str, TargetReport]:
    """Report a service's payloads; none where they are sealed under a key that is not here."""
    from runtime.run.target_report import report_payload

    artifact = made.artifact
    if not artifact.can_read_payloads:
        return {}
    return {
        name: report_payload(artifact.target_payload(name), spec)
        for name in artifact.manifest.targets
    }


def _report(result: TargetResult, known: Mapping[str, TargetReport]) -> TargetReport:
    """Report one target: what is known of its payload, and how its compile went."""
    from runtime.run.target_report import State, TargetReport

    state: State = "failed" if result.error else "cached" if result.cached else "compiled"
    error = None if result.error is None else result.error.diagnostics()
    bare = TargetReport(target=result.target, state=state, seconds=0.0, cached=False)
    return dataclasses.replace(
        known.get(result.target, bare),
        state=state,
        seconds=round(result.seconds, 3),
        cached=result.cached,
        error=error,
    )
