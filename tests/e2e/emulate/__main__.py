"""`make emulate`: see the package. `make emulate JSON=1` prints the report.

Progress goes to standard error, logs and the report to build/emulate. Exit code 0 only where all of
it held, 1 where something did not, 2 where something that it needs is not installed.
"""

import argparse
import json
import shutil
import sys
import time
import traceback
from dataclasses import asdict

from tests.e2e.emulate.report import Report
from tests.e2e.emulate.story import Story
from tests.emulator.node import ROOT, ToolMissingError, cdk

WORK = ROOT / "build" / "emulate"


def main() -> int:
    """Run the story and write build/emulate/report.json."""
    parser = argparse.ArgumentParser(prog="make emulate", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report")
    options = parser.parse_args()
    started = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - started:6.1f} s] {text}\n")

    try:
        cdk()
    except ToolMissingError as error:
        say(str(error))
        return 2
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    report = Report()
    try:
        Story(WORK, report, say).tell()
    except Exception as problem:  # whatever it was: the report must say so
        report.problem = f"{type(problem).__name__}: {problem}"
        (WORK / "problem.log").write_text(traceback.format_exc())
        say(report.problem)
    report.seconds = round(time.monotonic() - started, 1)
    report.write(WORK / "report.json")
    for what, holds in report.checks.items():
        say(f"{'ok  ' if holds else 'FAIL'} {what}")
    say(f"report: {WORK / 'report.json'}; logs beside it")
    if options.json:
        sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    return 0 if report.held else 1


if __name__ == "__main__":
    sys.exit(main())
