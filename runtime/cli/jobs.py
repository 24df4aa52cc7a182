"""`luma init` and `luma check`: write a job file, and judge one without running it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from runtime.cli.account import StackName, check_account_command
from runtime.cli.output import JsonFlag, note, print_json, print_rows, print_table, write
from runtime.spec.errors import LumaError, SpecError
from runtime.spec.target_name import TargetName

if TYPE_CHECKING:
    from runtime.artifact import TargetPayload
    from runtime.run.folder import RunFolder
    from runtime.run.progress import Reporter
    from runtime.spec import JobSpec


def register(app: App) -> None:
    """Add the commands."""
    app.command(init)
    app.command(check)


def init(
    path: Path = Path("job.yaml"),
    /,
    *,
    name: str = "my-job",
    stdout: Annotated[bool, Parameter(negative="")] = False,
    json: JsonFlag = False,
) -> int:
    """Write a commented job file. An existing file is left as it is.

    For example:

        luma init job.yaml --name my-job

    Args:
        path: the file to make
        name: the job's name
        stdout: print it instead
        json: print JSON: the file's path and the job's name, or with --stdout the text
    """
    from runtime.spec.template import commented_job_yaml

    text = commented_job_yaml(name)
    if stdout:
        if json:
            print_json({"name": name, "text": text})
        else:
            write(text.removesuffix("\n"))
        return 0
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SpecError(
            f"'{path}' exists; it is left as it is", remedy="name another file"
        ) from None
    except OSError as error:
        raise SpecError(f"'{path}' cannot be written: {error.strerror}") from None
    if json:
        print_json({"path": str(path), "name": name})
    note(f"wrote {path}; edit it, then:\n  luma check {path}\n  luma launch {path}")
    return 0


def check(
    job: Path | None = None,
    /,
    *,
    target: Annotated[list[str] | None, Parameter(negative="")] = None,
    account: Annotated[bool, Parameter(negative="")] = False,
    stack: StackName = None,
    json: JsonFlag = False,
) -> int:
    """Judge a job without running it, or with --account what a launch into an account needs.

    A job: spec, capture, ops of each target, compile, fit. An account: credentials, bootstrap, the
    stack's parts, the quotas of its fleets.

    The ops are judged without a target's compiler: each one that the target cannot compile is
    named with the model's modules that use it, and each one that is rewritten for the target with
    its decomposition. Then the job is compiled for those targets whose compilers are installed.

    For example:

        luma check job.yaml --target trn2

        luma check --account --stack Luma

    Args:
        job: the job file
        target: targets instead of the job's, with commas between; `all` for every one
        account: judge the AWS account of the environment's credentials
        stack: the account's stack (default: Luma)
        json: print JSON: {ok, checks, unsupported: [{target, op, ...}], decomposed: [...]}
    """
    if account or stack is not None:
        if job is not None or target is not None:
            raise SpecError("--account: judges an account, and no job; give one of both")
        return check_account_command(stack, as_json=json)
    if job is None:
        raise SpecError(
            "check: expected a job file, or --account", remedy="`luma init` writes a job file"
        )
    found = _Found()
    error = _judge(job, target, found)
    if json:
        print_json({"job": str(job), "ok": error is None, "checks": found.checks, **found.ops})
    else:
        found.show()
    return 0 if error is None else error.exit_code


@dataclass(slots=True)
class _Found:
    """What the checks found: one row a check, and the pre-flight's lists."""

    checks: list[dict[str, Any]] = field(default_factory=list)
    ops: dict[str, Any] = field(default_factory=lambda: {"unsupported": [], "decomposed": []})

    def passed(self, check: str, detail: str) -> None:
        """Note a check that holds."""
        self.checks.append({"check": check, "ok": True, "detail": detail})

    def failed(self, check: str, error: LumaError) -> LumaError:
        """Note a check that does not hold."""
        self.checks.append({"check": check, "ok": False, "detail": error.diagnostics()})
        return error

    def show(self) -> None:
        """Print the checks, then the ops that are rewritten."""
        print_rows(
            (r["check"], f"{'ok' if r['ok'] else 'FAILED'}: {r['detail']}") for r in self.checks
        )
        if self.ops["decomposed"]:
            rows = [
                (i["target"], i["op"], str(i["nodes"]), i["by"]) for i in self.ops["decomposed"]
            ]
            print_table(("TARGET", "OP", "NODES", "REWRITTEN BY"), rows)


def _judge(job: Path, targets: list[str] | None, found: _Found) -> LumaError | None:
    """Go through the checks in order; the first that fails ends it."""
    from runtime.cli.targets import target_overrides
    from runtime.run.folder import RunFolder
    from runtime.run.preflight import check_supported, preflight_targets
    from runtime.run.prepare import prepare
    from runtime.run.progress import ConsoleReporter
    from runtime.run.target_report import check_fits, fits_of, fits_text
    from runtime.spec import JobSpec

    reporter = ConsoleReporter()
    stage = "spec"
    try:
        overrides = target_overrides(targets)
        spec = JobSpec.from_yaml(job).with_overrides(overrides)
        found.passed(stage, f"job '{spec.name}'")
        with tempfile.TemporaryDirectory(prefix="luma-check-") as temporary:
            folder = RunFolder(Path(temporary))
            stage = "capture"
            report = prepare(job, overrides, folder, capture_only=True, progress=reporter.stage)
            found.passed(stage, report["capture"]["text"])
            stage = "ops"
            found.ops = preflight_targets(spec, spec.compile.targets, folder, reporter.stage)
            check_supported(found.ops)
            found.passed(stage, _summary(found.ops, spec.compile.targets))
            stage = "compile"
            payloads = _compile(spec, folder, reporter, found)
        stage = "fit"
        for name, payload in payloads.items():
            if TargetName.parse(name).family == "cpu" and spec.resources.is_local:
                found.passed(stage, _fit(spec, payload))
            else:
                fits = fits_of(payload, spec)
                check_fits(fits)
                found.passed(stage, fits_text(fits))
    except LumaError as error:
        return found.failed(stage, error)
    return None


def _summary(ops: dict[str, Any], targets: Sequence[str]) -> str:
    """Say how many ops are rewritten, and what is assumed of a compiler."""
    text = f"every op has a form on {', '.join(targets)}"
    if ops["decomposed"]:
        text += f"; {len({i['op'] for i in ops['decomposed']})} ops are rewritten"
    for item in ops["assumed"]:
        text += (
            f"; {item['target']}: no document lists {', '.join(item['operators'])}, which its "
            "compiler is assumed to take"
        )
    return text


def _compile(
    spec: JobSpec, folder: RunFolder, reporter: Reporter, found: _Found
) -> dict[str, TargetPayload]:
    """Compile for the targets whose compilers are installed."""
    from runtime.compiler.targets import back_end, find_target
    from runtime.run.build import compile_targets

    lacking = {}
    for name in spec.compile.targets:
        target = find_target(name)
        lacking[name] = back_end(target).missing(target)
    here = [name for name, missing in lacking.items() if missing is None]
    payloads: dict[str, TargetPayload] = {}
    if here:
        chosen = spec.with_overrides({"compile.targets": here})
        payloads, _ = compile_targets(chosen, folder, reporter)
        found.passed("compile", f"compiled for {', '.join(payloads)}")
    for name, missing in lacking.items():
        if missing is not None:
            detail = f"{name}: not compiled, its compiler '{missing.package}' is not installed here"
            found.passed("compile", detail)
    return payloads


def _fit(spec: JobSpec, payload: TargetPayload) -> str:
    """Say what a run takes of this machine's memory.

    Raises:
        CapacityError: more than it has.
    """
    from runtime.plan import check_fit, make_local_plan, measure_machine

    plan = make_local_plan(
        payload,
        measure_machine(),
        islands=spec.resources.islands,
        threads_per_island=spec.resources.threads_per_island,
        micro_shards=spec.train.micro_shards,
        tokens_per_step=spec.train.samples_per_step * spec.train.seq_len,
        steps=spec.train.steps or 1,
    )
    check_fit(plan)
    return dict(plan.lines())["memory"]
