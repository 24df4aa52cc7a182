"""`luma` in an account: launch and follow, look, resume an upload, and say clearly what is missing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from runtime.cli.app import main
from runtime.run.account.upload import upload_run
from tests.emulator.faults import Fault
from tests.emulator.server import REGION
from tests.integration.account.support import PATIENCE_S, STEPS, wait_until

# Several real processes; the first test of a session also prepares the job.
pytestmark = pytest.mark.timeout(900)


def luma(*words: str, home: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "runtime.cli", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "LUMA_HOME": home},
    )


def said(capsys, *words: str) -> tuple[int, str, str]:
    """Run the command line in this process: its exit code, output and messages."""
    code = main(words)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_launch_is_followed_to_its_certificate(account, template, tmp_path, luma_home, capsys):
    for fleet in ("compiler", "coordinator", "cpu-a", "cpu-b"):
        account.node(fleet)
    folder = tmp_path / "launched"
    done = luma(
        *("launch", str(template.job), "--yes", "--json", "--run", str(folder)),
        *("--stack", account.name),
        home=str(luma_home),
    )
    assert done.returncode == 0, done.stderr + account.logs()
    document = json.loads(done.stdout)
    assert (document["run"], document["state"]) == ("launched", "done")
    certificate = document["certificate"]
    assert (certificate["level"], certificate["steps_lost"]) == ("exact", 0)
    assert certificate["state_hash"] == template.state_hash
    assert certificate["seal"] == "L1 (local service)"
    assert "$/h" in done.stderr
    assert f"step {STEPS}/{STEPS}" in done.stderr

    code, out, _ = said(capsys, "status", "launched", "--stack", account.name, "--json")
    status = json.loads(out)
    assert (code, status["state"], status["step"]) == (0, "done", STEPS)
    code, out, _ = said(capsys, "cost", "launched", "--stack", account.name, "--json")
    assert (code, json.loads(out)["cost_usd"] > 0) == (0, True)
    code, out, _ = said(capsys, "events", "launched", "--stack", account.name, "--json")
    kinds = [json.loads(line)["kind"] for line in out.splitlines()]
    assert (code, kinds.count("commit"), kinds[-1]) == (0, STEPS, "done")
    code, out, _ = said(capsys, "logs", "launched", "compile", "--stack", account.name)
    assert (code, out) == (0, "cpu: compiled\n")
    code, out, _ = said(capsys, "status", "--stack", account.name, "--json")
    assert "launched" in {run["run"] for run in json.loads(out)["runs"]}
    code, _, err = said(capsys, "cancel", "launched", "--stack", account.name)
    assert (code, "has ended already" in err) == (1, True)
    code, out, _ = said(capsys, "down", "launched", "--stack", account.name, "--json")
    assert (code, json.loads(out)["state"]) == (0, "done")
    names = {item.key.rpartition("/")[2] for item in account.stack().bucket.list("runs/launched/")}
    assert {"model.safetensors", "certificate.json", "events.jsonl", "coordinator.log"} <= names


KILL_IN_UPLOAD = """
import os, signal, sys
from pathlib import Path
from runtime.run.account.stack import open_stack
from runtime.run.account.upload import upload_run
from runtime.run.folder import RunFolder

calls = 0
def progress(done, total):
    global calls
    calls += 1
    if calls == 4:
        os.kill(os.getpid(), signal.SIGKILL)

upload_run(RunFolder(Path(sys.argv[1])), sys.argv[2], open_stack(sys.argv[3]), progress=progress)
"""


def test_an_upload_that_was_killed_goes_on_where_it_was(account, template):
    run, bucket = "cut-short", account.stack().bucket
    killed = subprocess.run(
        [sys.executable, "-c", KILL_IN_UPLOAD, str(template.folder.path), run, account.name],
        timeout=PATIENCE_S,
        check=False,
        env=os.environ,
    )
    assert killed.returncode == -signal.SIGKILL
    first = {
        item.key: bucket.head(item.key)["LastModified"] for item in bucket.list(f"runs/{run}/")
    }
    assert len(first) == 4
    assert bucket.read(f"runs/{run}/run.json") is None

    shown: list[tuple[int, int]] = []
    sent = upload_run(
        template.folder, run, account.stack(), progress=lambda *both: shown.append(both)
    )
    assert sent.bytes_there > 0
    assert shown[-1][0] == shown[-1][1]
    after = {
        item.key: bucket.head(item.key)["LastModified"] for item in bucket.list(f"runs/{run}/")
    }
    assert {key: after[key] for key in first} == first, "a file that was there went again"
    local = {path for path in template.folder.path.rglob("*") if path.is_file()}
    names = {path.relative_to(template.folder.path).as_posix() for path in local}
    missing = names - {key.removeprefix(f"runs/{run}/") for key in after}
    assert missing <= {"prepare.log"}, "not everything went"
    again = upload_run(template.folder, run, account.stack(), progress=lambda *_: None)
    assert again.bytes_sent == 0


def test_a_prepared_run_is_started_looked_at_and_ended(
    account, template, tmp_path, capsys, monkeypatch
):
    run = f"resumed-{account.name.lower()}"
    folder = tmp_path / run
    shutil.copytree(template.folder.path, folder)
    stack = ("--stack", account.name)
    code, out, err = said(capsys, "launch", "--resume", str(folder), *stack, "-d", "--json")
    assert (code, json.loads(out)["run"]) == (0, run)
    assert f"luma events {run} --stack {account.name} --follow" in err
    execution = json.loads(out)["execution"]
    wait_until(lambda: account.run_item(run)["state"] == "running", "the machine's first state")
    code, out, _ = said(capsys, "status", run, *stack, "--json")
    assert (code, json.loads(out)["live"]) == (0, True)
    code, _, err = said(capsys, "launch", "--resume", run, *stack, "-d")
    assert (code, "is running already" in err) == (1, True)

    def leave(*_arguments, **_options):
        raise KeyboardInterrupt

    ended = account.server.client("stepfunctions").describe_execution(executionArn=execution)
    assert ended["status"] == "RUNNING"
    code, out, err = said(capsys, "down", run, *stack, "--wait", "0", "--json")
    assert (code, json.loads(out)["state"], json.loads(out)["aborted"]) == (0, "terminated", True)
    assert f"luma launch --resume {run}" in err

    # Attached, and left by Ctrl-C: the run goes on.
    monkeypatch.setattr("runtime.run.account.follow.follow_run", leave)
    code, _, err = said(capsys, "launch", "--resume", run, *stack, "--max-cost", "7")
    assert code == 130
    assert "goes on in the account" in err
    assert account.run_item(run)["max_cost_usd"] == 7
    wait_until(lambda: account.run_item(run)["state"] == "running", "the machine's first state")
    assert said(capsys, "down", run, *stack, "--wait", "0")[0] == 0


def test_another_run_of_the_same_name_is_refused(account, template, tmp_path, capsys):
    run = account.put(template.folder)
    account.stack().bucket.write(f"runs/{run}/plan.json", b"{}")
    shutil.copytree(template.folder.path, tmp_path / run)
    code, _, err = said(capsys, "launch", "--resume", str(tmp_path / run), "--stack", account.name)
    assert (code, "is another one" in err) == (1, True)


def test_mistakes_are_told_with_a_remedy(account, template, capsys, monkeypatch):
    def refused(code: int, part: str, *words: str) -> None:
        found, _, err = said(capsys, *words)
        assert found == code, err
        assert part in err
        assert "remedy:" in err or code == 2
        assert "Traceback" not in err

    refused(1, "there is no stack 'Other'", "status", "--stack", "Other")
    refused(1, "there is no run 'nobody'", "status", "nobody", "--stack", account.name)
    refused(1, "there is no run 'nobody'", "events", "nobody", "--stack", account.name)
    refused(2, "no stack's name", "status", "--stack", "a b")
    refused(2, "is not for a run on this machine", "launch", "no.yaml", "--detach")
    refused(2, "not for a run in an account", "launch", str(template.job), "--reference")
    refused(2, "no terminal", "launch", str(template.job))
    refused(
        2, "runs on this machine", "launch", "examples/tiny/job.yaml", "--stack", account.name, "-y"
    )
    refused(2, "give one of both", "check", "job.yaml", "--account")

    denied = Fault(
        service="ssm", operation="GetParametersByPath", code="AccessDeniedException", message="no"
    )
    account.server.fault(denied)
    refused(1, "denied", "status", "--stack", account.name)
    assert account.server.lift_faults() == 1
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    refused(1, "credentials", "status", "--stack", account.name)


@pytest.mark.parametrize("words", [("status",), ("--help",)])
def test_nothing_of_aws_is_asked_unless_an_account_is_named(words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def asked(*_arguments, **_options):
        raise AssertionError("a client of AWS was made")

    monkeypatch.setattr("runtime.spec.aws.aws_client", asked)
    assert said(capsys, *words)[0] == 0


def test_an_account_is_checked_part_by_part(account, capsys):
    code, out, _ = said(capsys, "check", "--account", "--stack", account.name, "--json")
    found = {check["check"]: check for check in json.loads(out)["checks"]}
    assert code == 1, "this account is not bootstrapped"
    assert found["credentials"]["ok"]
    assert "cdk bootstrap" in found["bootstrap"]["detail"]
    assert f"in {REGION}" in found[f"stack {account.name}"]["detail"]
    for part in ("bucket", "table", "machine", "queue of cpu-a", "queue of coordinator"):
        assert found[part]["ok"], found[part]
    account.server.client("ssm").put_parameter(
        Name="/cdk-bootstrap/hnb659fds/version", Value="28", Type="String", Overwrite=True
    )
    try:
        _, out, _ = said(capsys, "check", "--account", "--stack", account.name, "--json")
    finally:
        account.server.client("ssm").delete_parameter(Name="/cdk-bootstrap/hnb659fds/version")
    found = {check["check"]: check for check in json.loads(out)["checks"]}
    assert found["bootstrap"] == {"check": "bootstrap", "ok": True, "detail": "version 28"}
