"""The same job in plain torch: a reference that shares nothing with the compiled programs.

Only the choice of samples and the keys of the draws come from the runtime, since they are the job's
definition; model, loss, optimizer, schedule and clipping are torch's own or written here.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from runtime.agent.sampler import sample_indices, shard_key
from runtime.agent.samples import SampleFile
from runtime.kernels.dropout.reference import keep_mask
from runtime.spec import JobSpec


@dataclass(frozen=True)
class EagerRun:
    """What an eager loop gave: mean loss and gradient norm of each step, and the model after it."""

    losses: list[float]
    norms: list[float]
    tokens: list[int]
    model: nn.Module


def load_module(path: Path) -> ModuleType:
    """Import a Python file of a job."""
    spec = importlib.util.spec_from_file_location(f"job_model_{abs(hash(path))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def eager_run(model: nn.Module, spec: JobSpec, data: Path, *, steps: int) -> EagerRun:
    """Train a model as the job says, in a plain loop of torch.

    Args:
        model: with the job's initial weights; it is trained in place.
        spec: the job.
        data: the folder of prepared samples.
        steps: how many of the job's steps to make.
    """
    train, samples = spec.train, SampleFile.open(data)
    optimizer = make_optimizer(model, spec)
    rate = schedule(spec, spec.total_steps(samples.count))
    losses, norms, counts = [], [], []
    model.train()
    for step in range(steps):
        batches = global_batch(spec, samples, step)
        tokens = sum(int((batch["labels"] != -100).sum()) for batch in batches)
        optimizer.zero_grad()
        total = 0.0
        for shard, batch in enumerate(batches):
            with keyed_draws(train.seed, step, shard):
                loss = shard_loss(model, batch, packed=spec.data.packing) / tokens
            loss.backward()
            total += float(loss.detach().double())
        trained = [p for p in model.parameters() if p.requires_grad]
        clip = train.optimizer.grad_clip or math.inf
        norms.append(float(nn.utils.clip_grad_norm_(trained, clip)))
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        losses.append(total)
        counts.append(tokens)
    return EagerRun(losses, norms, counts, model)


def make_optimizer(model: nn.Module, spec: JobSpec) -> torch.optim.AdamW:
    """Give torch's AdamW with decay on tensors of two or more dimensions only."""
    options = spec.train.optimizer
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, eps=options.eps)


def schedule(spec: JobSpec, total_steps: int) -> Callable[[int], float]:
    """Give the learning rate over steps: linear warm-up, then half a cosine or a constant."""
    options, peak = spec.train.schedule, spec.train.optimizer.lr
    warmup = options.warmup_steps

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        if options.kind == "constant":
            return peak
        done = (step - warmup) / max(1, total_steps - 1 - warmup)
        lowest = peak * options.min_lr_ratio
        return lowest + (peak - lowest) * (1 + math.cos(math.pi * done)) / 2

    return rate


def global_batch(spec: JobSpec, samples: SampleFile, step: int) -> list[dict[str, Tensor]]:
    """Give the micro-batches of one step as int64 tensors."""
    train = spec.train
    batches = []
    for shard in range(train.micro_shards):
        rows = sample_indices(
            seed=train.seed,
            count=samples.count,
            step=step,
            shard=shard,
            micro_shards=train.micro_shards,
            micro_batch=train.micro_batch,
        )
        batch = samples.batch(rows)
        batches.append({key: torch.from_numpy(v.astype(np.int64)) for key, v in batch.items()})
    return batches


def shard_loss(model: nn.Module, batch: dict[str, Tensor], *, packed: bool) -> Tensor:
    """Give the sum of cross-entropies of a micro-batch; packed documents are run one by one."""
    if not packed:
        return _loss(model, batch["input_ids"], batch["labels"])
    losses = []
    for row, segments in enumerate(batch["segment_ids"]):
        for document in range(1, int(segments.max()) + 1):
            inside = segments == document
            ids, labels = batch["input_ids"][row][inside], batch["labels"][row][inside]
            losses.append(_loss(model, ids[None], labels[None]))
    return torch.stack(losses).sum()


def mean_loss(model: nn.Module, spec: JobSpec, data: Path, step: int) -> float:
    """Give the mean loss of a step's global batch, without dropout."""
    model.eval()
    batches = global_batch(spec, SampleFile.open(data), step)
    tokens = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    with torch.no_grad():
        losses = [float(shard_loss(model, batch, packed=spec.data.packing)) for batch in batches]
    return math.fsum(losses) / tokens


def _loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    logits = model(input_ids=ids, use_cache=False).logits
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100, reduction="sum"
    )


@contextmanager
def keyed_draws(seed: int, step: int, shard: int) -> Iterator[None]:
    """Replace torch's dropout by the documented draws of one step and micro-shard."""
    words = tuple(int(word) for word in shard_key(seed, step, shard).astype(np.uint32))
    calls = 0

    def dropout(
        input: Tensor,  # noqa: A002 - torch's own name
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        nonlocal calls
        if not training or p == 0:
            return input
        mask = keep_mask(input.numel(), p, (words[0], words[1]), calls)
        calls += 1
        return input * torch.from_numpy(mask).reshape(input.shape) / (1 - p)

    original = nn.functional.dropout
    nn.functional.dropout = dropout
    try:
        yield
    finally:
        nn.functional.dropout = original
