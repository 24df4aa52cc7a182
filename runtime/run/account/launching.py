"""A launch into an account: prepare here, accept the priced plan, upload, start, follow.

1. The run folder is prepared on this machine, as for a run here. Declined or interrupted, nothing is
   left.
2. It goes up, `run.json` last. A killed upload is gone on with by `luma launch --resume FOLDER`.
3. The run's items are written and the machine is started. From then on the run goes on in the
   account, whatever becomes of this process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from runtime.coordinator.plan import RunPlan
from runtime.run.account.choose import choose_fleets
from runtime.run.account.prepare import AccountChoice, default_run_name, prepare_run, run_name_of
from runtime.run.account.stack import Stack
from runtime.run.account.start import start_again, start_run, write_items
from runtime.run.account.upload import upload_run
from runtime.run.folder import RUN_FILE, RunFolder
from runtime.run.progress import Reporter
from runtime.spec import JobSpec, SpecError
from runtime.spec.account import MAX_SLOT

__all__ = [
    "AccountLaunch",
    "Launched",
    "default_run_folder",
    "launch_in_account",
    "resume_in_account",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountLaunch:
    """How a job is launched into an account.

    Attributes:
        run: the run folder to prepare, whose name is the run's.
        islands: islands instead of the job's.
        start: whether the machine is started; else the run is only prepared and uploaded.
    """

    run: Path
    islands: int | None = None
    start: bool = True


@dataclass(frozen=True, slots=True)
class Launched:
    """A run that was started, or is ready to be.

    Attributes:
        run: its name.
        execution: the machine's execution; None where it was not started.
    """

    run: str
    execution: str | None


def default_run_folder(job_file: Path) -> Path:
    """Give `runs/NAME-TIME` below the working folder.

    Raises:
        SpecError: the job file is wrong.
    """
    return Path.cwd() / "runs" / default_run_name(JobSpec.from_yaml(job_file).name)


def launch_in_account(
    job_file: Path,
    options: AccountLaunch,
    stack: Stack,
    *,
    reporter: Reporter,
    accept: Callable[[AccountChoice], bool],
) -> Launched | None:
    """Launch a job into an account.

    Args:
        job_file: the job file.
        options: how.
        stack: where.
        reporter: told of progress.
        accept: shown the plan; False declines it.

    Returns:
        The run; None where the plan was declined, and nothing is left then.

    Raises:
        LumaError: the job is wrong, no fleet can run it, or AWS refuses.
    """
    overrides = _overrides(JobSpec.from_yaml(job_file), options.islands)
    spec = JobSpec.from_yaml(job_file).with_overrides(overrides)
    _check_launchable(spec)
    prepared = prepare_run(
        job_file,
        overrides,
        options.run,
        stack,
        choose=partial(choose_fleets, stack),
        accept=accept,
        reporter=reporter,
    )
    if prepared is None:
        return None
    return _send(prepared.folder, prepared.name, stack, reporter=reporter, start=options.start)


def resume_in_account(
    place: str, stack: Stack, *, reporter: Reporter, max_cost_usd: float | None = None
) -> Launched:
    """Go on with a run: finish its upload, or start the machine again.

    Args:
        place: a prepared run folder on this machine, or the name of a run in the account.
        stack: where.
        reporter: told of progress.
        max_cost_usd: a new limit of the run's cost; None keeps the old one.

    Raises:
        LumaError: there is no such run, it is running, it is done, or AWS refuses.
    """
    path = Path(place)
    if (path / RUN_FILE).is_file():
        folder = RunFolder.open(path)
        return _send(folder, run_name_of(path), stack, reporter=reporter, start=True)
    return Launched(place, start_again(stack, place, max_cost_usd=max_cost_usd))


def _send(
    folder: RunFolder, run: str, stack: Stack, *, reporter: Reporter, start: bool
) -> Launched:
    """Upload a prepared run, write its items, and start it."""
    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 if total == 0 else done * 100 // total
        if percent // 10 != shown:
            shown = percent // 10
            reporter.stage(f"upload: {percent} % of {total / 1e6:.1f} MB")

    sent = upload_run(folder, run, stack, progress=progress)
    if sent.bytes_there:
        reporter.stage(f"upload: {sent.bytes_there / 1e6:.1f} MB were there already")
    record, plan = folder.record(), RunPlan.read(folder.path)
    key_file = None if record["key_file"] is None else Path(record["key_file"])
    if not start:
        write_items(stack, run, record, total_steps=plan.total_steps, key_file=key_file)
        return Launched(run, None)
    execution = start_run(stack, run, record, total_steps=plan.total_steps, key_file=key_file)
    return Launched(run, execution)


def _overrides(spec: JobSpec, islands: int | None) -> dict[str, Any]:
    """Give the fields that `--islands` replaces; the bounds of the fleet follow."""
    if islands is None:
        return {}
    resources = spec.resources
    return {
        "resources.islands": islands,
        "resources.min_workers": min(resources.min_workers, islands),
        "resources.max_workers": max(resources.max_workers, islands),
    }


def _check_launchable(spec: JobSpec) -> None:
    """Refuse early what the preparation or the machine would refuse late.

    Secrets are for the preparation alone, which fetches model and data; no node is given any.

    Raises:
        SpecError: a secret has no value here, or the job asks for more islands than a run may have.
    """
    problems = [
        f"secrets: {name} is not set in this environment"
        for name in spec.secrets
        if name not in os.environ
    ]
    if spec.resources.islands > MAX_SLOT + 1:
        problems.append(
            f"resources.islands: {spec.resources.islands} is too many for a run in an account; "
            f"expected at most {MAX_SLOT + 1}"
        )
    if problems:
        raise SpecError("\n".join(problems))
