"""A run whose stores are an emulated account's, and nodes that share nothing but these."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.bucket import Bucket, BucketPlace
from runtime.agent.checkpoint_remote import RemoteCheckpoints
from runtime.coordinator.events import read_events
from runtime.coordinator.log_dynamodb import DynamoCommitLog
from runtime.coordinator.plan import RunPlan
from runtime.coordinator.tls import TLS_FOLDER, make_identity
from runtime.run.files import link_tree
from tests.emulator.server import EmulatedServer
from tests.integration.elastic.conftest import HERE as ELASTIC
from tests.integration.elastic.conftest import SHARDS, Template

BUCKET, TABLE = "luma-runs", "luma-runs"
TIMEOUT_S = 200.0
HERE = Path(__file__).parent
_UNCHANGING = ("model", "data", "artifact.luma", "signer.pem", "constants.safetensors", "run.json")
_numbers = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[EmulatedServer]:
    """Give an emulated account with a bucket and a table of runs."""
    with EmulatedServer() as running:
        running.client("s3").create_bucket(Bucket=BUCKET)
        running.client("dynamodb").create_table(
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
        yield running


@pytest.fixture
def account(server: EmulatedServer, monkeypatch: pytest.MonkeyPatch) -> EmulatedServer:
    """Have this process's clients, and its children's, talk to the emulated account."""
    for name, value in server.environment().items():
        if name.startswith("AWS_") or name == "NO_PROXY":
            monkeypatch.setenv(name, value)
    return server


class Node:
    """One machine: a scratch folder of its own, and one process that works in it.

    What a node's daemon does beside it, a thread does here: `coordinator.json` follows the item
    COORDINATOR of the table.
    """

    def __init__(
        self, folder: Path, words: list[str], run: AccountRun, environment: dict[str, str]
    ) -> None:
        self.folder = folder
        self._run = run
        self._over = threading.Event()
        with (folder / "process.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def _follow(self) -> None:
        log = self._run.log()
        known = None
        while not self._over.wait(0.05):
            address = log.address()
            if address is not None and address != known:
                address.write(self.folder)
                known = address

    def log(self) -> str:
        """Give the end of what the process printed."""
        return (self.folder / "process.log").read_text()[-2000:]

    def kill(self) -> None:
        """Kill the process without warning."""
        self.process.kill()
        self.process.wait()

    def lose(self) -> None:
        """Take the machine away: the process, and everything on its disk."""
        self.kill()
        self._over.set()
        self._follower.join()
        shutil.rmtree(self.folder)


class AccountRun:
    """One run in the account, and the nodes that work on it."""

    def __init__(self, template: Template, place: Path, plan: RunPlan, *, tls: bool) -> None:
        self.name = f"run-{next(_numbers)}"
        self.store = f"s3://{BUCKET}/runs/{self.name}"
        self._tls = place / "tls" if tls else None
        if self._tls is not None:
            make_identity(self._tls)
        self._template = template
        self._place = place
        self._plan = plan
        self._nodes: list[Node] = []
        self._events: list[dict[str, Any]] = []
        self.remote().push(template.folder / "checkpoints" / "step-000000")

    def log(self) -> DynamoCommitLog:
        """Open the run's log for reading."""
        return DynamoCommitLog(TABLE, self.name, read_only=True)

    def remote(self) -> RemoteCheckpoints:
        """Give the run's checkpoints in the bucket."""
        place = BucketPlace.parse(self.store)
        return RemoteCheckpoints(Bucket(place), job_digest=self._plan.job_digest)

    def coordinator(self, *, restart: bool = False, killed_after: int | None = None) -> Node:
        """Start the coordinator on a node of its own.

        Args:
            restart: its islands may be alive.
            killed_after: a step: it is killed once that is durable, before it tells anyone.
        """
        words = ["-m", "runtime.coordinator"]
        if killed_after is not None:
            words = [str(HERE / "faulty_coordinator.py"), "--step", str(killed_after), "--"]
        words += ["--log", f"dynamodb:{TABLE}/{self.name}"]
        return self._node("coordinator", words + ["--restart"] * restart)

    def island(
        self,
        number: int,
        *,
        hold: int | None = None,
        gate: str = "never-opened",
        tls: Path | None = None,
        patience_s: float = 60,
        environment: dict[str, str] | None = None,
    ) -> Node:
        """Start an island on a node of its own.

        Args:
            number: in its name.
            hold: a step that it does not begin before the gate is open.
            gate: the name of the gate.
            tls: key and certificate instead of the run's.
            patience_s: how long it looks for a coordinator.
            environment: variables of its own.
        """
        name = f"island-{number}"
        words = ["-m", "runtime.agent"]
        if hold is not None:
            words = [str(ELASTIC / "faulty_island.py"), "--hold", str(hold)]
            words += [str(self._place / gate), "--"]
        words += ["--name", name, "--store", self.store, "--patience-s", str(patience_s)]
        return self._node(name, words, tls, environment or {})

    def _node(
        self,
        name: str,
        words: list[str],
        tls: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> Node:
        folder = self._place / f"{name}-{len(self._nodes)}"
        folder.mkdir()
        for part in _UNCHANGING:
            link_tree(self._template.folder / part, folder / part)
        if (identity := tls or self._tls) is not None:
            shutil.copytree(identity, folder / TLS_FOLDER)
        self._plan.write(folder)
        address = self.log().address()
        if address is not None:
            address.write(folder)
        node = Node(folder, [*words, "--run", str(folder)], self, environment or {})
        self._nodes.append(node)
        return node

    def open(self, gate: str) -> None:
        """Open a gate."""
        (self._place / gate).touch()

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until a condition holds; fail with the logs when it never does."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (value := condition()):
            if time.monotonic() > deadline:
                pytest.fail(f"never came: {what}\n{self.report()}")
            time.sleep(0.05)
        return value

    def wait_for_step(self, step: int) -> None:
        """Wait until a step is committed."""
        self.wait(lambda: self.log().last_step() >= step, f"commit of step {step}")

    def report(self) -> str:
        """Give every node's events and log."""
        lines = []
        for node in self._nodes:
            if node.folder.exists():
                events = [str(event)[:200] for event in read_events(node.folder)][-12:]
                lines += [f"--- {node.folder.name}", *events, node.log()]
        return "\n".join(lines)

    def close(self) -> None:
        """Take every node away."""
        for node in self._nodes:
            if node.folder.exists():
                node.lose()


@pytest.fixture
def make_run(
    account: EmulatedServer, template: Template, tmp_path: Path
) -> Iterator[Callable[..., AccountRun]]:
    """Give a maker of runs that lie prepared in the account."""
    runs: list[AccountRun] = []

    def make(*, tls: bool = True, **changes: Any) -> AccountRun:
        plan = RunPlan.read(template.folder)
        # A busy machine must not take an island for a dead one: what is killed closes its sockets.
        settings = {"checkpoint_every": 4, "heartbeat_timeout_s": 20.0, **changes}
        plan = dataclasses.replace(plan, **settings)
        place = tmp_path / f"nodes-{len(runs)}"
        place.mkdir()
        runs.append(AccountRun(template, place, plan, tls=tls))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


@pytest.fixture
def same_bits(template: Template) -> Callable[[AccountRun], None]:
    """Give a check: the run's log and last checkpoint have the template's bits."""

    def check(run: AccountRun) -> None:
        log = run.log()
        commits = log.commits()
        assert [commit.sum_hash for commit in commits] == template.commits
        for commit in commits:
            counted = sorted(shard for shards in commit.shards.values() for shard in shards)
            assert counted == list(range(SHARDS))
        step, state_hash, _ = log.checkpoints()[-1]
        assert (step, state_hash) == (len(commits), template.state_hash)

    return check
