"""An emulated account without a stack: its stores, queues and parameters; real daemons as its nodes.

The work comes from a real state machine of one state, which waits for a task token as the deployed
ones do. Instances are daemons with a metadata service of their own, killed as instances are.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runtime.coordinator.events import read_events
from runtime.run.account.prepare import PreparedRun, plain_choice, prepare_run
from runtime.run.account.stack import Stack, open_stack
from runtime.run.progress import SilentReporter
from runtime.spec.account import run_key
from tests.emulator.imds import FakeImds, Metadata
from tests.emulator.server import ACCOUNT, REGION, EmulatedServer

STEPS = 8
_numbers = itertools.count(1)
PATIENCE_S = 240.0
"""Longer than anything here takes on a busy machine; nothing waits for it but a failing test."""

MODEL = """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    def build():
        return Qwen3ForCausalLM(Qwen3Config(
            vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=16,
            max_position_embeddings=128, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=256, pad_token_id=None))
"""

JOB = f"""
    schema: luma/v1
    name: account-job
    model: {{source: "./model.py:build", dtype: fp32}}
    compile: {{seal: L1, targets: [cpu]}}
    train:
      steps: {STEPS}
      micro_shards: 4
      micro_batch: 2
      seq_len: 48
      seed: 3
      optimizer: {{name: adamw, lr: 3.0e-3, weight_decay: 0.1, grad_clip: 1.0}}
      schedule: {{kind: cosine, warmup_steps: 3, min_lr_ratio: 0.1}}
      checkpoint: {{every: 4, keep: 2}}
    data: {{source: "python://pydoc_data.topics", packing: true, max_samples: 200}}
    resources:
      {{accelerators: ["cpu:1"], islands: 2, min_workers: 1, max_workers: 4, threads_per_island: 1}}
    recovery: {{heartbeat_timeout: 2s, max_restarts: 2}}
"""

GIVE_WORK = {
    "StartAt": "Give work",
    "States": {
        "Give work": {
            "Type": "Task",
            "Resource": "arn:aws:states:::sqs:sendMessage.waitForTaskToken",
            "HeartbeatSecondsPath": "$.heartbeat_s",
            "Parameters": {
                "QueueUrl.$": "$.queue",
                "MessageBody": {
                    "schema": "luma/work/1",
                    "kind.$": "$.kind",
                    "run.$": "$.run",
                    "slot.$": "$.slot",
                    "attempt": 0,
                    "heartbeat_s.$": "$.heartbeat_s",
                    "token.$": "$$.Task.Token",
                },
            },
            "End": True,
        }
    },
}


def wait_until(holds: Callable[[], Any], what: str) -> Any:
    """Wait for something that other processes are about to do."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} did not come within {PATIENCE_S} s"
        time.sleep(0.1)
    return found


@dataclass
class Node:
    """A daemon that plays an instance."""

    name: str
    metadata: Metadata
    imds: FakeImds
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """Take the instance away without a word."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def wait(self) -> int:
        """Wait for the daemon's own end."""
        return self.process.wait(timeout=PATIENCE_S)


@dataclass
class Account:
    """The emulated account, as a test uses it."""

    server: EmulatedServer
    place: Path
    machine: str
    table: str
    bucket: str
    queues: dict[str, str]
    nodes: list[Node] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def stack(self) -> Stack:
        """Open the stack as an engineer's machine does."""
        return open_stack("Luma", region=REGION)

    def node(self, fleet: str, *options: str, **variables: str) -> Node:
        """Start an instance of a fleet."""
        number = next(self.numbers)
        name = f"i-{number:017x}"
        folder = self.place / name
        folder.mkdir()
        metadata = Metadata(
            instance_id=name, instance_type="c7i.large", region=REGION, zone=f"{REGION}a"
        )
        imds = FakeImds(metadata).start()
        log = folder / "node.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [
                    sys.executable,
                    *("-m", "runtime.agent.node", "--scratch", str(folder / "scratch")),
                    *("--wait-s", "1", "--notice-every-s", "0.2", *options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=self.server.environment()
                | {
                    "LUMA_STACK": "Luma",
                    "LUMA_FLEET": fleet,
                    "LUMA_HOME": str(folder / "home"),
                    "LUMA_COMPILER": "local",
                    "AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.endpoint,
                }
                | variables,
            )
        node = Node(name, metadata, imds, process, log)
        self.nodes.append(node)
        return node

    def give(self, fleet: str, kind: str, run: str, slot: int = 0, heartbeat_s: int = 60) -> str:
        """Have the state machine give work; the execution's ARN."""
        order = {
            "queue": self.queues[fleet],
            "kind": kind,
            "run": run,
            "slot": slot,
            "heartbeat_s": heartbeat_s,
        }
        answer = self.server.client("stepfunctions").start_execution(
            stateMachineArn=self.machine, input=json.dumps(order)
        )
        return answer["executionArn"]

    def ending(self, execution: str) -> dict[str, Any]:
        """Wait for the answer to a work: its output, or {error, cause}."""
        states = self.server.client("stepfunctions")

        def ended() -> dict[str, Any] | None:
            found = states.describe_execution(executionArn=execution)
            return None if found["status"] == "RUNNING" else found

        found = wait_until(ended, "an answer to the work")
        if found["status"] == "SUCCEEDED":
            return json.loads(found["output"])
        return {"error": found.get("error"), "cause": found.get("cause", "")}

    def items(self, run: str, begins: str) -> list[dict[str, Any]]:
        """Read items of a run."""
        return list(self.stack().table.query(run_key(run), begins))

    def logs(self) -> str:
        """Give the daemons' logs, for a failing test."""
        return "\n".join(f"--- {n.name}\n{n.log.read_text()}" for n in self.nodes)

    def stop(self) -> None:
        """End every daemon."""
        for node in self.nodes:
            if node.process.poll() is None:
                node.kill()
            node.imds.stop()
        self.nodes.clear()


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[EmulatedServer]:
    """Start the emulated account; this process talks to it too."""
    with EmulatedServer(log=tmp_path_factory.mktemp("moto") / "server.log") as running:
        yield running


@pytest.fixture(autouse=True)
def aws_environment(server, monkeypatch):
    """Point this process at the emulated account, and at nothing else."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in server.environment().items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def stores(server) -> dict[str, Any]:
    """Make what the stack would: stores, queues, parameters, a machine that gives work."""
    s3, ssm = server.client("s3"), server.client("ssm")
    s3.create_bucket(Bucket="luma-runs")
    server.client("dynamodb").create_table(
        TableName="luma-runs",
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
    sqs = server.client("sqs")
    queues = {
        name: sqs.create_queue(QueueName=f"luma-{name}")["QueueUrl"]
        for name in ("cpu-a", "cpu-b", "coordinator", "compiler")
    }
    machine = server.client("stepfunctions").create_state_machine(
        name="give-work",
        definition=json.dumps(GIVE_WORK),
        roleArn=f"arn:aws:iam::{ACCOUNT}:role/machine",
    )["stateMachineArn"]
    config = {
        "schema": "luma/account/1",
        "stack": "Luma",
        "region": REGION,
        "bucket": "luma-runs",
        "table": "luma-runs",
        "jobs_machine": machine,
        "failover_machine": None,
        "topic": None,
        "coordinator_fleet": "coordinator",
        "compiler_queue": queues["compiler"],
        "compiler_fleet": "compiler",
    }
    ssm.put_parameter(Name="/luma/Luma/config", Value=json.dumps(config), Type="String")
    for order, (name, target, price) in enumerate(
        [("cpu-a", "cpu", 36.0), ("cpu-b", "cpu", 36.0), ("coordinator", "coordinator", 3.6)]
    ):
        fleet = {
            "fleet": name,
            "target": target,
            "chips": 1,
            "queue": queues[name],
            "asg": None,
            "purchase": "spot",
            "instance_types": ["c7i.large"],
            "order": order,
            "usd_per_hour": price,
        }
        ssm.put_parameter(
            Name=f"/luma/Luma/fleets/{name}", Value=json.dumps(fleet), Type="String"
        )
    return {"machine": machine, "queues": queues, "table": "luma-runs", "bucket": "luma-runs"}


@pytest.fixture
def account(server, stores, tmp_path) -> Iterator[Account]:
    """Give the account to a test; its nodes end with it, and its queues are empty again."""
    account = Account(server=server, place=tmp_path, **stores)
    yield account
    account.stop()
    sqs = server.client("sqs")
    for url in stores["queues"].values():
        sqs.purge_queue(QueueUrl=url)


@dataclass(frozen=True)
class Template:
    """A job, prepared and compiled once, and the hash that it must end with anywhere."""

    job: Path
    folder: Path
    state_hash: str


@pytest.fixture(scope="session")
def template(tmp_path_factory, luma_home) -> Template:
    """Launch the job on this machine, undisturbed, on one island."""
    place = tmp_path_factory.mktemp("account-job")
    (place / "model.py").write_text(textwrap.dedent(MODEL))
    job = place / "job.yaml"
    job.write_text(textwrap.dedent(JOB))
    folder = place / "reference"
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "runtime.cli", "launch", str(job), "--islands", "1"),
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
    return Template(job=job, folder=folder, state_hash=ended[-1]["state_hash"])


@pytest.fixture
def prepared(template, account, tmp_path) -> PreparedRun:
    """Prepare the job for the account under a name of this test's own."""
    name = f"run-{next(_numbers)}"
    found = prepare_run(
        template.job,
        {},
        tmp_path / name,
        account.stack(),
        choose=lambda spec, built, steps: plain_choice(spec, account.stack()),
        accept=lambda choice: True,
        reporter=SilentReporter(),
    )
    assert found is not None
    return found
