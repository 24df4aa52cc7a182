"""The audit of samples: from the commit log and the sampler, not from anyone's word.

For each committed step the log says which micro-shards were summed; the sampler says which samples
those are. The audit goes through all of them and counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from runtime.agent.sampler import sample_indices
from runtime.coordinator.log import Commit
from runtime.coordinator.plan import RunPlan

_MOST_PROBLEMS = 20


@dataclass(slots=True)
class SampleAudit:
    """What the audit found.

    Attributes:
        expected: sample uses that the committed steps should have.
        seen: sample uses that they had.
        epochs: passes over the data that were begun.
        problems: what is wrong, in words; empty when every sample was used exactly as planned.
    """

    expected: int
    seen: int = 0
    epochs: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def exactly_once(self) -> bool:
        """Whether every planned use happened once, and no sample came twice in an epoch."""
        return not self.problems and self.seen == self.expected


def audit_samples(commits: Sequence[Commit], plan: RunPlan) -> SampleAudit:
    """Audit the samples of a run's committed steps.

    Args:
        commits: the log's commits, in order.
        plan: the run's plan.

    Returns:
        The audit; its problems name the steps and samples (at most 20 of them).
    """
    steps = len(commits)
    audit = SampleAudit(expected=steps * plan.micro_shards * plan.micro_batch)
    if [commit.step for commit in commits] != list(range(steps)):
        audit.problems.append("the committed steps have a gap or come twice")
    used: Counter[int] = Counter()
    for commit in commits:
        shards = Counter(shard for held in commit.shards.values() for shard in held)
        audit.problems += _shard_problems(commit.step, shards, plan.micro_shards)
        for shard, times in shards.items():
            if 0 <= shard < plan.micro_shards:
                indices = _indices(plan, commit.step, shard)
                audit.seen += times * len(indices)
                used.update(dict.fromkeys(_positions(plan, commit.step, shard, indices), times))
    per_epoch = plan.sample_count
    audit.epochs = -(-audit.expected // per_epoch) if per_epoch else 0
    audit.problems += _epoch_problems(used, audit, plan)
    del audit.problems[_MOST_PROBLEMS:]
    return audit


def _shard_problems(step: int, shards: Counter[int], micro_shards: int) -> list[str]:
    wrong = {shard: times for shard, times in shards.items() if times != 1}
    missing = [shard for shard in range(micro_shards) if shard not in shards]
    strange = [shard for shard in shards if not 0 <= shard < micro_shards]
    problems = [f"step {step}: shard {s} was summed {n} times" for s, n in wrong.items()]
    problems += [f"step {step}: shard {shard} is missing" for shard in missing]
    return problems + [f"step {step}: there is no shard {shard}" for shard in strange]


def _indices(plan: RunPlan, step: int, shard: int) -> np.ndarray:
    return sample_indices(
        seed=plan.seed,
        count=plan.sample_count,
        step=step,
        shard=shard,
        micro_shards=plan.micro_shards,
        micro_batch=plan.micro_batch,
    )


def _positions(plan: RunPlan, step: int, shard: int, indices: np.ndarray) -> list[int]:
    """Give (epoch, sample) of each use, as one number: epoch * count + sample."""
    first = (step * plan.micro_shards + shard) * plan.micro_batch
    epochs = np.arange(first, first + plan.micro_batch) // plan.sample_count
    return (epochs * plan.sample_count + indices).tolist()


def _epoch_problems(used: Counter[int], audit: SampleAudit, plan: RunPlan) -> list[str]:
    """Check that no sample came twice in an epoch, and that whole epochs lack none."""
    count = plan.sample_count
    problems = [
        f"epoch {use // count}: sample {use % count} was used {times} times"
        for use, times in used.items()
        if times > 1
    ]
    whole_epochs = audit.expected // count
    seen_of_whole = sum(1 for use in used if use < whole_epochs * count)
    if seen_of_whole < whole_epochs * count:
        lacking = whole_epochs * count - seen_of_whole
        problems.append(f"{lacking} samples of the {whole_epochs} whole epochs were never used")
    return problems
