"""Commands of a run in an AWS account: `down` and `cost`, and what others print with `--stack`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from runtime.cli.output import (
    JsonFlag,
    note,
    print_json,
    print_json_line,
    print_rows,
    print_table,
    write,
)
from runtime.spec.account import DEFAULT_STACK

if TYPE_CHECKING:
    from runtime.run.account.costs import CostRow
    from runtime.run.account.stack import Stack

StackName = Annotated[
    str | None,
    Parameter(
        help="the stack of an AWS account; the region is that of AWS_REGION or the AWS profile"
    ),
]
"""`--stack` of commands that also look at runs on this machine."""

AccountRun = Annotated[str, Parameter(help="the run's name in the account")]


def register(app: App) -> None:
    """Add the commands."""
    app.command(down)
    app.command(cost)


def open_named(stack: str | None) -> Stack:
    """Open the stack of `--stack`."""
    from runtime.run.account.stack import open_stack

    return open_stack(stack or DEFAULT_STACK)


def down(
    run: AccountRun | None = None,
    /,
    *,
    stack: str = DEFAULT_STACK,
    wait: float = 300.0,
    json: JsonFlag = False,
) -> int:
    """End a run in an account and give back all that it holds; its results stay, and it can be resumed.

    It is asked to stop after the step in flight; where it has not ended in time, its execution is
    stopped. Without a run, what no live run accounts for is given back: claims that a crash left.

    For example:

        luma down tiny-20261130-101500 --stack Luma

    Args:
        run: the run's name in the account
        stack: the stack
        wait: seconds for the orderly stop; 0 stops at once
        json: print JSON: {run, state, aborted, released}, or without a run {released: [...]}
    """
    from runtime.run.account.runs import end_run

    opened = open_named(stack)
    if run is None:
        return _release_left(opened, as_json=json)
    ended = end_run(opened, run, wait_s=wait)
    document = {
        "run": run,
        "state": ended.state,
        "aborted": ended.aborted,
        "released": ended.released,
    }
    if json:
        print_json(document)
    else:
        print_rows((name, str(value)) for name, value in document.items())
    if ended.state != "done":
        note(f"go on later with:\n  luma launch --resume {run} {opened.options}")
    return 0


def _release_left(stack: Stack, *, as_json: bool) -> int:
    """Release the claims of runs that are not live, and name what is left for a person to end."""
    from runtime.run.account.costs import cost_rows
    from runtime.run.account.runs import release_claims

    rows = [row for row in cost_rows(stack) if row.left]
    runs = sorted({row.run for row in rows if row.kind == "claim" and row.run is not None})
    for name in runs:
        release_claims(stack, name)
    if as_json:
        print_json({"released": runs})
    elif runs:
        print_rows(("released", f"the claims of run '{name}'") for name in runs)
    else:
        note("no claim was left by a run that is not live")
    for row in rows:
        if row.kind == "instance":
            note(
                f"{row.name} ({row.detail}) works for no live run; its group ends it when it scales "
                f"down, else: aws ec2 terminate-instances --instance-ids {row.name}"
            )
    return 0


def cost(run: AccountRun, /, *, stack: str = DEFAULT_STACK, json: JsonFlag = False) -> int:
    """Show what a run in an account has cost: node-seconds times their prices, and no bill.

    For example:

        luma cost tiny-20261130-101500 --stack Luma --json

    Args:
        run: the run's name in the account
        stack: the stack
        json: print JSON: {run, state, cost_usd, max_cost_usd, islands_usd_per_hour, steps}
    """
    from runtime.run.account.runs import run_cost

    found = run_cost(open_named(stack), run)
    if json:
        print_json(found)
        return 0
    limit = found["max_cost_usd"]
    print_rows(
        [
            ("run", f"{run}: {found['state']}, {found['steps']} steps"),
            ("cost", f"{found['cost_usd']:.4f} $"),
            ("limit", "none" if limit is None else f"{limit:.4f} $"),
            ("islands", f"{found['islands_usd_per_hour']:.4g} $/h now"),
        ]
    )
    return 0


def show_account(stack: Stack, *, as_json: bool) -> int:
    """Show all runs of a stack, and everything that costs money."""
    from runtime.run.account.costs import cost_rows, rate_text
    from runtime.run.account.runs import list_runs

    runs, rows = list_runs(stack), cost_rows(stack)
    if as_json:
        known = [row.usd_per_hour for row in rows if row.usd_per_hour is not None]
        print_json(
            {
                "stack": stack.name,
                "region": stack.region,
                "runs": runs,
                "costs": [row.to_json() for row in rows],
                "usd_per_hour": sum(known),
            }
        )
        return 0
    if runs:
        print_table(
            ("RUN", "STATE", "ISLANDS", "COST $", "CREATED", "WHY"),
            [
                (
                    r["run"],
                    r["state"],
                    str(r["slots"]),
                    f"{r['cost_usd']:.4f}",
                    r["created_at"],
                    r["reason"][:60],
                )
                for r in runs
            ],
        )
    else:
        note(f"no run in stack '{stack.name}'")
    if rows:
        write("")
        print_table(("COSTS MONEY", "NAME", "WHAT", "STATE", "$/H", "RUN"), map(_cost_row, rows))
        note(f"{rate_text(rows)} now")
        if any(row.left for row in rows):
            note(f"what is marked LEFT belongs to no live run: luma down {stack.options}")
    else:
        note("nothing costs money now but what is stored")
    return 0


def _cost_row(row: CostRow) -> tuple[str, ...]:
    price = "?" if row.usd_per_hour is None else f"{row.usd_per_hour:.4g}"
    return row.kind, row.name, row.detail, row.state, price, "LEFT" if row.left else row.run or "-"


def show_run(stack: Stack, run: str, *, as_json: bool) -> int:
    """Show one run of a stack."""
    from runtime.run.account.runs import run_status

    found = run_status(stack, run)
    if as_json:
        print_json(found)
        return 0
    checkpoint = found["last_checkpoint"]
    live = "" if found["live"] or found["state"] != "running" else " (nothing works on it)"
    print_rows(
        [
            ("state", found["state"] + live),
            ("step", f"{found['step']} of {found['total_steps']}"),
            ("checkpoint", "none yet" if checkpoint < 0 else str(checkpoint)),
            ("cost", f"{float(found['cost_usd']):.4f} $"),
            *([("why", found["reason"])] if found.get("reason") else []),
        ]
    )
    rows = [
        (str(i["slot"]), i["fleet"], i["node"] or "-", i["island"] or "-") for i in found["islands"]
    ]
    print_table(("SLOT", "FLEET", "NODE", "ISLAND"), rows)
    return 0


def show_events(
    stack: Stack,
    run: str,
    *,
    follow: bool,
    as_json: bool,
    line: Callable[[dict[str, Any], float], str],
) -> int:
    """Print the events of a run; `line` formats one, given (event, time of the first)."""
    from runtime.run.account.follow import events_of

    start: float | None = None
    for event in events_of(stack, run, follow=follow):
        start = event["time"] if start is None else start
        if as_json:
            print_json_line(event)
        else:
            write(line(event, start), flush=follow)
    return 0


def show_logs(stack: Stack, run: str, name: str | None, *, as_json: bool) -> int:
    """Print the logs of a run's processes."""
    from runtime.run.account.runs import run_logs

    for text in run_logs(stack, run, name):
        if as_json:
            print_json_line({"line": text})
        else:
            write(text)
    return 0


def cancel_in(stack: Stack, run: str, *, as_json: bool) -> int:
    """Stop a run resumably."""
    from runtime.run.account.runs import cancel_run

    done = cancel_run(stack, run)
    if as_json:
        print_json(done)
    note(
        "stopping after the step in flight; go on later with:\n"
        f"  luma launch --resume {run} {stack.options}"
    )
    return 0


def check_account_command(stack: str | None, *, as_json: bool) -> int:
    """Look at an account, and say what a launch into it lacks; 1 where it lacks something."""
    from runtime.run.account.checks import check_account

    found = check_account(stack or DEFAULT_STACK)
    ok = all(check.ok for check in found)
    if as_json:
        print_json({"ok": ok, "checks": [check.to_json() for check in found]})
    else:
        print_rows((c.check, f"{'ok' if c.ok else 'FAILED'}: {c.detail}") for c in found)
    return 0 if ok else 1
