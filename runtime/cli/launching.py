"""`luma launch`: show the plan, ask, run the job, follow it, print its certificate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from runtime.cli.output import note, print_json, print_rows
from runtime.spec.errors import SpecError

if TYPE_CHECKING:
    from runtime.plan import LocalPlan
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
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run a job on this machine: plan, train through interruptions, certify.

    Ctrl-C stops a run resumably after the step in flight; a second one ends it at once.

    For example:

        luma launch examples/tiny/job.yaml --yes --run runs/tiny --chaos kill:1@step=12

    Args:
        job: the job file
        yes: accept the plan without being asked
        run: the run folder (default runs/NAME-TIME); an older run of that name is moved aside
        resume: go on with the run in this folder instead of launching a job
        islands: islands instead of the job's
        chaos: faults to inflict, with commas between: kill:1@step=12, kill:0+2@step=5,
            kill:coordinator@step=8, kill:all@step=9, stop:1@step=4:for=6s, slow:2@step=3:x4
        reference: afterwards run the job uninterrupted on one island, and compare the hashes
        json: print one JSON object at the end: {run, certificate}
    """
    from runtime.run import launch as launching
    from runtime.run.chaos import parse_faults
    from runtime.run.interrupt import StopSwitch
    from runtime.run.progress import ConsoleReporter

    _check_arguments(job, run, resume, islands)
    options = launching.LaunchOptions(
        run=run, islands=islands, faults=parse_faults(chaos or ()), reference=reference
    )
    reporter = ConsoleReporter()
    if resume is None and not yes:
        _check_terminal()
    with StopSwitch(on_first=_tell_of_stop) as stop:
        if resume is not None:
            result = launching.resume(resume, options, reporter=reporter, stop=stop)
        else:
            assert job is not None  # noqa: S101 - checked above
            accept = launching.accept_any if yes else _ask
            result = launching.launch(job, options, reporter=reporter, accept=accept, stop=stop)
        interrupted = stop.by_signal()
    return _end(result, as_json=json, interrupted=interrupted)


def _end(result: LaunchResult, *, as_json: bool, interrupted: bool) -> int:
    """Print what the launch came to, and what to do next."""
    from runtime.run.certificate import certificate_lines

    folder, certificate = result.folder.path, result.certificate
    if result.outcome == "declined":
        note("the plan was declined; nothing was started")
        return 1
    if as_json:
        print_json({"run": str(folder), "certificate": certificate})
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
    return 0 if certificate["level"] != "violated" else 1


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
    sys.stderr.write("launch? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _tell_of_stop() -> None:
    note("stopping after the step in flight (Ctrl-C again: at once)")
