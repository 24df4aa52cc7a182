"""`luma status`, `logs`, `events`, `cancel`: look at a run, and stop it resumably."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

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

Follow = Annotated[
    bool, Parameter(name=["--follow", "-f"], negative="", help="go on until the run ends")
]


def register(app: App) -> None:
    """Add the commands."""
    for command in (status, logs, events, cancel):
        app.command(command)


def status(run: RunPath | None = None, /, *, json: JsonFlag = False) -> int:
    """Show the state of a run: step, coordinator, islands and their speed.

    Without a folder, list the runs in runs/.

    For example:

        luma status runs/quickstart --json
    """
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
    json: JsonFlag = False,
) -> int:
    """Print the logs of a run's processes.

    For example:

        luma logs runs/quickstart island-1 --follow
    """
    from runtime.run import Run

    for line in Run.open(run).logs(name, follow=follow):
        if json:
            print_json_line({"line": line})
        else:
            write(line, flush=follow)
    return 0


def events(run: RunPath, /, *, follow: Follow = False, json: JsonFlag = False) -> int:
    """Print what happened in a run, in order; with --json one object a line.

    For example:

        luma events runs/quickstart --json | grep interruption
    """
    from runtime.run import Run

    start: float | None = None
    for event in Run.open(run).events(follow=follow):
        if json:
            print_json_line(event)
            continue
        start = event["time"] if start is None else start
        fields = "  ".join(
            f"{k}={_short(v)}" for k, v in event.items() if k not in {"time", "kind"}
        )
        write(f"{event['time'] - start:9.3f} s  {event['kind']:<20} {fields}", flush=follow)
    return 0


def cancel(run: RunPath, /, *, json: JsonFlag = False) -> int:
    """Stop a run after the step in flight, with a checkpoint; it can be resumed.

    For example:

        luma cancel runs/quickstart
    """
    from runtime.coordinator.client import request_stop
    from runtime.run.folder import RunFolder

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
