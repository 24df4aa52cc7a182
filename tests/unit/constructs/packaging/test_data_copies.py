"""The data that reaches the constructs as files: equal to what the runtime and the image have."""

from __future__ import annotations

import tomllib

import pytest

from tests.support.cdk import ROOT

COPIES = {
    "accelerators.json": "runtime/spec/accelerators.json",
    "job.schema.json": "runtime/spec/job.schema.json",
    "measurements.json": "enclave_image/measurements.json",
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_equal_to_its_original(name):
    original = ROOT / COPIES[name]
    copy = ROOT / "luma_constructs/data" / name
    assert copy.read_bytes() == original.read_bytes(), f"cp {COPIES[name]} luma_constructs/data/"


def test_the_constructs_need_the_cdk_and_nothing_else():
    project = tomllib.loads((ROOT / "luma_constructs/pyproject.toml").read_text())["project"]
    names = [requirement.partition(">=")[0] for requirement in project["dependencies"]]
    assert names == ["aws-cdk-lib", "constructs"]
    assert "optional-dependencies" not in project


def test_both_distributions_ask_for_the_same_cdk():
    constructs = tomllib.loads((ROOT / "luma_constructs/pyproject.toml").read_text())["project"]
    luma = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(constructs["dependencies"]) <= set(luma["optional-dependencies"]["cdk"])
    assert constructs["version"] == luma["version"]
