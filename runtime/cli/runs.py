"""`luma status`, `logs`, `events`, `cancel`: look at a run, and stop it resumably.

With `--stack` each is about a run in an AWS account, and without it about one on this machine:
nothing of AWS is asked then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from runtime.cli import account
from runtime.cli.account import StackName
from runtime.cli.output import (
    JsonFlag,
    RunPath,
    note,
    print_json,
    print_json_line,
    print_rows,
    print_table,
    write,
)
from runtime.spec.errors import SpecError

Follow = Annotated[
    bool, Parameter(name=["--follow", "-f"], negative="", help="go on until the run ends")
]


def register(app: App) -> None:
    """Add the commands."""
    for command in (status, logs, events, cancel):
        app.command(command)
    account.register(app)


def status(
    run: RunPath | None = None, /, *, stack: StackName = None, json: JsonFlag = False
) -> int:
    """Show the state of a run: step, coordinator, islands and their speed.

    Without a run, list the runs in runs/; with --stack, all runs of the account and everything in it
    that costs money.

    For example:

        luma status runs/quickstart --json

        luma status --stack Luma
    """
    if stack is not None and run is None:
        return account.show_account(account.open_named(stack), as_json=json)
    if stack is not None:
        return account.show_run(account.open_named(stack), str(run), as_json=json)
    if run is None:
        return _list_runs(as_json=json)
    state = _status(run)
    if json:
        print_json(state)
        return 0
    coordinator = state["coordinator"]
    print_rows(
        [
            ("state", state["state"]),
            ("step", f"{state['step']} of {state['total_steps']}"),
            (
                "checkpoint",
                "none yet" if state["last_checkpoint"] < 0 else str(state["last_checkpoint"]),
            ),
            ("coordinator", "not running" if coordinator is None else f"pid {coordinator['pid']}"),
            *([("error", state["error"])] if state.get("error") else []),
        ]
    )
    if state["islands"]:
        rows = [
            (
                i["name"],
                str(i["pid"]),
                i["state"],
                "-" if i["shards_per_s"] is None else f"{i['shards_per_s']:.2f}",
            )
            for i in state["islands"]
        ]
        print_table(("ISLAND", "PID", "STATE", "SHARDS/S"), rows)
    return 0


def logs(
    run: RunPath,
    name: Annotated[str | None, Parameter(help="island-0, coordinator, ...; default all")] = None,
    /,
    *,
    follow: Follow = False,
    stack: StackName = None,
    json: JsonFlag = False,
) -> int:
    """Print the logs of a run's processes.

    Of a run in an account they are as new as the nodes' last upload, some ten seconds.

    For example:

        luma logs runs/quickstart island-1 --follow
    """
    from runtime.run import Run

    if stack is not None:
        if follow:
            raise SpecError(
                "--follow: logs of an account are uploaded now and then",
                remedy="follow the run's events instead: luma events RUN --stack NAME --follow",
            )
        return account.show_logs(account.open_named(stack), str(run), name, as_json=json)

    for line in Run.open(run).logs(name, follow=follow):
        if json:
            print_json_line({"line": line})
        else:
            write(line, flush=follow)
    return 0


def events(
    run: RunPath,
    /,
    *,
    follow: Follow = False,
    stack: StackName = None,
    json: JsonFlag = False,
) -> int:
    """Print what happened in a run, in order; with --json one object a line.

    For example:

        luma events runs/quickstart --json | grep interruption

        luma events tiny-20261130-101500 --stack Luma --follow
    """
    from runtime.run import Run

    if stack is not None:
        opened = account.open_named(stack)
        return account.show_events(opened, str(run), follow=follow, as_json=json, line=_event_line)
    start: float | None = None
    for event in Run.open(run).events(follow=follow):
        if json:
            print_json_line(event)
            continue
        start = event["time"] if start is None else start
        write(_event_line(event, start), flush=follow)
    return 0


def _event_line(event: dict[str, Any], start: float) -> str:
    fields = "  ".join(f"{k}={_short(v)}" for k, v in event.items() if k not in {"time", "kind"})
    return f"{event['time'] - start:9.3f} s  {event['kind']:<20} {fields}"


def cancel(run: RunPath, /, *, stack: StackName = None, json: JsonFlag = False) -> int:
    """Stop a run after the step in flight, with a checkpoint; it can be resumed.

    For example:

        luma cancel runs/quickstart

        luma cancel tiny-20261130-101500 --stack Luma
    """
    from runtime.coordinator.client import request_stop
    from runtime.run.folder import RunFolder

    if stack is not None:
        return account.cancel_in(account.open_named(stack), str(run), as_json=json)
    folder = RunFolder.open(run)
    request_stop(folder.path)
    if json:
        print_json({"run": str(folder.path), "stopping": True})
    note(f"stopping after the step in flight; go on later with:\n  luma launch --resume {run}")
    return 0


def _status(run: Path) -> dict[str, Any]:
    from runtime.coordinator.client import read_status
    from runtime.run.folder import RunFolder

    return read_status(RunFolder.open(run).path)


def _list_runs(*, as_json: bool) -> int:
    from runtime.run.folder import RUN_FILE
    from runtime.spec.errors import LumaError

    rows = []
    for path in sorted(Path("runs").glob(f"*/{RUN_FILE}")):
        try:
            state = _status(path.parent)
        except LumaError as error:
            note(f"{path.parent}: {error.message}")
            continue
        rows.append({"run": str(path.parent), **state})
    if as_json:
        print_json(rows)
    elif rows:
        print_table(
            ("RUN", "STATE", "STEP", "ISLANDS", "$/H"),
            [
                (
                    r["run"],
                    r["state"],
                    f"{r['step']}/{r['total_steps']}",
                    str(len(r["islands"])),
                    "0",
                )
                for r in rows
            ],
        )
    else:
        note("no run in runs/")
    return 0


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
