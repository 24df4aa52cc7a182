"""A launch: prepare, plan, accept, train, certify, draw.

1. The run folder is built under a hidden name: graph, data, initial state, artifact.
2. The plan is shown and accepted; only then the folder gets its name (an older run of that name is
   moved aside) and the first process starts.
3. The supervisor sees the run to its end.
4. A run that is done gets its certificate and its picture, and, where asked for, the uninterrupted
   reference beside it.

A failure or an interrupt in the first two steps leaves nothing; later ones leave a whole run
folder that `resume` goes on from.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runtime.coordinator.fence import who_works_in
from runtime.coordinator.plan import RunPlan
from runtime.plan import LocalPlan, check_fit
from runtime.run.build import build
from runtime.run.certificate import Certificate, certify
from runtime.run.chaos import Fault, check_faults
from runtime.run.files import disk_errors
from runtime.run.folder import (
    RUN_FILE,
    RunFolder,
    RunFolderBuilder,
    default_run_path,
    run_lock,
)
from runtime.run.history import History
from runtime.run.interrupt import StopSwitch
from runtime.run.progress import Reporter, SilentReporter
from runtime.run.reference import prepare_reference, reference_hash, run_reference
from runtime.run.run_plan import run_plan, run_record, show_plan, training_target
from runtime.run.supervisor import FleetOptions, Outcome, Supervisor
from runtime.spec import JobSpec, RunError, SpecError

_ORPHAN_WAIT_S = 15.0
_RECORD_FIELDS = ("name", "artifact", "max_restarts", "envs", "versions", "machine")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOptions:
    """How a job is launched.

    Attributes:
        run: the run folder; None takes `runs/NAME-TIME`.
        islands: islands instead of the job's.
        faults: what `--chaos` inflicts.
        reference: whether the uninterrupted reference is run afterwards.
    """

    run: Path | None = None
    islands: int | None = None
    faults: tuple[Fault, ...] = ()
    reference: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchResult:
    """How a launch ended.

    Attributes:
        folder: the run.
        outcome: `done`, `stopped` (it can be resumed), or `declined` (the plan was not accepted;
            there is no run folder then).
        certificate: the certificate of a run that is done.
    """

    folder: RunFolder
    outcome: Outcome | Literal["declined"]
    certificate: Certificate | None


def accept_any(plan: LocalPlan) -> bool:
    """Accept a plan unseen, as `--yes` does."""
    del plan
    return True


def launch(
    job_file: Path,
    options: LaunchOptions,
    *,
    reporter: Reporter | None = None,
    accept: Callable[[LocalPlan], bool] = accept_any,
    stop: StopSwitch | None = None,
) -> LaunchResult:
    """Launch a job on this machine and see it to its end.

    Args:
        job_file: the job file.
        options: how.
        reporter: told of progress; None tells nobody.
        accept: shown the plan; False declines it.
        stop: asks the run to stop resumably.

    Raises:
        LumaError: the job is wrong, or the run failed.
    """
    reporter, stop = reporter or SilentReporter(), stop or StopSwitch()
    overrides = _overrides(JobSpec.from_yaml(job_file), options.islands)
    spec = JobSpec.from_yaml(job_file).with_overrides(overrides)
    _check_trainable(spec)
    target = options.run or default_run_path(spec.name)
    with run_lock(target):
        with RunFolderBuilder(target) as builder:
            built = build(
                spec,
                job_file,
                overrides,
                builder.folder,
                reporter=reporter,
            )
            plan = show_plan(spec, built)
            check_faults(options.faults, islands=spec.resources.islands, total_steps=plan.steps)
            reporter.rows("plan", plan.lines())
            check_fit(plan)
            if not accept(plan):
                return LaunchResult(folder=builder.folder, outcome="declined", certificate=None)
            _wait_for_orphans(RunFolder(target.resolve()))
            with disk_errors(builder.folder.path):
                shutil.copyfile(job_file, builder.folder.job_file)
            run_plan(spec, built, plan).write(builder.folder.path)
            folder = builder.commit(run_record(spec, job_file, built, plan))
        if builder.moved_aside is not None:
            reporter.stage(f"an older run was moved aside to {builder.moved_aside}")
        reporter.stage(f"run folder {folder.path}")
        if options.reference:
            prepare_reference(folder)
        return _train(folder, options, reporter, stop)


def resume(
    run: Path,
    options: LaunchOptions,
    *,
    reporter: Reporter | None = None,
    stop: StopSwitch | None = None,
) -> LaunchResult:
    """Go on with a run from its last durable step; a run that is done is certified again.

    Args:
        run: the run folder.
        options: how; `run` in it is not used.
        reporter: told of progress; None tells nobody.
        stop: asks the run to stop resumably.

    Raises:
        LumaError: this is no run folder, it is in use, or the run failed.
    """
    reporter, stop = reporter or SilentReporter(), stop or StopSwitch()
    folder = RunFolder.open(run)
    with run_lock(folder.path):
        _wait_for_orphans(folder)
        plan = RunPlan.read(folder.path)
        _check_record(folder)
        if options.islands is not None:
            plan = dataclasses.replace(
                plan,
                islands=options.islands,
                min_islands=min(plan.min_islands, options.islands),
            )
            plan.write(folder.path)
        check_faults(
            options.faults,
            islands=plan.islands,
            total_steps=plan.total_steps,
            first_step=_first_step(folder),
        )
        if _is_done(folder):
            reporter.stage("the run is done already; nothing is computed again")
            return _finish(folder, options, reporter, stop)
        return _train(folder, options, reporter, stop)


def _train(
    folder: RunFolder, options: LaunchOptions, reporter: Reporter, stop: StopSwitch
) -> LaunchResult:
    plan, record = RunPlan.read(folder.path), folder.record()
    supervisor = Supervisor(
        folder,
        FleetOptions(
            islands=plan.islands,
            max_restarts=record["max_restarts"],
            environment=record["envs"],
            faults=options.faults,
        ),
        on_event=reporter.event,
        stop_asked=stop.asked,
    )
    reporter.start_training(plan.total_steps)
    try:
        with stop.armed():
            outcome = supervisor.run()
    finally:
        reporter.end_training()
    if outcome == "stopped":
        return LaunchResult(folder=folder, outcome=outcome, certificate=None)
    return _finish(folder, options, reporter, stop)


def _finish(
    folder: RunFolder, options: LaunchOptions, reporter: Reporter, stop: StopSwitch
) -> LaunchResult:
    """Certify and draw; where a reference is asked for, before and after it."""
    from runtime.run.picture import draw_run

    certificate = certify(folder, reference_state_hash=reference_hash(folder))
    if options.reference and certificate["reference_state_hash"] is None:
        draw_run(folder)
        reporter.stage("reference: the same job, uninterrupted, on one island")
        reference = run_reference(folder, reporter, stop)
        if reference is not None:
            certificate = certify(folder, reference_state_hash=reference)
    draw_run(folder)
    return LaunchResult(folder=folder, outcome="done", certificate=certificate)


def _check_record(folder: RunFolder) -> None:
    """Refuse a `run.json` that was cut or edited before anything starts.

    Raises:
        RunError: a field that training or the certificate reads is missing.
    """
    record = folder.record()
    missing = [name for name in _RECORD_FIELDS if name not in record]
    if missing:
        raise RunError(
            f"{folder.path / RUN_FILE}: lacks {', '.join(missing)}",
            remedy="put the file back as the launch wrote it, or launch the job again",
        )


def _first_step(folder: RunFolder) -> int:
    """Give the step that a resumed run goes on with: that of its newest checkpoint."""
    from runtime.agent.checkpoint_manifest import checkpoint_folders

    return next((step for step, _ in checkpoint_folders(folder.checkpoints_dir)), 0)


def _is_done(folder: RunFolder) -> bool:
    if not folder.log_file.exists():
        return False
    ending = History.read(folder.path).final()
    return ending is not None and ending["kind"] == "done"


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


def _check_trainable(spec: JobSpec) -> None:
    """Refuse early what training on this machine cannot give.

    Raises:
        SpecError: the job has no CPU target, or a secret has no value.
    """
    problems = []
    if not spec.resources.is_local:
        problems.append(
            "resources.infra: this launches on this machine; a job for an account is launched by "
            "`luma launch`, or by runtime.run.account"
        )
    try:
        training_target(spec)
    except SpecError as error:
        problems.append(error.message)
    problems += [
        f"secrets: {name} is not set in this environment"
        for name in spec.secrets
        if name not in os.environ
    ]
    if problems:
        raise SpecError("\n".join(problems))


def _wait_for_orphans(folder: RunFolder) -> None:
    """Give the processes of a launcher that was killed the time to notice it and to end.

    Raises:
        RunError: a coordinator or an island still works in this folder.
    """
    deadline = time.monotonic() + _ORPHAN_WAIT_S
    places = (folder.path, folder.reference_dir)
    while who := next(filter(None, map(who_works_in, places)), None):
        if time.monotonic() > deadline:
            raise RunError(
                f"'{folder.path}' is still in use: {who} of an older launch did not end within "
                f"{_ORPHAN_WAIT_S:.0f} s",
                remedy="stop it with `luma cancel`, or end the processes that "
                f"`fuser {folder.path}/*.lock` names, then try again",
            )
        time.sleep(0.2)
