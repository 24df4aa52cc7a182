"""`luma launch`: show the plan, ask, run the job, follow it, print its certificate.

A job whose `resources.infra` is a place of AWS goes to `account_launch`; every other one runs here,
and nothing of AWS is asked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from runtime.cli.account import StackName
from runtime.cli.account_launch import AccountOptions, is_for_account, launch_account
from runtime.cli.output import note, print_json, print_rows, say
from runtime.spec.errors import LumaError, SpecError

if TYPE_CHECKING:
    from runtime.plan import LocalPlan
    from runtime.run.certificate import Certificate
    from runtime.run.launch import LaunchResult

_INTERRUPTED = 130


def register(app: App) -> None:
    """Add the command."""
    app.command(launch)


def launch(
    job: Path | None = None,
    /,
    *,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative="")] = False,
    run: Path | None = None,
    resume: Path | None = None,
    islands: int | None = None,
    chaos: Annotated[list[str] | None, Parameter(negative="")] = None,
    reference: Annotated[bool, Parameter(negative="")] = False,
    stack: StackName = None,
    detach: Annotated[bool, Parameter(name=["--detach", "-d"], negative="")] = False,
    prepare_only: Annotated[bool, Parameter(negative="")] = False,
    max_cost: float | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run a job, on this machine or in an AWS account: plan, train through interruptions, certify.

    Ctrl-C stops a run on this machine resumably after the step in flight; a second one ends it at
    once. A run in an account goes on, and the command says how to attach again.

    For example:

        luma launch examples/tiny/job.yaml --yes --run runs/tiny --chaos kill:1@step=12

        luma launch job.yaml --stack Luma --detach

    Args:
        job: the job file
        yes: accept the plan without being asked
        run: the run folder (default runs/NAME-TIME); an older run of that name is moved aside
        resume: go on with the run in this folder instead of launching a job; with --stack, with
            the run of this name, or with the upload of this folder
        islands: islands instead of the job's
        chaos: faults to inflict, with commas between: kill:1@step=12, kill:0+2@step=5,
            kill:coordinator@step=8, kill:all@step=9, stop:1@step=4:for=6s, slow:2@step=3:x4
        reference: afterwards run the job uninterrupted on one island, and compare the hashes
        stack: the stack of an AWS account, for a job whose resources.infra is aws/REGION
            (default: Luma)
        detach: leave a run in an account as soon as it is started
        prepare_only: prepare and upload a run for an account, and start nothing
        max_cost: with --resume and --stack, a new limit of the run's cost in dollars
        json: print one JSON object at the end: {run, certificate}, and error where it failed
    """
    if stack is not None or (job is not None and is_for_account(job)):
        _refuse({"--chaos": chaos, "--reference": reference}, "a run in an account")
        options = AccountOptions(
            stack=stack,
            run=run,
            resume=resume,
            islands=islands,
            yes=yes,
            detach=detach,
            prepare_only=prepare_only,
            max_cost_usd=max_cost,
            as_json=json,
        )
        return launch_account(job, options)
    given = {"--detach": detach, "--prepare-only": prepare_only, "--max-cost": max_cost}
    _refuse(given, "a run on this machine")
    place = resume or run
    try:
        _check_arguments(job, run, resume, islands)
        if resume is None and not yes:
            _check_terminal()
        if job is not None and run is None:
            place = run = _default_place(job)
        started = time.time()
        result, interrupted = _launch(job, run, resume, islands, chaos, reference, yes)
        missed = _missed_faults(result, chaos, started)
    except LumaError as error:
        if json:
            _print_result(place, None, error.message)
        raise
    return _end(result, missed, as_json=json, interrupted=interrupted)


def _refuse(given: Mapping[str, object], what: str) -> None:
    """Refuse options that a kind of run does not have.

    Raises:
        SpecError: one was given.
    """
    wrong = [name for name, value in given.items() if value]
    if wrong:
        raise SpecError(f"{', '.join(wrong)}: {'is' if len(wrong) == 1 else 'are'} not for {what}")


def _launch(
    job: Path | None,
    run: Path | None,
    resume: Path | None,
    islands: int | None,
    chaos: list[str] | None,
    reference: bool,
    yes: bool,
) -> tuple[LaunchResult, bool]:
    """Launch or resume, and say also whether a signal stopped it."""
    from runtime.run import launch as launching
    from runtime.run.chaos import parse_faults
    from runtime.run.interrupt import StopSwitch
    from runtime.run.progress import ConsoleReporter

    options = launching.LaunchOptions(
        run=run, islands=islands, faults=parse_faults(chaos or ()), reference=reference
    )
    reporter = ConsoleReporter()
    with StopSwitch(on_first=_tell_of_stop) as stop:
        if resume is not None:
            result = launching.resume(resume, options, reporter=reporter, stop=stop)
        else:
            assert job is not None  # noqa: S101 - checked by the caller
            accept = launching.accept_any if yes else _ask
            result = launching.launch(job, options, reporter=reporter, accept=accept, stop=stop)
        return result, stop.by_signal()


def _default_place(job: Path) -> Path:
    from runtime.run.folder import default_run_path
    from runtime.spec import JobSpec

    return default_run_path(JobSpec.from_yaml(job).name)


def _missed_faults(result: LaunchResult, chaos: list[str] | None, started: float) -> list[str]:
    """Give the faults that were asked for and struck nobody."""
    from runtime.run.chaos import missed_faults, parse_faults
    from runtime.run.history import History

    faults = parse_faults(chaos or ())
    if not faults or result.certificate is None:
        return []
    events = History.read(result.folder.path).of_kind("interruption")
    return missed_faults(faults, (event for event in events if event["time"] >= started))


def _print_result(place: Path | None, certificate: Certificate | None, error: str | None) -> None:
    """Print the one JSON object of `--json`; the run is null where there is no run folder."""
    there = place is not None and (place / "run.json").is_file()
    document = {
        "run": str(place.resolve()) if place and there else None,
        "certificate": certificate,
    }
    print_json(document if error is None else {**document, "error": error})


def _end(result: LaunchResult, missed: list[str], *, as_json: bool, interrupted: bool) -> int:
    """Print what the launch came to, and what to do next."""
    from runtime.run.certificate import certificate_lines

    folder, certificate = result.folder.path, result.certificate
    error = "\n".join(missed) or None
    if result.outcome == "declined":
        error = "the plan was declined; nothing was started"
        note(error)
    if as_json:
        _print_result(folder, certificate, error)
    if result.outcome == "declined":
        return 1
    if certificate is None:
        note(f"stopped; nothing is lost. Go on with:\n  luma launch --resume {folder}")
        return _INTERRUPTED if interrupted else 1
    if not as_json:
        print_rows(certificate_lines(certificate))
    note(
        f"picture: {folder / 'loss.png'}\n"
        f"next:\n  luma serve {folder}\n  luma verify {folder / 'artifact.luma'} --leaks\n"
        f"  luma events {folder}"
    )
    for text in missed:
        note(f"luma: {text}")
    return 0 if certificate["level"] != "violated" and not missed else 1


def _check_arguments(
    job: Path | None, run: Path | None, resume: Path | None, islands: int | None
) -> None:
    if (job is None) == (resume is None):
        raise SpecError(
            "launch: expected a job file, or --resume RUN, and not both",
            remedy="`luma init` writes a job file",
        )
    if resume is not None and run is not None:
        raise SpecError("launch: --run names a new run's folder; --resume goes on with an old one")
    if islands is not None and islands < 1:
        raise SpecError(f"--islands: {islands} is too few; expected at least 1")


def _check_terminal() -> None:
    if not sys.stdin.isatty():
        raise SpecError(
            "launch: the plan must be accepted, and there is no terminal to ask on",
            remedy="add --yes to accept it beforehand",
        )


def _ask(plan: LocalPlan) -> bool:
    del plan  # it was shown by the reporter
    say("launch? [y/N] ")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _tell_of_stop() -> None:
    note("stopping after the step in flight (Ctrl-C again: at once)")
