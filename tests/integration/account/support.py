"""An emulated account as a test uses it: real daemons as its instances, and work for them.

Instances are daemons with a metadata service of their own, killed as instances are.
"""

from __future__ import annotations

import functools
import itertools
import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.run.account.stack import Stack, open_stack
from runtime.run.account.start import write_items
from runtime.run.account.upload import upload_run
from runtime.run.folder import RunFolder
from runtime.spec.account import RUN_ITEM, node_key, run_key
from tests.emulator.imds import FakeImds, Metadata
from tests.emulator.server import REGION, EmulatedServer
from tests.emulator.waiting import until

STEPS = 10
"""Steps of the job that is run to its end."""
LONG = 2000
"""Steps of the one that is always stopped: no machine is through with it before a test has acted.

The learning rate is constant, so both compute the same in the steps that both have."""
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
      micro_shards: 16
      micro_batch: 2
      seq_len: 48
      seed: 3
      optimizer: {{name: adamw, lr: 3.0e-3, weight_decay: 0.1, grad_clip: 1.0}}
      schedule: {{kind: constant, warmup_steps: 3}}
      checkpoint: {{every: 4, keep: 2}}
    data: {{source: "python://pydoc_data.topics", packing: true, max_samples: 200}}
    resources:
      {{accelerators: ["cpu:1"], infra: "aws/{REGION}", islands: 2, min_workers: 1,
        max_workers: 4, threads_per_island: 1}}
    recovery: {{heartbeat_timeout: 2s, max_restarts: 2}}
"""

_names = itertools.count(1)
_instances = itertools.count(1)


wait_until = functools.partial(until, seconds=PATIENCE_S)
"""Wait for something that other processes are about to do; give what it gave."""


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
    """A stack of the emulated account, as a test uses it."""

    server: EmulatedServer
    place: Path
    name: str
    machine: str
    queues: dict[str, str]
    nodes: list[Node] = field(default_factory=list)

    def stack(self) -> Stack:
        """Open the stack as an engineer's machine does."""
        return open_stack(self.name, region=REGION)

    def put(self, folder: RunFolder) -> str:
        """Upload a prepared run under a new name and write its items; nothing is started."""
        run, stack, record = f"run-{next(_names)}", self.stack(), folder.record()
        upload_run(folder, run, stack, progress=lambda done, total: None)
        key_file = Path(record["key_file"])
        write_items(stack, run, record, total_steps=LONG, key_file=key_file)
        return run

    def node(self, fleet: str, *options: str) -> Node:
        """Start an instance of a fleet."""
        name = f"i-{next(_instances):017x}"
        folder = self.place / name
        folder.mkdir()
        metadata = Metadata(
            instance_id=name, instance_type="c7i.large", region=REGION, zone=f"{REGION}a"
        )
        imds, log = FakeImds(metadata).start(), folder / "node.log"
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
                    "LUMA_STACK": self.name,
                    "LUMA_FLEET": fleet,
                    "LUMA_HOME": str(folder / "home"),
                    "LUMA_COMPILER": "local",
                    "AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.endpoint,
                },
            )
        node = Node(name, metadata, imds, process, log)
        self.nodes.append(node)
        return node

    def give(self, fleet: str, kind: str, run: str, slot: int = 0, heartbeat_s: int = 8) -> str:
        """Have the state machine give work; the execution's ARN.

        The node beats four times in `heartbeat_s`; the machine waits far longer for it, so that no
        slow machine is taken for a dead node.
        """
        order = {
            "queue": self.queues[fleet],
            "kind": kind,
            "run": run,
            "slot": slot,
            "heartbeat_s": heartbeat_s,
            "patience_s": round(PATIENCE_S),
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

    def stop_giving(self, execution: str) -> None:
        """Close the token of a work, as a time-out or a person in the console does."""
        self.server.client("stepfunctions").stop_execution(executionArn=execution)

    def items(self, run: str, begins: str) -> list[dict[str, Any]]:
        """Read items of a run."""
        return list(self.stack().table.query(run_key(run), begins))

    def run_item(self, run: str) -> dict[str, Any]:
        """Read the run's own item."""
        return self.stack().table.get(run_key(run), RUN_ITEM) or {}

    def node_item(self, node: Node) -> dict[str, Any]:
        """Read an instance's item."""
        return self.stack().table.get(node_key(node.name), "NODE") or {}

    def wait_for_commit(self, run: str, step: int = 0) -> None:
        """Wait until a step is committed; where it does not come, show what every node said."""
        table = self.stack().table
        key = f"COMMIT#{step:010d}"

        try:
            wait_until(
                lambda: table.get(run_key(run), key),
                f"the commit of step {step}",
                also=self._check_nodes,
                every_s=0.02,
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._story(run)}") from None

    def sums(self, run: str) -> list[str]:
        """Read the hash of the sum of each committed step."""
        return [item["sum_hash"] for item in self.items(run, "COMMIT#")]

    def cancel(self, run: str) -> None:
        """Cancel a run, as `luma cancel` does."""
        values = {"cancel": True, "reason": "cancelled"}
        self.stack().table.update(run_key(run), RUN_ITEM, values)

    def events(self, run: str) -> list[dict[str, Any]]:
        """Read the run's events."""
        return [json.loads(item["event"]) for item in self.items(run, "NOTE#")]

    def _check_nodes(self) -> None:
        """Say which node has ended that nobody has killed or let go."""
        died = [n.name for n in self.nodes if n.process.poll() not in (None, 0, -signal.SIGKILL)]
        assert not died, f"{', '.join(died)} ended by itself"

    def _story(self, run: str) -> str:
        """Give the run's events, its works' states and all logs, for a failing test."""
        states = self.server.client("stepfunctions")
        works = states.list_executions(stateMachineArn=self.machine)["executions"]
        told = [f"{work['status']} {work['name']}" for work in works[:8]]
        processes = [path.read_text() for path in self.place.glob("i-*/scratch/*/islands/*.log")]
        events = [json.dumps(event) for event in self.events(run)]
        return "\n".join([*events, *told, self.logs(), *processes])

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


@dataclass(frozen=True)
class Template:
    """A job, prepared and compiled once, and what it must come to anywhere.

    Attributes:
        job: the job file, of a job for the account with `STEPS` steps.
        folder: a prepared run of `LONG` steps, with its artifact.
        state_hash: how an uninterrupted run of `STEPS` steps on this machine ended.
        sums: the hash of the sum of each of its steps.
    """

    job: Path
    folder: RunFolder
    state_hash: str
    sums: list[str]
