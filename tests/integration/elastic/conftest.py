"""A prepared job, its undisturbed result, and fleets of real processes over copies of it."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.coordinator.client import read_status
from runtime.coordinator.events import read_events
from runtime.coordinator.log import LOG_FILE, SqliteCommitLog
from runtime.coordinator.plan import RunPlan
from runtime.run.files import link_tree

STEPS = 10
SHARDS = 6
TIMEOUT_S = 90.0
HERE = Path(__file__).parent

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
    name: elastic
    model: {{source: "./model.py:build", dtype: fp32}}
    compile: {{seal: L1, targets: [cpu]}}
    train:
      steps: {STEPS}
      micro_shards: {SHARDS}
      micro_batch: 2
      seq_len: 48
      seed: 3
      optimizer: {{name: adamw, lr: 3.0e-3, weight_decay: 0.1, grad_clip: 1.0}}
      schedule: {{kind: cosine, warmup_steps: 3, min_lr_ratio: 0.1}}
      checkpoint: {{every: {STEPS}, keep: 2}}
    data: {{source: "python://pydoc_data.topics", packing: true, max_samples: 200}}
    resources: {{accelerators: ["cpu:1"], islands: 1, max_workers: 4, threads_per_island: 1}}
    recovery: {{heartbeat_timeout: 1s, max_restarts: 2}}
"""

_UNCHANGING = ("model", "data", "artifact.luma", "signer.pem", "constants.safetensors", "run.json")


@dataclasses.dataclass(frozen=True)
class Template:
    """A finished undisturbed run on one island.

    Attributes:
        folder: its run folder, with the first checkpoint still there.
        state_hash: the hash that every other run must end with.
        commits: the sum hash of every step.
    """

    folder: Path
    state_hash: str
    commits: list[str]


def launch_template(place: Path, luma_home: Path, *, target: str = "cpu") -> Template:
    """Launch the job undisturbed on one island of a target's chips."""
    (place / "model.py").write_text(textwrap.dedent(MODEL))
    job = textwrap.dedent(JOB).replace("targets: [cpu]", f"targets: [{target}]")
    (place / "job.yaml").write_text(job)
    folder = place / "run"
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "runtime.cli", "launch", str(place / "job.yaml")),
            *("--yes", "--json", "--run", str(folder)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "LUMA_HOME": str(luma_home)},
    )
    assert done.returncode == 0, done.stderr
    ended = [event for event in read_events(folder) if event["kind"] == "done"]
    log = SqliteCommitLog(folder / LOG_FILE, read_only=True)
    return Template(folder, ended[-1]["state_hash"], [c.sum_hash for c in log.commits()])


class Fleet:
    """Real processes of one run, started and killed by a test."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.coordinator: subprocess.Popen[bytes] | None = None

    def start_coordinator(self, *, restart: bool = False) -> None:
        """Start the coordinator; with `restart` its islands may be alive."""
        words = ["-m", "runtime.coordinator", "--run", str(self.run_dir)]
        self.coordinator = self._spawn("coordinator", words + ["--restart"] * restart)

    def start_island(
        self,
        number: int,
        *,
        fault: str | None = None,
        slow: float | None = None,
        hold: tuple[int, Path] | None = None,
    ) -> str:
        """Start an island: with a fault at an exact phase, slowed down, or held at a step."""
        name = f"island-{number}"
        tail = ["--run", str(self.run_dir), "--name", name]
        words = ["-m", "runtime.agent", *tail]
        if fault or slow or hold:
            words = [str(HERE / "faulty_island.py")]
            words += ["--fault", fault] if fault else []
            words += ["--slow", str(slow)] if slow else []
            words += ["--hold", str(hold[0]), str(hold[1])] if hold else []
            words += ["--", *tail]
        self.processes[name] = self._spawn(name, words)
        return name

    def _spawn(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        with (self.run_dir / "islands" / f"{name}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, *words], stderr=log, stdout=log)

    def start(
        self, islands: int, *, others: dict[str, Any] | None = None, **first_island: Any
    ) -> None:
        """Start everything; `first_island` is how island-0 is started, `others` the rest."""
        self.start_coordinator()
        for number in range(islands):
            self.start_island(number, **(first_island if number == 0 else others or {}))

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Give the run's events, of one kind if asked."""
        return [e for e in read_events(self.run_dir) if kind in (None, e["kind"])]

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until a condition holds; fail with the logs when it never does."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (value := condition()):
            if time.monotonic() > deadline:
                pytest.fail(f"never came: {what}\n{self.report()}")
            time.sleep(0.02)
        return value

    def wait_for_step(self, step: int) -> None:
        """Wait until a step is committed."""
        self.wait(
            lambda: any(e["step"] >= step for e in self.events("commit")), f"commit of step {step}"
        )

    def wait_done(self) -> dict[str, Any]:
        """Wait for the run's end; give its last event."""
        ends = ("done", "failed", "stopped")
        return self.wait(
            lambda: next((e for e in self.events() if e["kind"] in ends), None), "the end"
        )

    def kill(self, name: str) -> None:
        """SIGKILL an island."""
        self.processes[name].kill()
        self.processes[name].wait()

    def kill_coordinator(self) -> None:
        """SIGKILL the coordinator."""
        assert self.coordinator is not None
        self.coordinator.kill()
        self.coordinator.wait()

    def wait_killed(self, name: str) -> None:
        """Wait until an island's own fault has struck it."""
        self.wait(lambda: self.processes[name].poll() is not None, f"the end of {name}")
        assert self.processes[name].returncode == -signal.SIGKILL

    def status(self) -> dict[str, Any]:
        """Ask the coordinator."""
        return read_status(self.run_dir)

    def report(self) -> str:
        """Give the newest events and the logs."""
        lines = [str(event)[:300] for event in self.events()[-15:]]
        for log in sorted((self.run_dir / "islands").glob("*.log")):
            lines += [f"--- {log.name}", log.read_text()[-1500:]]
        return "\n".join(lines)

    def close(self) -> None:
        """End every process."""
        for process in [*self.processes.values(), self.coordinator]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def make_fleet(template: Template, tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Give a maker of fleets over fresh copies of the template's run."""
    fleets: list[Fleet] = []

    def make(islands: int = 3, **changes: Any) -> Fleet:
        run_dir = tmp_path / f"run-{len(fleets)}"
        (run_dir / "islands").mkdir(parents=True)
        (run_dir / "checkpoints").mkdir()
        for name in _UNCHANGING:
            link_tree(template.folder / name, run_dir / name)
        first = "checkpoints/step-000000"
        link_tree(template.folder / first, run_dir / first)
        plan = dataclasses.replace(
            RunPlan.read(template.folder),
            **{"islands": islands, "checkpoint_every": 4, **changes},
        )
        plan.write(run_dir)
        fleets.append(Fleet(run_dir))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.close()


@pytest.fixture
def same_bits(template: Template) -> Callable[[Fleet], None]:
    """Give a check: the fleet's run ended, with the template's bits and every shard once."""

    def check(fleet: Fleet) -> None:
        end = fleet.wait_done()
        assert end["kind"] == "done", f"{end}\n{fleet.report()}"
        assert end["state_hash"] == template.state_hash
        log = SqliteCommitLog(fleet.run_dir / LOG_FILE, read_only=True)
        commits = log.commits()
        assert [c.sum_hash for c in commits] == template.commits
        for commit in commits:
            counted = sorted(shard for shards in commit.shards.values() for shard in shards)
            assert counted == list(range(SHARDS))

    return check
