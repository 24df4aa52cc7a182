"""An emulated account without a stack: its stores, queues, parameters, and machines that give work."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from runtime.coordinator.events import read_events
from runtime.run.account.choose import choose_fleets
from runtime.run.account.prepare import prepare_run
from runtime.run.account.stack import open_stack
from runtime.run.history import History
from runtime.run.progress import SilentReporter
from tests.emulator.server import ACCOUNT, REGION, EmulatedServer
from tests.integration.account.machines import TABLE, give_work, jobs
from tests.integration.account.support import (
    JOB,
    LONG,
    MODEL,
    PATIENCE_S,
    STEPS,
    Account,
    Template,
)

BUCKET = "luma-runs"
_numbers = itertools.count(1)
FLEETS = (("cpu-a", "cpu", 36.0), ("cpu-b", "cpu", 36.0), ("coordinator", "coordinator", 3.6))


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[EmulatedServer]:
    """Start the emulated account; this process talks to it too."""
    with EmulatedServer(log=tmp_path_factory.mktemp("moto") / "server.log") as running:
        yield running


@contextmanager
def pointed_at(server: EmulatedServer) -> Iterator[None]:
    """Point this process at the emulated account, and at nothing else, while the block runs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("AWS_"):
                patch.delenv(name)
        for name, value in server.environment().items():
            if name.startswith("AWS_"):
                patch.setenv(name, value)
        yield


@pytest.fixture(scope="module", autouse=True)
def aws_of_a_module(server) -> Iterator[None]:
    """No longer than a module: tests of other accounts run before, between and after ours."""
    with pointed_at(server):
        yield


@pytest.fixture(scope="session")
def stores(server) -> str:
    """Make what all stacks of the tests share: bucket, table, and the machine that gives one work."""
    server.client("s3").create_bucket(Bucket=BUCKET)
    server.client("dynamodb").create_table(
        TableName=TABLE,
        KeySchema=[
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": "pk", "AttributeType": "S"},
            {"AttributeName": "sk", "AttributeType": "S"},
        ],
        BillingMode="PAY_PER_REQUEST",
    )
    return _machine(server, "give-work", give_work())


def make_stack(server: EmulatedServer, name: str) -> dict[str, str]:
    """Make a stack's own parts: queues, which nobody else reads, a machine, parameters."""
    sqs = server.client("sqs")
    queues = {
        fleet: sqs.create_queue(QueueName=f"{name}-{fleet}")["QueueUrl"]
        for fleet in ("cpu-a", "cpu-b", "coordinator", "compiler")
    }
    _write_parameters(server, name, queues, _machine(server, f"{name}-jobs", jobs(queues)))
    return queues


def _machine(server: EmulatedServer, name: str, definition: dict[str, Any]) -> str:
    answer = server.client("stepfunctions").create_state_machine(
        name=name,
        definition=json.dumps(definition),
        roleArn=f"arn:aws:iam::{ACCOUNT}:role/machine",
    )
    return answer["stateMachineArn"]


def _write_parameters(
    server: EmulatedServer, stack: str, queues: dict[str, str], jobs_machine: str
) -> None:
    config = {
        "schema": "luma/account/1",
        "stack": stack,
        "region": REGION,
        "bucket": BUCKET,
        "table": TABLE,
        "jobs_machine": jobs_machine,
        "failover_machine": None,
        "topic": None,
        "coordinator_fleet": "coordinator",
        "compiler_queue": queues["compiler"],
        "compiler_fleet": "compiler",
    }
    values = {"config": config}
    for order, (name, target, price) in enumerate(FLEETS):
        values[f"fleets/{name}"] = {
            "fleet": name,
            "target": target,
            "chips": 1,
            "queue": queues[name],
            "asg": f"group-{name}",
            "purchase": "spot",
            "instance_types": ["c7i.large"],
            "order": order,
            "usd_per_hour": price,
        }
    ssm = server.client("ssm")
    for name, value in values.items():
        ssm.put_parameter(Name=f"/luma/{stack}/{name}", Value=json.dumps(value), Type="String")


@pytest.fixture
def account(server, stores, tmp_path) -> Iterator[Account]:
    """Give a test a stack of its own; its daemons end with the test."""
    name = f"Stack{next(_numbers)}"
    queues = make_stack(server, name)
    made = Account(server=server, place=tmp_path, name=name, machine=stores, queues=queues)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def template(tmp_path_factory, luma_home, server, stores) -> Template:
    """Run the job on this machine, undisturbed, on one island; prepare and compile it once."""
    place = tmp_path_factory.mktemp("account-job")
    (place / "model.py").write_text(textwrap.dedent(MODEL))
    text = textwrap.dedent(JOB)
    job, local, long = (place / f"{name}.yaml" for name in ("job", "local", "long"))
    job.write_text(text)
    local.write_text(text.replace(f"aws/{REGION}", "local"))
    long.write_text(text.replace(f"steps: {STEPS}\n", f"steps: {LONG}\n"))
    folder = place / "reference"
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "runtime.cli", "launch", str(local), "--islands", "1"),
            *("--yes", "--json", "--run", str(folder)),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "LUMA_HOME": str(luma_home)},
    )
    assert done.returncode == 0, done.stderr
    ended = [event for event in read_events(folder) if event["kind"] == "done"]
    make_stack(server, "Template")
    with pointed_at(server):
        stack = open_stack("Template", region=REGION)
        without_compiler = dataclasses.replace(
            stack, config=dataclasses.replace(stack.config, compiler_queue=None)
        )
        prepared = prepare_run(
            long,
            {},
            place / "prepared",
            without_compiler,
            choose=partial(choose_fleets, stack),
            accept=lambda choice: True,
            reporter=SilentReporter(),
        )
    assert prepared is not None
    commits = History.read(folder).commits
    return Template(
        job=job,
        folder=prepared.folder,
        state_hash=ended[-1]["state_hash"],
        sums=[commit.sum_hash for commit in commits],
    )
