"""`make synth`: synthesize the stack of app.py, and run every static check over it.

    python -m tests.e2e.synth [--json] [--docs]

Writes build/synth: the template, each state machine's definition, and report.json. Exit code 1 where
a check found something; each finding says what to do. `--json` prints the report on stdout, `--docs`
also writes docs/reference/roles.md and constructs.md, which are made from the code.
No credentials, no network: nothing is looked up.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tests.e2e.synth import checks, constructs_page, idle, machines, roles
from tests.e2e.synth.findings import Finding
from tests.e2e.synth.stack import default_stack
from tests.support.cdk import ROOT, Assembly, assembled

OUT = ROOT / "build" / "synth"
ROLES_PAGE = ROOT / "docs" / "reference" / "roles.md"
CONSTRUCTS_PAGE = ROOT / "docs" / "reference" / "constructs.md"


def say(line: str) -> None:
    """Tell how it goes; stdout is for the report."""
    sys.stderr.write(f"{line}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the checks, print a line for each, and give the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.synth", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report")
    parser.add_argument("--docs", action="store_true", help="write the pages made from the code")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    assembly = assembled(default_stack, OUT / "cdk.out", nag=True)
    size, seconds = len(assembly.template["Resources"]), time.monotonic() - begun
    say(f"synthesized {assembly.stack}: {size} resources, {seconds:.0f} s")
    write(assembly, OUT)
    if options.docs:
        ROLES_PAGE.write_text(roles.page(assembly), encoding="utf-8")
        CONSTRUCTS_PAGE.write_text(constructs_page.page(), encoding="utf-8")
    found = run(assembly)
    report = {
        "stack": assembly.stack,
        "resources": size,
        "checks": [check.name for check in _every()],
        "idle_usd_per_month": idle.costs(assembly.template),
        "findings": [asdict(finding) for finding in found],
    }
    text = json.dumps(report, indent=2) + "\n"
    (OUT / "report.json").write_text(text, encoding="utf-8")
    if options.json:
        sys.stdout.write(text)
    say(f"idle: {sum(idle.costs(assembly.template).values()):.2f} USD a month at list prices")
    say(f"{'nothing found' if not found else f'{len(found)} findings'}; see {OUT}")
    return 1 if found else 0


def write(assembly: Assembly, folder: Path) -> None:
    """Write the template and the definitions, for people and other tools."""
    template = json.dumps(assembly.template, indent=1)
    (folder / "template.json").write_text(template, encoding="utf-8")
    (folder / "definitions").mkdir()
    for name, definition in machines.definitions(assembly.template).items():
        path = folder / "definitions" / f"{name}.json"
        path.write_text(json.dumps(definition, indent=1), encoding="utf-8")


def _every() -> tuple[checks.Check, ...]:
    return (*checks.CHECKS, checks.asl_check())


def run(assembly: Assembly) -> list[Finding]:
    """Run every check; a line for each, and one for each finding."""
    found = []
    for check in _every():
        here = check.run(assembly)
        say(f"  {'FAILED ' if here else 'passed '}  {check.name}: {check.what}")
        for finding in here:
            say(f"           {finding}")
        found += here
    return found


if __name__ == "__main__":
    sys.exit(main())
