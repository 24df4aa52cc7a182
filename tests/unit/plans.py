"""One run plan for unit tests; a test names only what it is about."""

from __future__ import annotations

import dataclasses
from typing import Any

from runtime.coordinator.plan import OptimizerPlan, RunPlan, SchedulePlan

_PLAN = RunPlan(
    run_id="r",
    total_steps=3,
    micro_shards=4,
    micro_batch=1,
    seed=7,
    islands=1,
    min_islands=1,
    threads_per_island=1,
    heartbeat_timeout_s=1.0,
    checkpoint_every=100,
    keep=2,
    target="cpu",
    artifact="artifact.luma",
    key_file=None,
    signer_file="signer.pem",
    job_digest="j",
    headroom=3,
    optimizer=OptimizerPlan(lr=1.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, grad_clip=1.0),
    schedule=SchedulePlan(kind="constant", warmup_steps=0, min_lr_ratio=1.0),
    sample_count=100,
    data_digest="d",
)


def make_plan(**changes: Any) -> RunPlan:
    """Give the plan with some fields changed."""
    return dataclasses.replace(_PLAN, **changes)
