"""What a node installs is what its processes import: tried with everything else blocked."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement

from luma_constructs._bundle import _requirements
from runtime.agent.node.work_stage import MODULES
from tests.support.cdk import ROOT

BLOCKED = """
import importlib, json, sys
blocked, modules = json.load(sys.stdin)
blocked = frozenset(blocked)

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"a node has no {name}", name=name)

sys.meta_path.insert(0, Blocker())
for module in modules:
    importlib.import_module(module)
print(len(sys.modules))
"""

DAEMON = [
    "runtime.agent.node.__main__",
    "runtime.agent.node.daemon",
    "runtime.agent.node.work_island",
    "runtime.agent.node.work_coordinate",
    "runtime.agent.node.work_stage",
]


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(lines):
    """The distributions that these requirements install here, with their own requirements."""
    found, waiting = set(), [Requirement(line) for line in lines]
    while waiting:
        one = waiting.pop()
        name = canonical(one.name)
        if name in found:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            extras = one.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(needed)
    return found


def node_lines():
    text = _requirements(ROOT, ROOT / "luma_constructs", "cpu")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def run_blocked(modules):
    allowed = closure(node_lines())
    assert {"jax", "boto3", "numpy"} <= allowed
    blocked = [
        top
        for top, owners in packages_distributions().items()
        if not ({canonical(owner) for owner in owners} & allowed)
        and top not in ("runtime", "enclave_image", "luma_constructs")
    ]
    assert {"torch", "transformers", "aws_cdk", "uvicorn"} <= set(blocked)
    return subprocess.run(
        [sys.executable, "-c", BLOCKED], input=json.dumps([blocked, modules]), cwd=ROOT,
        capture_output=True, text=True, timeout=110, check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip


@pytest.mark.parametrize(
    "modules",
    [
        DAEMON,
        ["runtime.agent.__main__", "runtime.agent.start"],
        ["runtime.coordinator.__main__", "runtime.coordinator.server"],
        [MODULES["compile"]],
        [MODULES["export"]],
    ],
    ids=["daemon", "island", "coordinator", "compile", "export"],
)
def test_a_node_has_what_it_imports(modules):
    done = run_blocked(modules)
    assert done.returncode == 0, done.stderr


def test_the_blocker_blocks():
    done = run_blocked(["torch"])
    assert done.returncode == 1
    assert "a node has no torch" in done.stderr
