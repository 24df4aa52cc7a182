"""A job becomes a prepared run folder, for upload: graph, data, initial weights, plan.

The programs are compiled by the stack's compiler after the launch; where a stack has none they are
compiled and sealed here, before it.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime.coordinator.plan import RunPlan
from runtime.run.account.stack import Stack
from runtime.run.build import Built, build
from runtime.run.files import disk_errors, write_json
from runtime.run.folder import RunFolder, RunFolderBuilder, run_lock
from runtime.run.machine import machine_description, software_versions
from runtime.run.prepare import prepare
from runtime.run.progress import Reporter
from runtime.run.run_plan import run_plan
from runtime.spec import JobSpec, SpecError
from runtime.spec.account import ARTIFACT_RECORD, RUN_NAME

__all__ = ["AccountChoice", "PreparedRun", "default_run_name", "prepare_run"]

_UNKNOWN_STEP_S: Final = 3.0
"""Where nothing predicts a step's time, `checkpoint.every: auto` takes a step for so long."""

KEY_FILE: Final = "data.key"
"""Stands in the plan for the key file of a node, which writes it from the account's parameter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountChoice:
    """What a plan has chosen, as the preparation needs it.

    Attributes:
        fleets: names of fleets in order of preference.
        slot_fleets: the fleet of each slot at the start.
        target: target of the first fleet.
        step_seconds: predicted time of a step, None where nothing predicts it.
        prices: dollars an hour of one node of each fleet, where known.
        document: the whole plan as plain values, for `run.json`.
        lines: the plan as (label, text) rows.
    """

    fleets: tuple[str, ...]
    slot_fleets: tuple[str, ...]
    target: str
    step_seconds: float | None
    prices: Mapping[str, float]
    document: Mapping[str, Any]
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRun:
    """A run that is ready for upload.

    Attributes:
        folder: its folder.
        name: its name in the account.
        spec: its job.
        choice: its plan.
        compiled: whether its artifact is in the folder.
    """

    folder: RunFolder
    name: str
    spec: JobSpec
    choice: AccountChoice
    compiled: bool


@dataclass(frozen=True, slots=True)
class _Decided:
    """What `run_plan` reads of a plan."""

    steps: int
    threads_per_island: int
    target: str
    step_seconds: float


def default_run_name(job_name: str) -> str:
    """Give `NAME-YYYYMMDD-HHMMSS` as a run's name may be: small letters, digits and dashes."""
    name = "".join(c if c.isalnum() and c.isascii() else "-" for c in job_name.lower()).strip("-")
    return f"{name[:40] or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"


def run_name_of(path: Path) -> str:
    """Give the name in the account of the run of a folder.

    Raises:
        SpecError: the folder's name cannot be one.
    """
    name = path.resolve().name
    if RUN_NAME.fullmatch(name):
        return name
    raise SpecError(
        f"--run: '{name}' cannot be a run's name in an account; expected 1 to 63 of a-z, 0-9 and "
        "'-', the first a letter or a digit"
    )


def prepare_run(
    job_file: Path,
    overrides: dict[str, Any],
    path: Path,
    stack: Stack,
    *,
    choose: Callable[[JobSpec, Built, int], AccountChoice],
    accept: Callable[[AccountChoice], bool],
    reporter: Reporter,
) -> PreparedRun | None:
    """Prepare a job into a run folder.

    Args:
        job_file: the job file.
        overrides: fields that replace the file's.
        path: the run folder to make; its name is the run's.
        stack: where it will run.
        choose: makes the plan, from the job, what was built, and the number of steps.
        accept: shown the plan; False declines it.
        reporter: told of each stage.

    Returns:
        The prepared run; None where the plan was declined, and nothing is left then.

    Raises:
        LumaError: the job is wrong, or no fleet can run it.
    """
    spec = JobSpec.from_yaml(job_file).with_overrides(overrides)
    name = run_name_of(path)
    compile_here = stack.config.compiler_queue is None
    with run_lock(path), RunFolderBuilder(path) as builder:
        built = _build(
            spec, job_file, overrides, builder.folder, compile_here=compile_here, reporter=reporter
        )
        steps = spec.total_steps(built.prepared["data"]["count"])
        choice = choose(spec, built, steps)
        reporter.rows("plan", choice.lines)
        if not accept(choice):
            return None
        _write_job(spec, job_file, overrides, builder.folder)
        _account_plan(spec, built, choice, steps).write(builder.folder.path)
        if compile_here:
            write_json(builder.folder.path / ARTIFACT_RECORD, artifact_record(built.artifact))
        _make_identity(builder.folder)
        folder = builder.commit(_record(spec, job_file, built, choice, stack))
    return PreparedRun(folder=folder, name=name, spec=spec, choice=choice, compiled=compile_here)


def _write_job(
    spec: JobSpec, job_file: Path, overrides: Mapping[str, Any], folder: RunFolder
) -> None:
    """Write the job as it is run: the compiler reads targets and shards from it."""
    with disk_errors(folder.path):
        if overrides:
            folder.job_file.write_text(spec.to_yaml())
        else:
            shutil.copyfile(job_file, folder.job_file)


def artifact_record(artifact: Mapping[str, Any]) -> dict[str, Any]:
    """Give what `artifact.json` says: nothing of this machine."""
    names = ("digest", "seal", "bytes", "targets")
    return {name: artifact[name] for name in names}


def _build(
    spec: JobSpec,
    job_file: Path,
    overrides: dict[str, Any],
    folder: RunFolder,
    *,
    compile_here: bool,
    reporter: Reporter,
) -> Built:
    if compile_here:
        return build(spec, job_file, overrides, folder, reporter=reporter)
    prepared = prepare(job_file, overrides, folder, capture_only=False, progress=reporter.stage)
    kms = None if spec.compile.kms is None else spec.compile.kms.model_dump()
    artifact = {"key_file": _key_file(spec), "kms": kms}
    return Built(prepared=prepared, payloads={}, cached=(), targets=(), artifact=artifact)


def _key_file(spec: JobSpec) -> str | None:
    """Give the file with the key that seals the run: the job's, else this machine's; None at L0."""
    if spec.compile.seal == "L0" or spec.compile.kms is not None:
        return None
    if spec.compile.key_file is not None:
        return str(spec.resolve(spec.compile.key_file))
    from runtime.artifact import load_or_create_keys

    return str(load_or_create_keys().data_key_file)


def _account_plan(spec: JobSpec, built: Built, choice: AccountChoice, steps: int) -> RunPlan:
    """Give the run's plan: threads 0 stand for all cores of a node, which fills them in."""
    decided = _Decided(
        steps=steps,
        threads_per_island=spec.resources.asked_threads or 0,
        target=choice.target,
        step_seconds=choice.step_seconds or _UNKNOWN_STEP_S,
    )
    plan = run_plan(spec, built, decided)
    kms = None if plan.kms is None else dataclasses.replace(plan.kms, instance_role=True)
    return dataclasses.replace(
        plan,
        islands=len(choice.slot_fleets),
        min_islands=min(plan.min_islands, len(choice.slot_fleets)),
        key_file=None if plan.key_file is None else KEY_FILE,
        kms=kms,
    )


def _record(
    spec: JobSpec, job_file: Path, built: Built, choice: AccountChoice, stack: Stack
) -> dict[str, Any]:
    """Give what `run.json` says."""
    artifact = artifact_record(built.artifact) if "digest" in built.artifact else {}
    return {
        "name": spec.name,
        "job_file": str(job_file.resolve()),
        "model_name": spec.service.model_name or spec.name,
        "port": spec.service.port,
        "artifact": artifact,
        "compiled": sorted(set(built.payloads) - set(built.cached)),
        "targets": list(spec.compile.targets),
        "seal": spec.compile.seal,
        "statistics": {
            "parameters": built.prepared["capture"]["parameters"],
            "micro_shards": spec.train.micro_shards,
            "micro_batch": spec.train.micro_batch,
            "seq_len": spec.train.seq_len,
            "packing": spec.data.packing,
        },
        "capture": built.prepared["capture"],
        "data": built.prepared["data"],
        "initial_state_hash": built.prepared["state_hash"],
        "plan": dict(choice.document),
        "fleets": list(choice.fleets),
        "slot_fleets": list(choice.slot_fleets),
        "prices": dict(choice.prices),
        "max_cost_usd": spec.resources.max_cost,
        "max_restarts": spec.recovery.max_restarts,
        "envs": dict(spec.envs),
        "versions": software_versions(),
        "machine": machine_description(),
        "key_file": built.artifact["key_file"],
        "account": {"stack": stack.name, "region": stack.region},
    }


def _make_identity(folder: RunFolder) -> None:
    """Make the run's own key and certificate: islands and coordinator talk TLS with it."""
    from runtime.coordinator.tls import make_identity

    make_identity(folder.path / "tls")
