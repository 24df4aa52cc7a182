"""`luma launch` into an AWS account: show the priced plan, ask, upload, start, attach."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.cli.output import note, print_json, print_rows, say
from runtime.spec.account import CERTIFICATE_OBJECT, DEFAULT_STACK, run_object
from runtime.spec.errors import LumaError, SpecError

if TYPE_CHECKING:
    from runtime.run.account.launching import Launched
    from runtime.run.account.prepare import AccountChoice
    from runtime.run.account.stack import Stack
    from runtime.run.progress import ConsoleReporter

_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountOptions:
    """The options of `luma launch` for a run in an account.

    Attributes:
        stack: the stack's name; None for the default.
        run: the run folder to prepare; its name is the run's.
        resume: go on with this run, or with the upload of this folder.
        islands: islands instead of the job's.
        yes: whether the plan is accepted unseen.
        detach: whether to leave as soon as the run is started.
        prepare_only: whether nothing is started.
        max_cost_usd: a new limit for a resumed run.
        as_json: whether to print JSON at the end.
    """

    stack: str | None
    run: Path | None
    resume: Path | None
    islands: int | None
    yes: bool
    detach: bool
    prepare_only: bool
    max_cost_usd: float | None
    as_json: bool


def is_for_account(job: Path) -> bool:
    """Say whether a job wants to run in an AWS account; a wrong file is left to whoever launches."""
    from runtime.spec import JobSpec

    try:
        return not JobSpec.from_yaml(job).resources.is_local
    except SpecError:
        return False


def launch_account(job: Path | None, options: AccountOptions) -> int:
    """Launch or resume a run in an account, and follow it; give the exit code.

    Raises:
        LumaError: the job or an option is wrong, or AWS refuses.
    """
    from runtime.run.account.stack import open_stack
    from runtime.run.progress import ConsoleReporter

    _check_options(job, options)
    region = None if job is None else region_of(job)
    stack, reporter = open_stack(options.stack or DEFAULT_STACK, region=region), ConsoleReporter()
    try:
        launched = _start(job, options, stack, reporter)
        if launched is None:
            note("the plan was declined; nothing was started")
            if options.as_json:
                print_json({"run": None, "error": "the plan was declined; nothing was started"})
            return 1
        if options.prepare_only or options.detach:
            return _leave(launched, options, stack)
        return _attach(launched, options, stack, reporter)
    except LumaError as error:
        if options.as_json:
            print_json({"run": None, "error": error.message})
        raise


def _check_options(job: Path | None, options: AccountOptions) -> None:
    from runtime.spec import JobSpec

    if (job is None) == (options.resume is None):
        raise SpecError(
            "launch: expected a job file, or --resume RUN, and not both",
            remedy="`luma init` writes a job file",
        )
    if job is not None and JobSpec.from_yaml(job).resources.is_local:
        raise SpecError(
            f"--stack: '{job}' runs on this machine (resources.infra: local)",
            remedy="set resources.infra to a place such as aws/us-east-1, or leave --stack out",
        )
    if options.resume is not None and (options.islands is not None or options.prepare_only):
        raise SpecError("--islands, --prepare-only: are for a new run, not for --resume")
    if options.max_cost_usd is not None and (options.resume is None or options.max_cost_usd <= 0):
        raise SpecError(
            f"--max-cost: {options.max_cost_usd}: a limit above 0 for --resume",
            remedy="a new run has its limit in the job: resources.max_cost",
        )
    if options.islands is not None and options.islands < 1:
        raise SpecError(f"--islands: {options.islands} is too few; expected at least 1")
    if job is not None and not options.yes and not sys.stdin.isatty():
        raise SpecError(
            "launch: the plan must be accepted, and there is no terminal to ask on",
            remedy="add --yes to accept it beforehand",
        )


def region_of(job: Path) -> str | None:
    """Give the region that a job names; None where it leaves the choice to the environment.

    Raises:
        SpecError: the environment's region is none of the job's.
    """
    from runtime.spec import JobSpec

    regions = [
        place.removeprefix("aws/")
        for place in JobSpec.from_yaml(job).resources.places
        if place.startswith("aws/")
    ]
    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if named and any(fnmatch(named, region) for region in regions):
        return named
    exact = [region for region in regions if "*" not in region]
    if exact:
        return exact[0]
    if named:
        raise SpecError(
            f"resources.infra: {', '.join(regions)} does not include {named}, the region of this "
            "environment",
            remedy="set AWS_REGION to a region of the job, or name it in the job",
        )
    return None


def _start(
    job: Path | None, options: AccountOptions, stack: Stack, reporter: ConsoleReporter
) -> Launched | None:
    """Launch or resume; say how to go on where that ends after the preparation."""
    from runtime.run.account.launching import default_run_folder, resume_in_account

    if job is None:
        place = str(options.resume)
        return resume_in_account(place, stack, reporter=reporter, max_cost_usd=options.max_cost_usd)
    folder = options.run or default_run_folder(job)
    before = (folder / "run.json").is_file()
    try:
        return _launch(job, folder, options, stack, reporter)
    except (LumaError, KeyboardInterrupt):
        if not before and (folder / "run.json").is_file():
            note(
                "the run is prepared, and what was sent stays there; go on with:\n"
                f"  luma launch --resume {folder} {stack.options}"
            )
        raise


def _launch(
    job: Path, folder: Path, options: AccountOptions, stack: Stack, reporter: ConsoleReporter
) -> Launched | None:
    from runtime.run.account.launching import AccountLaunch, launch_in_account

    return launch_in_account(
        job,
        AccountLaunch(run=folder, islands=options.islands, start=not options.prepare_only),
        stack,
        reporter=reporter,
        accept=_accept_any if options.yes else _ask,
    )


def _accept_any(choice: AccountChoice) -> bool:
    del choice
    return True


def _ask(choice: AccountChoice) -> bool:
    del choice  # it was shown by the reporter
    say("launch? [y/N] ")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _leave(launched: Launched, options: AccountOptions, stack: Stack) -> int:
    """Say how to go on with a run that nobody follows."""
    if options.as_json:
        print_json({"run": launched.run, "execution": launched.execution})
    if launched.execution is None:
        note(
            f"run '{launched.run}' is prepared; start the machine {stack.config.jobs_machine} with "
            f'{{"run": "{launched.run}"}}, or:\n'
            f"  luma launch --resume {launched.run} {stack.options}"
        )
    else:
        _tell_of_attaching(launched.run, stack)
    return 0


def _tell_of_attaching(run: str, stack: Stack) -> None:
    note(
        f"run '{run}' goes on in the account; attach again with:\n"
        f"  luma events {run} {stack.options} --follow\n"
        f"stop it resumably with:\n  luma cancel {run} {stack.options}"
    )


def _attach(
    launched: Launched, options: AccountOptions, stack: Stack, reporter: ConsoleReporter
) -> int:
    """Follow a run to its end; Ctrl-C leaves it alone."""
    from runtime.run.account.follow import follow_run, read_item

    reporter.stage(f"run '{launched.run}' in stack '{stack.name}', {stack.region}")
    total = int(read_item(stack, launched.run)["total_steps"])
    reporter.start_training(total)
    try:
        outcome = follow_run(
            stack,
            launched.run,
            execution=launched.execution,
            on_event=reporter.event,
            on_state=lambda state: reporter.stage(f"state: {state}"),
            from_end=options.resume is not None,
        )
    except KeyboardInterrupt:
        reporter.end_training()
        _tell_of_attaching(launched.run, stack)
        return _INTERRUPTED
    reporter.end_training()
    return _end(launched.run, outcome.state, outcome.item, options, stack)


def _end(run: str, state: str, item: dict[str, Any], options: AccountOptions, stack: Stack) -> int:
    """Print what a run came to, and what to do next."""
    import json

    from runtime.run.certificate import certificate_lines

    data = stack.bucket.read(run_object(run, CERTIFICATE_OBJECT)) if state == "done" else None
    certificate = None if data is None else json.loads(data)
    reason = str(item.get("reason", ""))
    if options.as_json:
        document = {"run": run, "state": state, "certificate": certificate}
        print_json(document if state == "done" else {**document, "error": reason or state})
    elif certificate is not None:
        print_rows(certificate_lines(certificate))
    if state == "done":
        bucket = stack.bucket.name
        note(
            f"the model: s3://{bucket}/{run_object(run, 'export/')}\nnext:\n"
            f"  luma cost {run} {stack.options}\n  luma status {stack.options}"
        )
        return 0 if certificate is None or certificate["level"] != "violated" else 1
    note(
        f"run '{run}' is {state}{': ' + reason if reason else ''}; go on with:\n"
        f"  luma launch --resume {run} {stack.options}"
    )
    return 1
