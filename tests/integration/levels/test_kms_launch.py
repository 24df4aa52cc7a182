"""A whole job under a KMS key: the launcher seals as one role, each island opens as another.

Processes are the user's own: `luma launch` and the islands that it starts. KMS is emulated on
loopback, and evaluates the policy that `luma_constructs` makes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    def build():
        return Qwen3ForCausalLM(Qwen3Config(
            vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, head_dim=16,
            max_position_embeddings=64, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=256, pad_token_id=None))
"""

JOB = """
    schema: luma/v1
    name: kms
    model: {{source: "./model.py:build", dtype: fp32}}
    compile: {{targets: [cpu], kms: {{key_arn: "{arn}", customer: {customer}}}}}
    train:
      steps: 3
      micro_shards: 2
      micro_batch: 1
      seq_len: 32
      optimizer: {{name: adamw, lr: 3.0e-3}}
    data: {{source: "python://pydoc_data.topics", packing: true, max_samples: 20}}
    resources: {{accelerators: ["cpu:1"], islands: 1}}
    recovery: {{heartbeat_timeout: 60s, max_restarts: 0}}
    envs: {{AWS_ACCESS_KEY_ID: {islands}}}
"""


class Place:
    """A folder with a job of a customer, and its own keys."""

    def __init__(self, path: Path, made) -> None:
        self.path, self.made = path, made
        (path / "model.py").write_text(textwrap.dedent(MODEL))

    def luma(self, *words: str | Path, role: str) -> subprocess.CompletedProcess[str]:
        """Run the command line with a role's credentials."""
        environment = {
            **os.environ,
            "LUMA_HOME": str(self.path / "home"),
            "AWS_ENDPOINT_URL_KMS": self.made.cloud.url,
            "AWS_ACCESS_KEY_ID": self.made.roles[role],
        }
        return subprocess.run(
            [sys.executable, "-m", "runtime.cli", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
        )

    def launch(self, *, islands: str) -> subprocess.CompletedProcess[str]:
        """Launch the job; its islands take a role of their own."""
        text = textwrap.dedent(JOB).format(
            arn=self.made.arn, customer=self.made.customer, islands=self.made.roles[islands]
        )
        (self.path / "job.yaml").write_text(text)
        run = self.path / "run"
        return self.luma(
            "launch", self.path / "job.yaml", "--yes", "--json", "--run", run, role="sealer"
        )


@pytest.fixture
def place(tmp_path, tenant) -> Place:
    return Place(tmp_path, tenant("L1"))


def asked(made) -> list[str]:
    """Give what this customer's key was asked."""
    return [
        operation
        for operation, request in made.cloud.app.requests
        if request["EncryptionContext"]["luma:customer"] == made.customer
    ]


def test_a_job_trains_on_an_artifact_that_kms_opens(place):
    done = place.launch(islands="agent")
    assert done.returncode == 0, done.stderr
    certificate = json.loads(done.stdout)["certificate"]
    assert (certificate["level"], certificate["seal"]) == ("exact", "L1 (KMS)")
    first, *others = asked(place.made)
    assert (first, set(others)) == ("GenerateDataKey", {"Decrypt"})

    run = place.path / "run"
    plan = json.loads((run / "plan.json").read_text())
    reference = {"key_arn": place.made.arn, "customer": place.made.customer}
    assert plan["kms"] == reference | {"instance_role": False}
    assert plan["key_file"] is None

    verify = ("verify", run, "--customer", place.made.customer, "--json")
    found = place.luma(*verify, role="agent")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["label"] == "L1 (KMS)"
    assert place.luma(*verify, role="other").returncode == 1


def test_islands_that_may_not_open_end_the_run_with_the_reason(place):
    done = place.launch(islands="other")
    assert done.returncode == 1
    logs = "".join(path.read_text() for path in (place.path / "run").rglob("island-*.log"))
    assert "kms Decrypt: the key's policy does not allow it" in logs
