"""`luma compile --service`, `luma enclave serve` and `metrics`; the capture is done already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from enclave_image.service import jobs
from enclave_image.service.expected import expected_policy
from runtime.artifact import load_or_create_keys, load_public_key, open_artifact
from runtime.cli import main
from runtime.spec import CompileError
from tests.attestation_support.documents import MEASURED
from tests.support.compile_service import PATIENCE_S, Gate, running, short_folder

ROOT = Path(__file__).parents[3]
JOB = """
schema: luma/v1
name: remote
model: {source: ./model.py:build}
compile: {seal: SEAL, targets: [cpu]}
train: {steps: 2, seq_len: 4, micro_batch: 1, micro_shards: 4, optimizer: {lr: 1e-3}}
data: {source: ./data.txt}
"""
PCRS = {f"PCR{i}": value.hex() for i, value in MEASURED.items()}


@pytest.fixture
def job(tmp_path, monkeypatch, package):
    """A job whose model is captured already."""
    monkeypatch.setenv("LUMA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def prepare(_job, _overrides, folder, **_options):
        folder.graph_file.write_bytes(package.to_bytes())
        report = {"package_digest": package.digest(), "parameters": 6303, "text": "captured"}
        return {"capture": report}

    monkeypatch.setattr("runtime.run.prepare.prepare", prepare)
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("SEAL", "L1"))
    return path


@pytest.fixture
def service(rsa_key, compiled, monkeypatch):
    gate = Gate(compiled)
    gate.go.set()
    monkeypatch.setattr(jobs, "compile_package", gate)
    with running(rsa_key) as made:
        yield made


def compile_there(job, service, *words: str) -> int:
    return main(["compile", str(job), "--service", str(service.address), *words])


def test_a_job_is_compiled_there_and_verified_here(job, service, tmp_path, capsys, compiled):
    assert compile_there(job, service, "-o", "m.luma", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["seal"] == "L1 (local service)"
    (row,) = document["targets"]
    assert (row["target"], row["state"]) == ("cpu", "compiled")
    assert row["payload_bytes"] == len(compiled.payload.to_bytes())
    assert row["peak_memory_bytes"] > 0
    signer = load_public_key(Path(document["signer_file"]))
    opened = open_artifact(
        tmp_path / "m.luma", trusted_signer=signer, key=load_or_create_keys().data_key
    )
    assert opened.digest == document["digest"]
    assert opened.manifest.statistics["parameters"] == 6303
    assert main(["verify", "m.luma", "--signer", document["signer_file"]]) == 0
    assert main(["verify", "m.luma"]) == 1  # not signed by this machine


def test_at_l0_nothing_is_sealed(job, service, tmp_path, capsys):
    job.write_text(JOB.replace("SEAL", "L0"))
    assert compile_there(job, service, "--json") == 0
    assert json.loads(capsys.readouterr().out)["seal"] == "L0 (local service)"
    assert open_artifact(tmp_path / "remote.luma", trusted_signer=None).can_read_payloads


def test_the_table_and_the_next_command(job, service, capsys):
    assert compile_there(job, service) == 0
    shown = capsys.readouterr()
    assert "cpu" in shown.out
    assert "luma verify remote.luma --signer remote.signer.pem --leaks" in shown.err


def test_where_every_target_fails_each_is_shown(job, service, monkeypatch, capsys):
    def fail(_package, **_options):
        raise CompileError("op aten.x has no form", remedy="leave it out")

    monkeypatch.setattr(jobs, "compile_package", fail)
    assert compile_there(job, service, "--json") == 1
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["artifact"] is None
    assert document["targets"][0]["state"] == "failed"
    assert "op aten.x has no form" in shown.err


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["--service", "tcp:1"], "expected unix:/path", 1),
        (["--service", "unix:nobody.sock"], "luma enclave serve", 1),
        (["--service", "vsock:16:5005"], "--measurements FILE", 1),
        (["--measurements", "m.json"], "needs --service", 2),
        (["--seal", "L3"], "needs --service", 2),
        (["--service", "unix:s", "--seal", "L3"], "needs --measurements", 2),
        (["--service", "unix:s", "--image", "x"], "needs --measurements", 2),
        (["--service", "unix:s", "--measurements", "no.json"], "no.json", 1),
    ],
)
def test_wrong_options_say_what_to_do(job, words, said, code, capsys):
    assert main(["compile", str(job), *words]) == code
    assert said in capsys.readouterr().err


def test_with_measurements_a_local_service_is_refused(job, service, tmp_path, capsys):
    (tmp_path / "m.json").write_text(
        json.dumps({"schema": "luma/measurements/1", "images": {"one": PCRS}})
    )
    assert compile_there(job, service, "--measurements", "m.json") == 1
    assert "is no enclave" in capsys.readouterr().err
    assert not (tmp_path / "remote.luma").exists()


def test_an_image_is_chosen_by_name(tmp_path):
    path = tmp_path / "m.json"
    document = {"schema": "luma/measurements/1", "images": {}}
    path.write_text(json.dumps(document))
    with pytest.raises(Exception, match="lists no image"):
        expected_policy(path)
    document["images"] = {"one": PCRS}
    path.write_text(json.dumps(document))
    assert expected_policy(path).accepted[0] == {MEASURED[0]}
    document["images"]["two"] = PCRS | {"PCR0": "ab" * 48}
    path.write_text(json.dumps(document))
    with pytest.raises(Exception, match="lists one, two") as caught:
        expected_policy(path)
    assert "--image" in caught.value.remedy
    assert expected_policy(path, "two").accepted[0] == {b"\xab" * 48}
    with pytest.raises(Exception, match="has no image 'three'"):
        expected_policy(path, "three")


def test_metrics_are_printed(service, capsys):
    assert main(["enclave", "metrics", str(service.address)]) == 0
    assert "luma_service_requests_total 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "unix:/nowhere/s"], "does not exist"),
        (["--listen", "unix:s", "--compiles", "0"], "--compiles: 0"),
        (["--listen", "unix:s", "--queue", "1000"], "--queue: 1000"),
    ],
)
def test_serve_refuses_wrong_options(words, said, capsys):
    assert main(["enclave", "serve", *words]) == 2
    assert said in capsys.readouterr().err


def test_serve_runs_until_it_is_ended():
    with short_folder() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "runtime.cli", "enclave", "serve", "--listen", "unix:s"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        lines = [process.stderr.readline() for _ in range(3)]
        assert lines[0] == "L1 (local service) on unix:s; Ctrl-C ends it\n"
        assert [json.loads(line)["event"] for line in lines[1:]] == ["listening", "started"]
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=PATIENCE_S)[1]
        assert json.loads(rest)["event"] == "stopped"
        assert process.returncode == 0
