"""Prepared runs for the benchmarks: built once as `luma launch` does, then copied by hard links."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.context import Context
from runtime.coordinator.plan import RunPlan
from runtime.run.build import Built, build
from runtime.run.files import link_tree
from runtime.run.folder import RunFolder, RunFolderBuilder
from runtime.run.progress import SilentReporter
from runtime.run.run_plan import run_plan, show_plan
from runtime.spec import JobSpec

_MODELS = Path(__file__).parent / "models.py"
_UNCHANGING = ("model", "data", "artifact.luma", "signer.pem", "constants.safetensors", "run.json")
_FIRST_CHECKPOINT = "checkpoints/step-000000"
NEVER = 1_000_000_000
"""Steps between checkpoints that are not to disturb a measurement."""

_JOB = """\
schema: luma/v1
name: {name}
model: {{source: "{models}:{builder}", dtype: fp32}}
compile: {{seal: L1, targets: [cpu]}}
train:
  steps: 1000
  micro_shards: {micro_shards}
  micro_batch: {micro_batch}
  seq_len: {seq_len}
  seed: 7
  optimizer: {{name: adamw, lr: 1.0e-3, weight_decay: 0.1, grad_clip: 1.0}}
  schedule: {{kind: constant, warmup_steps: 4, min_lr_ratio: 1.0}}
  checkpoint: {{every: 1000, keep: 2}}
data: {{source: "python://pydoc_data.topics", packing: true, max_samples: 2000}}
resources: {{accelerators: ["cpu:1"], islands: 1, max_workers: 4, threads_per_island: 1}}
recovery: {{heartbeat_timeout: 1s, max_restarts: 1}}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchJob:
    """A job to measure.

    Attributes:
        name: of its prepared run.
        builder: function of `benchmarks.models`.
        micro_shards: M.
        micro_batch: sequences of a micro-shard.
        seq_len: tokens of a sequence.
    """

    name: str
    builder: str
    micro_shards: int
    micro_batch: int
    seq_len: int

    def notes(self) -> dict[str, Any]:
        """Give the sizes for a result's notes."""
        return {
            "model": self.builder,
            "shards": f"{self.micro_shards} x {self.micro_batch}x{self.seq_len}",
        }


def prepared(context: Context, job: BenchJob) -> RunFolder:
    """Give the prepared run of a job, made on first use: artifact, data, first checkpoint, plan.

    Raises:
        LumaError: a stage failed.
    """
    target = context.work / f"job-{job.name}"
    if (target / "plan.json").exists():
        return RunFolder(target)
    context.say(f"{job.name}: capture, compile, seal, prepare the data")
    job_file = context.work / f"{job.name}.yaml"
    job_file.write_text(_JOB.format(models=_MODELS, **dataclasses.asdict(job)))
    spec = JobSpec.from_yaml(job_file)
    with RunFolderBuilder(target) as builder:
        built = build(
            spec,
            job_file,
            {},
            builder.folder,
            reporter=SilentReporter(),
        )
        _plan(spec, built).write(builder.folder.path)
        return builder.commit({"name": job.name})


def copied(template: RunFolder, target: Path, **changes: Any) -> RunFolder:
    """Make a fresh run from a prepared one.

    Args:
        template: from `prepared`.
        target: the copy's place; what is there is removed.
        changes: fields of the plan that differ.
    """
    shutil.rmtree(target, ignore_errors=True)
    folder = RunFolder(target)
    folder.islands_dir.mkdir(parents=True)
    folder.checkpoints_dir.mkdir()
    for name in (*_UNCHANGING, _FIRST_CHECKPOINT):
        link_tree(template.path / name, target / name)
    plan = dataclasses.replace(RunPlan.read(template.path), **changes)
    plan.write(target)
    return folder


def _plan(spec: JobSpec, built: Built) -> RunPlan:
    """Give the launch's own plan, without an end: a benchmark stops its run when it has enough."""
    plan = run_plan(spec, built, show_plan(spec, built))
    return dataclasses.replace(
        plan,
        total_steps=NEVER,
        checkpoint_every=NEVER,
        islands=1,
        min_islands=1,
        threads_per_island=1,
    )
