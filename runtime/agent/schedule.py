"""The scalars of one optimizer step: pure functions of the step, so a resume needs no state."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from runtime.coordinator.plan import RunPlan


def learning_rate(plan: RunPlan, step: int) -> float:
    """Give the learning rate of a step, from 0.

    The rate rises linearly over `warmup_steps`, reaching the peak in the last of them, then stays
    (constant) or falls on a half cosine to `min_lr_ratio` of the peak at the job's last step.
    """
    schedule, peak = plan.schedule, plan.optimizer.lr
    if step < schedule.warmup_steps:
        return peak * (step + 1) / schedule.warmup_steps
    if schedule.kind == "constant":
        return peak
    span = max(1, plan.total_steps - 1 - schedule.warmup_steps)
    progress = min(1.0, (step - schedule.warmup_steps) / span)
    low = schedule.min_lr_ratio
    return peak * (low + (1.0 - low) * 0.5 * (1.0 + math.cos(math.pi * progress)))


def step_scalars(plan: RunPlan, step: int) -> NDArray[np.float32]:
    """Give the `scalars` input of the compiled `apply`: float32 [8].

    In order: learning rate, beta1, beta2, eps, weight decay, gradient clip (0 = off), and the
    bias corrections 1 - beta^(step + 1), in double precision from the float32 betas: the program
    derives its weights 1 - beta from those, and the two must belong together.
    """
    optimizer = plan.optimizer
    beta1, beta2 = (float(np.float32(beta)) for beta in optimizer.betas)
    return np.array(
        [
            learning_rate(plan, step),
            beta1,
            beta2,
            optimizer.eps,
            optimizer.weight_decay,
            optimizer.grad_clip,
            1.0 - beta1 ** (step + 1),
            1.0 - beta2 ** (step + 1),
        ],
        np.float32,
    )
