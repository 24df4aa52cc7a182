"""`luma init` and `luma check`: write a job file, and judge one without running it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from runtime.cli.output import JsonFlag, note, print_json, print_rows, write
from runtime.spec.errors import LumaError, SpecError


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
    job: Path,
    /,
    *,
    target: Annotated[list[str] | None, Parameter(negative="")] = None,
    json: JsonFlag = False,
) -> int:
    """Judge a job without running it: spec, capture, ops of each target, fit on this machine.

    For example:

        luma check job.yaml --target cpu

    Args:
        job: the job file
        target: targets instead of the job's
        json: print JSON
    """
    results: list[dict[str, Any]] = []
    error = _judge(job, target, results)
    if json:
        print_json({"job": str(job), "ok": error is None, "checks": results})
    else:
        print_rows((r["check"], f"{'ok' if r['ok'] else 'FAILED'}: {r['detail']}") for r in results)
    return 0 if error is None else error.exit_code


def _judge(job: Path, targets: list[str] | None, results: list[dict[str, Any]]) -> LumaError | None:
    """Go through the checks in order; the first that fails ends it."""
    from runtime.plan import check_fit, make_local_plan, measure_machine
    from runtime.run.build import compile_targets
    from runtime.run.folder import RunFolder
    from runtime.run.prepare import prepare
    from runtime.run.progress import ConsoleReporter
    from runtime.spec import JobSpec

    reporter = ConsoleReporter()
    stage = "spec"
    try:
        spec = JobSpec.from_yaml(job)
        overrides = {} if targets is None else {"compile.targets": targets}
        spec = spec.with_overrides(overrides)
        _pass(results, stage, f"job '{spec.name}'")
        with tempfile.TemporaryDirectory(prefix="luma-check-") as temporary:
            folder = RunFolder(Path(temporary))
            stage = "capture"
            report = prepare(job, overrides, folder, capture_only=True, progress=reporter.stage)[
                "capture"
            ]
            _pass(results, stage, report["text"])
            stage = "ops"
            payloads, _ = compile_targets(spec, folder, reporter)
            _pass(results, stage, f"every op lowers and compiles for {', '.join(payloads)}")
        stage = "fit"
        if "cpu" in payloads:
            plan = make_local_plan(
                payloads["cpu"],
                measure_machine(),
                islands=spec.resources.islands,
                threads_per_island=spec.resources.threads_per_island,
                micro_shards=spec.train.micro_shards,
                tokens_per_step=spec.train.samples_per_step * spec.train.seq_len,
                steps=spec.train.steps or 1,
            )
            check_fit(plan)
            _pass(results, stage, dict(plan.lines())["memory"])
    except LumaError as error:
        results.append({"check": stage, "ok": False, "detail": error.diagnostics()})
        return error
    return None


def _pass(results: list[dict[str, Any]], check: str, detail: str) -> None:
    results.append({"check": check, "ok": True, "detail": detail})
