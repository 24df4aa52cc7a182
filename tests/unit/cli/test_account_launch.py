"""Where a job of an account goes, and which options it may have; nothing of AWS is asked here."""

from __future__ import annotations

import pytest

from runtime.cli.account_launch import is_for_account, region_of
from runtime.cli.app import main
from runtime.spec import SpecError

JOB = """
schema: luma/v1
name: tiny
model: {source: "hf://some/model"}
train: {steps: 1, micro_shards: 2, micro_batch: 1, seq_len: 8, optimizer: {lr: 1.0e-3}}
data: {source: "python://pydoc_data.topics"}
resources: {infra: INFRA}
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)

    def make(infra: str):
        path = tmp_path / "job.yaml"
        path.write_text(JOB.replace("INFRA", infra))
        return path

    return make


def test_only_a_job_of_an_account_goes_there(job, tmp_path):
    assert is_for_account(job("aws/us-east-1"))
    assert not is_for_account(job("local"))
    assert not is_for_account(tmp_path / "none.yaml")  # left to whoever says what is wrong


@pytest.mark.parametrize(
    ("infra", "environment", "region"),
    [
        ("aws/us-east-1", None, "us-east-1"),
        ("aws/us-east-1", "eu-west-1", "us-east-1"),
        ("aws/us-*", "us-west-2", "us-west-2"),
        ("aws/us-*", None, None),
        ("[aws/eu-*, aws/us-east-2]", "eu-north-1", "eu-north-1"),
        ("[aws/eu-*, aws/us-east-2]", "us-west-1", "us-east-2"),
    ],
)
def test_the_region_is_the_jobs_else_the_environments(job, monkeypatch, infra, environment, region):
    if environment is not None:
        monkeypatch.setenv("AWS_REGION", environment)
    assert region_of(job(infra)) == region


def test_a_region_outside_the_jobs_is_refused(job, monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with pytest.raises(SpecError, match="does not include eu-west-1"):
        region_of(job("aws/us-*"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--resume", "x", "--stack", "S", "--islands", "2"), "not for --resume"),
        (("--resume", "x", "--stack", "S", "--max-cost", "0"), "a limit above 0"),
        (("--stack", "S"), "expected a job file, or --resume"),
        (("JOB", "--max-cost", "3", "-y"), "a new run has its limit in the job"),
        (("JOB", "--islands", "0", "-y"), "expected at least 1"),
        (("JOB", "--chaos", "kill:0@step=1"), "is not for a run in an account"),
        (("JOB",), "no terminal to ask on"),
    ],
)
def test_options_that_do_not_fit_are_told(job, capsys, words, said):
    path = str(job("aws/us-east-1"))
    code = main(["launch", *(path if word == "JOB" else word for word in words)])
    assert code == 2
    assert said in capsys.readouterr().err
