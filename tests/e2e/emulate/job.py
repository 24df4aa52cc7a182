"""The tiny example as a job for the account, and the same job for this machine."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from tests.emulator.node import ROOT

EXAMPLE = ROOT / "examples" / "tiny"
ISLANDS = 3


@dataclass(frozen=True)
class JobFiles:
    """Two jobs that must give the same bits.

    Attributes:
        account: trains in the account, on three islands.
        local: trains on this machine, on one, uninterrupted.
        steps: how many steps both take.
    """

    account: Path
    local: Path
    steps: int


def write_jobs(folder: Path, *, region: str, steps: int = 96) -> JobFiles:
    """Write both job files beside a copy of the example's model.

    `min_workers` is the number of islands: after an interruption the run waits for the replacement,
    so that it has joined before the run can end. There are many more steps than can pass between a
    commit that the story sees and the end of the instance that it then interrupts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(EXAMPLE / "model.py", folder)
    account = _job(steps)
    account["resources"] |= {
        "infra": f"aws/{region}",
        "islands": ISLANDS,
        "min_workers": ISLANDS,
        "max_workers": ISLANDS,
    }
    local = _job(steps)
    local["resources"] |= {"infra": "local", "islands": 1, "min_workers": 1, "max_workers": 1}
    for name, job in (("account", account), ("local", local)):
        with (folder / f"{name}.yaml").open("w") as file:
            YAML().dump(job, file)
    return JobFiles(folder / "account.yaml", folder / "local.yaml", steps)


def _job(steps: int) -> dict:
    job = YAML(typ="safe").load(EXAMPLE / "job.yaml")
    job["train"] |= {
        "steps": steps,
        "micro_shards": 6,
        "micro_batch": 1,
        "seq_len": 64,
        "checkpoint": {"every": 24, "keep": 2},
    }
    return job
