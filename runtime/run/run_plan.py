"""What a launch decides before its first process: the plan to show, and the plan of the run.

`show_plan` is for the user; `run_plan` becomes `plan.json`, which the coordinator and the islands
read; `run_record` becomes `run.json`, which `resume`, the certificate and `luma serve` read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from runtime.coordinator.plan import KmsPlan, OptimizerPlan, RunPlan, SchedulePlan, new_run_id
from runtime.plan import LocalPlan, make_local_plan, measure_machine
from runtime.run.build import Built
from runtime.run.machine import machine_description, software_versions
from runtime.spec import JobSpec, SpecError
from runtime.spec.target_name import TargetName

_HERE = "cpu"
"""The family of targets that islands on this machine run."""

_CHECKPOINT_S = 60.0
"""With `checkpoint.every: auto`, about so long between two checkpoints."""


class Decided(Protocol):
    """What a plan, of this machine or of an account, has decided for the run."""

    @property
    def steps(self) -> int:
        """Optimizer steps of the job."""
        ...

    @property
    def threads_per_island(self) -> int:
        """Threads of each island; 0 for as many as its node has cores."""
        ...

    @property
    def target(self) -> str:
        """The target that the islands run."""
        ...

    @property
    def step_seconds(self) -> float:
        """Predicted time of a step."""
        ...


def training_target(spec: JobSpec) -> str:
    """Give the target that the job's islands on this machine run: the first one for its CPU.

    Raises:
        SpecError: the job has none.
    """
    targets = spec.compile.targets
    for target in targets:
        if TargetName.parse(target).family == _HERE:
            return target
    raise SpecError(
        f"compile.targets: {list(targets)} has no target of this machine; "
        f"add '{_HERE}', or '{_HERE}xN' for islands of N host devices"
    )


def show_plan(spec: JobSpec, built: Built) -> LocalPlan:
    """Give the plan that the user accepts.

    Raises:
        SpecError: the data are too few for the job's schedule, or no target is for this machine.
    """
    train, resources = spec.train, spec.resources
    return make_local_plan(
        built.payloads[training_target(spec)],
        measure_machine(),
        islands=resources.islands,
        threads_per_island=resources.threads_per_island,
        micro_shards=train.micro_shards,
        tokens_per_step=train.samples_per_step * train.seq_len,
        steps=spec.total_steps(built.prepared["data"]["count"]),
    )


def run_plan(spec: JobSpec, built: Built, plan: Decided) -> RunPlan:
    """Give what every process of the run must agree on."""
    train, optimizer, artifact = spec.train, spec.train.optimizer, built.artifact
    return RunPlan(
        run_id=new_run_id(),
        total_steps=plan.steps,
        micro_shards=train.micro_shards,
        micro_batch=train.micro_batch,
        seed=train.seed,
        islands=spec.resources.islands,
        min_islands=spec.resources.min_workers,
        threads_per_island=plan.threads_per_island,
        heartbeat_timeout_s=spec.recovery.heartbeat_timeout_s,
        checkpoint_every=_checkpoint_every(spec, plan),
        keep=train.checkpoint.keep,
        target=plan.target,
        artifact="artifact.luma",
        signer_file="signer.pem",
        key_file=artifact["key_file"],
        kms=None if artifact["kms"] is None else KmsPlan(**artifact["kms"]),
        job_digest=spec.digest(),
        headroom=train.headroom,
        optimizer=OptimizerPlan(
            lr=optimizer.lr,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            grad_clip=optimizer.grad_clip or 0.0,
        ),
        schedule=SchedulePlan(
            kind=train.schedule.kind,
            warmup_steps=train.schedule.warmup_steps,
            min_lr_ratio=train.schedule.min_lr_ratio,
        ),
        sample_count=built.prepared["data"]["count"],
        data_digest=built.prepared["data"]["digest"],
        stored_constants=tuple(built.prepared["constants"]["stored"]),
        constants_digest=built.prepared["constants"]["digest"],
    )


def _checkpoint_every(spec: JobSpec, plan: Decided) -> int:
    every = spec.train.checkpoint.every
    if every == "auto":
        every = round(_CHECKPOINT_S / max(plan.step_seconds, 1e-3))
    return max(1, min(every, plan.steps))


def run_record(spec: JobSpec, job_file: Path, built: Built, plan: LocalPlan) -> dict[str, Any]:
    """Give what `run.json` says: nothing secret, all that certificate and resume need."""
    return {
        "name": spec.name,
        "job_file": str(job_file.resolve()),
        "model_name": spec.service.model_name or spec.name,
        "port": spec.service.port,
        "artifact": built.artifact,
        "compiled": sorted(set(built.payloads) - set(built.cached)),
        "capture": built.prepared["capture"],
        "data": built.prepared["data"],
        "initial_state_hash": built.prepared["state_hash"],
        "plan": plan.to_json(),
        "max_restarts": spec.recovery.max_restarts,
        "envs": dict(spec.envs),
        "versions": software_versions(),
        "machine": machine_description(),
    }
