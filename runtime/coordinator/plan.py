"""The run's plan: the few numbers that the coordinator and every island must agree on.

The launcher writes `plan.json` once into the run folder; the coordinator and the islands read it.
Nothing in it depends on the fleet that happens to be there, except how many islands to wait for.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runtime.spec.errors import RunError

PLAN_FORMAT = 1
PLAN_FILE = "plan.json"


def new_run_id() -> str:
    """Give an id for a new run: random, 128 bits in hex."""
    return secrets.token_hex(16)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerPlan:
    """AdamW with decoupled weight decay.

    Attributes:
        lr: peak learning rate.
        betas: decay rates of the first and second moment.
        eps: added to the root of the second moment.
        weight_decay: applied to parameters of two or more dimensions.
        grad_clip: largest global gradient norm; 0 for no clipping.
    """

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    grad_clip: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulePlan:
    """Linear warm-up, then a constant rate or a cosine down to `min_lr_ratio` of the peak."""

    kind: Literal["cosine", "constant"]
    warmup_steps: int
    min_lr_ratio: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KmsPlan:
    """The KMS key that opens a run's artifact: a reference, nothing secret.

    Attributes:
        key_arn: the key's ARN.
        customer: the customer's name.
        instance_role: whether an island may take credentials from its instance or container.
    """

    key_arn: str
    customer: str
    instance_role: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """What one run computes, and how its processes find out about each other's death.

    Attributes:
        run_id: names this run, and no other, to its processes: one that comes with another id
            belongs to an older run in the same folder and is refused.
        total_steps: optimizer steps of the whole job.
        micro_shards: M, the micro-shards of one global batch; part of the job's identity.
        micro_batch: sequences in one micro-shard.
        seed: the job's seed, for the sampler and the dropout draws.
        islands: how many islands to wait for before the first step.
        min_islands: the least number to start or go on with.
        threads_per_island: intra-op threads of an island's executables.
        heartbeat_timeout_s: silence after which an island counts as gone, in seconds.
        checkpoint_every: applied steps between two checkpoints.
        keep: checkpoints kept, 2 or more.
        target: the payload's name in the artifact.
        artifact: the artifact's path, relative to the run folder.
        key_file: the customer's key file for an artifact that is sealed with one, or None.
        signer_file: PEM of the public key that the artifact must be signed by, relative to the
            run folder.
        job_digest: BLAKE3 of the job; a checkpoint of another job is refused.
        headroom: bits that a gradient block may grow by from one step to the next.
        optimizer: the optimizer's settings.
        schedule: the learning-rate schedule.
        sample_count: samples in the prepared data.
        data_digest: digest of the prepared data.
        stored_constants: names in `constants.safetensors` that a checkpoint's weight file holds
            too: frozen parameters and persistent buffers of a whole model.
        constants_digest: BLAKE3 of `constants.safetensors`, or None to read it unverified.
        kms: the KMS key for an artifact that is sealed under one, or None.
    """

    run_id: str
    total_steps: int
    micro_shards: int
    micro_batch: int
    seed: int
    islands: int
    min_islands: int
    threads_per_island: int
    heartbeat_timeout_s: float
    checkpoint_every: int
    keep: int
    target: str
    artifact: str
    key_file: str | None
    signer_file: str
    job_digest: str
    headroom: int
    optimizer: OptimizerPlan
    schedule: SchedulePlan
    sample_count: int
    data_digest: str
    stored_constants: tuple[str, ...] = ()
    constants_digest: str | None = None
    kms: KmsPlan | None = None

    def write(self, run_dir: Path) -> None:
        """Write `plan.json` into `run_dir`, whole or not at all."""
        document = {"format": PLAN_FORMAT, **dataclasses.asdict(self)}
        temporary = run_dir / f".{PLAN_FILE}.tmp"
        temporary.write_text(json.dumps(document, indent=2) + "\n")
        temporary.rename(run_dir / PLAN_FILE)

    @classmethod
    def read(cls, run_dir: Path) -> RunPlan:
        """Read `plan.json` of a run folder.

        Raises:
            RunError: the file is missing, cut, or of another format version.
        """
        path = run_dir / PLAN_FILE
        try:
            document: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            raise RunError(
                f"'{run_dir}' is not a run folder: it has no {PLAN_FILE}",
                remedy="name the folder that `luma launch --run` wrote",
            ) from None
        except ValueError as error:
            raise RunError(f"{path}: not valid JSON ({error})") from None
        if not isinstance(document, dict):
            raise RunError(f"{path}: holds no object")
        version = document.pop("format", None)
        if version != PLAN_FORMAT:
            raise RunError(
                f"{path}: format {version!r}, this version of luma reads {PLAN_FORMAT}",
                remedy="start the job again in a new run folder",
            )
        return _plan_from(document, path)


def _plan_from(document: dict[str, Any], path: Path) -> RunPlan:
    try:
        optimizer = document.pop("optimizer")
        schedule = document.pop("schedule")
        optimizer["betas"] = tuple(optimizer["betas"])
        document["stored_constants"] = tuple(document.get("stored_constants", ()))
        kms = document.pop("kms", None)
        return RunPlan(
            **document,
            optimizer=OptimizerPlan(**optimizer),
            schedule=SchedulePlan(**schedule),
            kms=None if kms is None else KmsPlan(**kms),
        )
    except (KeyError, TypeError) as error:
        raise RunError(f"{path}: {error}") from None
