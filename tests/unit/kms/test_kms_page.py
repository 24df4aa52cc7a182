"""docs/reference/kms.md says what is so: its example runs, its tables are complete."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from runtime.artifact.kms import AwsAccess, Reason
from runtime.artifact.kms.errors import _BY_CODE

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "kms.md").read_text(encoding="utf-8")


def test_every_reason_stands_in_the_table():
    table = PAGE.partition("| reason | when |")[2].partition("\n\n")[0]
    listed = re.findall(r"`([a-z]+)`", "".join(row.split("|")[1] for row in table.split("\n")[2:]))
    assert sorted(listed) == sorted(get_args(Reason))
    assert {refusal.reason for refusal in _BY_CODE.values()} <= set(get_args(Reason))


def test_the_policy_example_runs(tmp_path):
    from luma_constructs.key_policy import SCHEMA

    example = re.search(r"```python\n(import json.*?)```", PAGE, re.DOTALL)
    registers = {f"PCR{i}": f"{i}a" * 48 for i in (0, 1, 2)}
    written = {"schema": SCHEMA, "images": {"compiler-cpu": registers}}
    (tmp_path / "measurements.json").write_text(json.dumps(written))
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{example[1]}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path, check=True, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert "0a" * 48 in done.stdout
    assert json.loads(done.stdout)["Version"] == "2012-10-17"


@pytest.mark.parametrize(
    ("said", "field", "value"),
    [
        ("attempts (3:", "attempts", 3),
        ("5 s to connect", "connect_timeout_s", 5.0),
        ("10 s to read", "read_timeout_s", 10.0),
        ("only with `instance_role=True`", "instance_role", False),
    ],
)
def test_defaults_are_those_of_the_page(said, field, value):
    assert said in PAGE
    assert getattr(AwsAccess(), field) == value
