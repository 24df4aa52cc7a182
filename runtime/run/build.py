"""From a job file to a run's programs: capture, compile, seal. Used by `launch` and `check`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.artifact import KeyService, LocalKeys, TargetPayload, default_home
from runtime.compiler import TargetOutcome
from runtime.plan.machine import available_memory
from runtime.run.compile_events import tell_compile_event
from runtime.run.files import write_bytes
from runtime.run.folder import RunFolder
from runtime.run.machine import software_versions
from runtime.run.prepare import prepare
from runtime.run.progress import Reporter
from runtime.run.target_report import TargetReport, job_statistics, report_targets, statistics
from runtime.spec import CompileError, JobSpec, KmsSection, LumaError


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What a job was made into.

    Attributes:
        prepared: the prepare stage's result.
        payloads: the compiled payload of each target.
        cached: the targets that the compile cache held, so that nothing was compiled for them.
        targets: how the compile of each target went.
        artifact: `digest`, `seal`, `key_file`, `kms`, `bytes` and `targets` of the artifact.
    """

    prepared: dict[str, Any]
    payloads: dict[str, TargetPayload]
    cached: tuple[str, ...]
    targets: tuple[TargetReport, ...]
    artifact: dict[str, Any]


def build(
    spec: JobSpec,
    job_file: Path,
    overrides: dict[str, Any],
    folder: RunFolder,
    *,
    reporter: Reporter,
) -> Built:
    """Prepare a job, compile it for its targets, and write the artifact.

    Args:
        spec: the job, overrides applied.
        job_file: its file; the prepare stage reads it again in its own process.
        overrides: the overrides that `spec` has.
        folder: gets the graph, all that training needs, the artifact, and the public key that
            checks it.
        reporter: told of each stage.

    Raises:
        LumaError: a stage failed; nothing is in the artifact's place then.
    """
    prepared = prepare(job_file, overrides, folder, capture_only=False, progress=reporter.stage)
    outcomes = compile_all(spec, folder, reporter)
    _check_outcomes(outcomes)
    reports, payloads = report_targets(outcomes, spec), _payloads(outcomes)
    artifact = _write(spec, folder, payloads, prepared, reports)
    size = f"{artifact['bytes'] / 1e6:.1f} MB"
    reporter.stage(f"artifact {artifact['digest'][:23]}…: {size}, {artifact['seal']}")
    return Built(
        prepared=prepared,
        payloads=payloads,
        cached=tuple(report.target for report in reports if report.cached),
        targets=reports,
        artifact=artifact,
    )


def compile_all(spec: JobSpec, folder: RunFolder, reporter: Reporter) -> tuple[TargetOutcome, ...]:
    """Compile a folder's captured graph for all targets of a job, several at a time.

    Returns:
        One outcome a target, failed ones included, in the job's order.
    """
    from runtime.artifact import load_or_create_keys, private_folder
    from runtime.compiler import compile_targets as compile_several
    from runtime.compiler.graph import GraphPackage
    from runtime.compiler.several import parallel_compiles

    data = folder.graph_file.read_bytes()
    package = GraphPackage.from_bytes(data)
    cores, memory = len(os.sched_getaffinity(0)), available_memory()
    return compile_several(
        package,
        spec.compile.targets,
        micro_shards=spec.train.micro_shards,
        cache_dir=private_folder(default_home() / "cache" / "compile"),
        data_key=load_or_create_keys().data_key,
        progress=lambda event: tell_compile_event(reporter, event),
        workers=parallel_compiles(len(data), cores=cores, memory_bytes=memory),
    )


def compile_targets(
    spec: JobSpec, folder: RunFolder, reporter: Reporter
) -> tuple[dict[str, TargetPayload], list[str]]:
    """Compile a folder's captured graph for the job's targets, or take them from the cache.

    Returns:
        The payload of each target, and the targets that the cache held.

    Raises:
        LoweringError: an op has no lowering for a target.
        CompileError: a target's compiler failed.
    """
    outcomes = compile_all(spec, folder, reporter)
    _check_outcomes(outcomes)
    cached = [o.target for o in outcomes if o.result is not None and o.result.cached]
    return _payloads(outcomes), cached


def _payloads(outcomes: Sequence[TargetOutcome]) -> dict[str, TargetPayload]:
    return {o.target: o.result.payload for o in outcomes if o.result is not None}


def _check_outcomes(outcomes: Sequence[TargetOutcome]) -> None:
    """Raise what failed: one target's error as it is, those of several in one.

    Raises:
        LumaError: a target failed.
    """
    failed = {o.target: o.error for o in outcomes if o.error is not None}
    if not failed:
        return
    if len(failed) == 1:
        raise next(iter(failed.values()))
    raise _joined(failed)


def _joined(failed: Mapping[str, LumaError]) -> CompileError:
    """Give one error for several targets, with the remedies that differ."""
    lines = [f"{target}: {error.message}" for target, error in failed.items()]
    remedies = dict.fromkeys(error.remedy for error in failed.values() if error.remedy)
    return CompileError("\n".join(lines), remedy="\n    ".join(remedies) or None)


def _write(
    spec: JobSpec,
    folder: RunFolder,
    payloads: dict[str, TargetPayload],
    prepared: dict[str, Any],
    reports: Sequence[TargetReport],
) -> dict[str, Any]:
    from runtime.artifact import load_or_create_keys, write_artifact

    keys, path = load_or_create_keys(), folder.artifact_file
    write_bytes(folder.signer_file, _public_pem(keys))
    sealing = _sealing(spec)
    capture = prepared["capture"]
    digest = write_artifact(
        path,
        payloads,
        level=spec.compile.seal,
        signing_key=keys.signing_key,
        data_key=sealing.key,
        graph_digest=capture["package_digest"],
        statistics={**job_statistics(spec, capture["parameters"]), **statistics(reports)},
        versions=software_versions(),
    )
    return {
        "digest": digest,
        "seal": sealing.label,
        "key_file": None if sealing.key_file is None else str(sealing.key_file),
        "kms": None if spec.compile.kms is None else spec.compile.kms.model_dump(),
        "bytes": path.stat().st_size,
        "targets": sorted(payloads),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sealing:
    """What seals a job's artifact.

    Attributes:
        label: the level as it is shown, with the key's source.
        key: the data key, or the service that keeps the customer's; None at L0.
        key_file: where the data key lies; None where there is none.
    """

    label: str
    key: bytes | KeyService | None = field(repr=False)
    key_file: Path | None = None


def _sealing(spec: JobSpec) -> _Sealing:
    """Choose what seals: nothing at L0, else the job's KMS key or key file, else this machine's.

    Raises:
        ArtifactError: the key file is no key file, or botocore is not installed.
    """
    asked = spec.compile
    if asked.seal == "L0":
        return _Sealing(label="L0", key=None)
    if asked.kms is not None:
        return _Sealing(label="L1 (KMS)", key=_kms_keys(asked.kms))
    key_file, key = job_data_key(spec)
    return _Sealing(label="L1 (key file)", key=key, key_file=key_file)


def job_data_key(spec: JobSpec) -> tuple[Path, bytes]:
    """Give the job's key file, else this machine's own, and the key in it.

    Raises:
        ArtifactError: the key file is no key file.
    """
    from runtime.artifact import load_data_key, load_or_create_keys

    if spec.compile.key_file is None:
        keys = load_or_create_keys()
        return keys.data_key_file, keys.data_key
    path = spec.resolve(spec.compile.key_file)
    return path, load_data_key(path)


def _kms_keys(asked: KmsSection) -> KeyService:
    """Give the service that keeps the job's KMS key; nothing is asked of it yet."""
    from runtime.artifact import KeyReference
    from runtime.artifact.kms import AwsAccess, KmsKeys

    reference = KeyReference(arn=asked.key_arn, customer=asked.customer)
    return KmsKeys(reference, access=AwsAccess(instance_role=asked.instance_role))


def _public_pem(keys: LocalKeys) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return keys.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
