"""The README's example runs as it stands there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import luma_constructs
from tests.support.cdk import ROOT

README = (ROOT / "luma_constructs/README.md").read_text(encoding="utf-8")


def test_every_construct_that_is_named_exists():
    table = README.partition("| construct | gives |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([A-Z]\w+)`", table))
    assert len(named) > 10
    assert named <= set(luma_constructs.__all__)


def test_the_example_synthesizes():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    folder = Path(names["app"].synth().directory)
    try:
        template = json.loads((folder / "Training.template.json").read_text())
    finally:
        shutil.rmtree(folder)
    kinds = [resource["Type"] for resource in template["Resources"].values()]
    assert kinds.count("AWS::AutoScaling::AutoScalingGroup") == 2
