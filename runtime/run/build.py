"""From a job file to an artifact: capture, compile, seal. Used by `launch`, `compile`, `check`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.artifact import LocalKeys, TargetPayload, default_home
from runtime.run.files import write_bytes
from runtime.run.folder import RunFolder
from runtime.run.machine import software_versions
from runtime.run.prepare import prepare
from runtime.run.progress import Reporter
from runtime.spec import JobSpec

SEAL_LABELS = {"L0": "L0", "L1": "L1 (key file)"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What a job was made into.

    Attributes:
        prepared: the prepare stage's result.
        payloads: the compiled payload of each target.
        cached: the targets that the compile cache held, so that nothing was compiled for them.
        artifact: `digest`, `seal`, `key_file`, `bytes` and `targets` of the artifact.
    """

    prepared: dict[str, Any]
    payloads: dict[str, TargetPayload]
    cached: tuple[str, ...]
    artifact: dict[str, Any]


def build(
    spec: JobSpec,
    job_file: Path,
    overrides: dict[str, Any],
    folder: RunFolder,
    *,
    artifact_path: Path,
    signer_path: Path | None = None,
    capture_only: bool,
    reporter: Reporter,
) -> Built:
    """Prepare a job, compile it for its targets, and write the artifact.

    Args:
        spec: the job, overrides applied.
        job_file: its file; the prepare stage reads it again in its own process.
        overrides: the overrides that `spec` has.
        folder: gets the graph, and unless `capture_only` all that training needs.
        artifact_path: where the artifact goes.
        signer_path: where the public key that checks it goes, PEM; None writes none.
        capture_only: prepare no data and no initial state.
        reporter: told of each stage.

    Raises:
        LumaError: a stage failed; nothing is in the artifact's place then.
    """
    prepared = prepare(
        job_file, overrides, folder, capture_only=capture_only, progress=reporter.stage
    )
    payloads, cached = compile_targets(spec, folder, reporter)
    artifact = _write(spec, artifact_path, payloads, prepared, signer_path=signer_path)
    reporter.stage(
        f"artifact {artifact['digest'][:23]}…: {artifact['bytes'] / 1e6:.1f} MB, {artifact['seal']}"
    )
    return Built(prepared=prepared, payloads=payloads, cached=tuple(cached), artifact=artifact)


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
    from runtime.artifact import load_or_create_keys, private_folder
    from runtime.compiler import compile_package
    from runtime.compiler.graph import GraphPackage

    package = GraphPackage.from_bytes(folder.graph_file.read_bytes())
    keys = load_or_create_keys()
    payloads, cached = {}, []
    for target in spec.compile.targets:
        result = compile_package(
            package,
            target=target,
            micro_shards=spec.train.micro_shards,
            cache_dir=private_folder(default_home() / "cache" / "compile"),
            data_key=keys.data_key,
        )
        payloads[target] = result.payload
        if result.cached:
            cached.append(target)
            reporter.stage(f"{target}: from the cache, nothing was compiled")
        else:
            reporter.stage(f"{target}: compiled in {result.seconds:.1f} s")
    return payloads, cached


def _write(
    spec: JobSpec,
    path: Path,
    payloads: dict[str, TargetPayload],
    prepared: dict[str, Any],
    *,
    signer_path: Path | None,
) -> dict[str, Any]:
    from runtime.artifact import load_data_key, load_or_create_keys, write_artifact

    keys = load_or_create_keys()
    if signer_path is not None:
        write_bytes(signer_path, _public_pem(keys))
    data_key, key_file = None, None
    if spec.compile.seal == "L1":
        key_file, data_key = keys.data_key_file, keys.data_key
        if spec.compile.key_file is not None:
            key_file = spec.resolve(spec.compile.key_file)
            data_key = load_data_key(key_file)
    capture = prepared["capture"]
    digest = write_artifact(
        path,
        payloads,
        level=spec.compile.seal,
        signing_key=keys.signing_key,
        data_key=data_key,
        graph_digest=capture["package_digest"],
        statistics={
            "parameters": capture["parameters"],
            "micro_shards": spec.train.micro_shards,
            "micro_batch": spec.train.micro_batch,
            "seq_len": spec.train.seq_len,
            "packing": spec.data.packing,
        },
        versions=software_versions(),
    )
    return {
        "digest": digest,
        "seal": SEAL_LABELS[spec.compile.seal],
        "key_file": None if key_file is None else str(key_file),
        "bytes": path.stat().st_size,
        "targets": sorted(payloads),
    }


def _public_pem(keys: LocalKeys) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return keys.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
