"""Make an island from a run folder: verify everything, then load it."""

from __future__ import annotations

from pathlib import Path

from runtime.agent.bucket import Bucket, BucketPlace
from runtime.agent.checkpoint import read_constants
from runtime.agent.checkpoint_remote import RemoteCheckpoints
from runtime.agent.checkpoints import CheckpointStore
from runtime.agent.loaders import loader_for
from runtime.agent.process import IslandProcess
from runtime.agent.samples import SampleFile
from runtime.agent.settings import LOCAL, IslandSettings
from runtime.agent.state import Arrays
from runtime.agent.trainer import Trainer
from runtime.artifact import (
    Artifact,
    KeyReference,
    KeyService,
    load_data_key,
    load_public_key,
    open_artifact,
)
from runtime.artifact.program import TargetPayload
from runtime.coordinator.plan import PLAN_FILE, RunPlan
from runtime.spec.errors import ArtifactError, CheckpointError, DataError

CONSTANTS_FILE = "constants.safetensors"
DATA_FOLDER = "data"


def open_island(
    run_dir: Path, name: str, plan: RunPlan, settings: IslandSettings = LOCAL
) -> IslandProcess:
    """Open a run's artifact, data and constants, and make the island that computes with them.

    Raises:
        SpecError: the store's place has another form.
        AwsError: the store cannot be asked.
        ArtifactError: the artifact is not whole, not signed by the run's signer, or does not open,
            or this node cannot run its target.
        DataError: the prepared data is not what the plan names.
        CheckpointError: the constants cannot be read.
    """
    payload = _open_payload(run_dir, plan)
    samples = SampleFile.open(run_dir / DATA_FOLDER)
    if samples.digest != plan.data_digest:
        raise DataError(
            f"{run_dir / DATA_FOLDER}: digest {samples.digest}, the plan names {plan.data_digest}"
        )
    constants = _constants(run_dir, plan)
    threads = plan.threads_per_island
    trainer = Trainer(
        plan,
        payload,
        loader=loader_for(payload),
        samples=samples,
        constants=constants,
        threads=threads,
    )
    store = CheckpointStore(
        run_dir,
        job_digest=plan.job_digest,
        keep=plan.keep,
        constants=_stored(constants, plan.stored_constants),
        threads=threads,
        remote=_remote(settings, plan),
    )
    return IslandProcess(run_dir, name, plan=plan, trainer=trainer, store=store, settings=settings)


def _remote(settings: IslandSettings, plan: RunPlan) -> RemoteCheckpoints | None:
    if settings.store is None:
        return None
    place = BucketPlace.parse(settings.store)
    return RemoteCheckpoints(Bucket(place), job_digest=plan.job_digest)


def _open_payload(run_dir: Path, plan: RunPlan) -> TargetPayload:
    """Open the target's programs, and make sure that they add as many shards as the plan has.

    Raises:
        ArtifactError: it does not open, or was compiled for another number of micro-shards.
    """
    key = artifact_key(plan)
    signer = load_public_key(run_dir / plan.signer_file)
    path = run_dir / plan.artifact
    try:
        artifact = open_artifact(path, trusted_signer=signer, key=key)
        _check_micro_shards(artifact, plan)
        return artifact.target_payload(plan.target)
    except ArtifactError as error:
        if str(path) in error.message:
            raise
        raise ArtifactError(f"{path}: {error.message}", remedy=error.remedy) from error


def artifact_key(plan: RunPlan) -> bytes | KeyService | None:
    """Give what opens the run's artifact: its key file's key, or the service that keeps its KMS key.

    KMS is asked only once the artifact's signature was checked, and for this artifact alone.

    Returns:
        None where the artifact is not sealed.

    Raises:
        ArtifactError: the key file is none, or what asks KMS is not installed.
    """
    if plan.kms is not None:
        from runtime.artifact.kms import AwsAccess, KmsKeys

        reference = KeyReference(arn=plan.kms.key_arn, customer=plan.kms.customer)
        return KmsKeys(reference, access=AwsAccess(instance_role=plan.kms.instance_role))
    return None if plan.key_file is None else load_data_key(Path(plan.key_file))


def _check_micro_shards(artifact: Artifact, plan: RunPlan) -> None:
    """Refuse programs whose integers leave room for another number of shards than the plan's."""
    compiled = artifact.manifest.statistics.get("micro_shards", plan.micro_shards)
    if compiled != plan.micro_shards:
        raise ArtifactError(
            f"compiled for micro_shards {compiled}, {PLAN_FILE} has {plan.micro_shards}",
            remedy="launch the job again, which compiles it for train.micro_shards",
        )


def _stored(constants: Arrays, names: tuple[str, ...]) -> Arrays:
    missing = [name for name in names if name not in constants]
    if missing:
        raise CheckpointError(
            f"{CONSTANTS_FILE} has no array '{missing[0]}', which the model's weight file needs"
        )
    return {name: constants[name] for name in names}


def _constants(run_dir: Path, plan: RunPlan) -> Arrays:
    path = run_dir / CONSTANTS_FILE
    return read_constants(path, plan.constants_digest) if path.exists() else {}
