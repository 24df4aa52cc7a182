"""`luma compile` for several targets: one artifact, a row a target, one failure leaves the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.artifact import open_artifact
from runtime.cli import main
from runtime.compiler.graph import Graph, GraphPackage, Input, Node, Ref, TensorType
from runtime.compiler.targets import cuda

JOB = """
schema: luma/v1
name: several
model: {source: ./model.py:build}
compile: {seal: L0, targets: [cpu]}
train: {steps: 2, seq_len: 4, micro_batch: 1, micro_shards: 4, optimizer: {lr: 1e-3}}
data: {source: ./data.txt}
"""

ROW = (
    "target", "state", "seconds", "cached", "payload_bytes", "peak_memory_bytes", "flops",
    "bytes_moved", "predicted_step_s", "scrubbed", "plain_forms",
)  # fmt: skip


def package() -> GraphPackage:
    """Give a package of one parameter: the loss is the sum of its squares."""
    weight, scalar = TensorType((64, 64), "float32"), TensorType((), "float32")
    ids = TensorType((1, 4), "int64")
    inputs = (
        Input("w", "param", "w", weight),
        *(Input(key, "batch", key, ids) for key in ("input_ids", "labels", "position_ids")),
        Input("key", "key", "key", TensorType((2,), "int32")),
    )
    nodes = (
        Node("sq", "aten.mul.Tensor", (Ref("w"), Ref("w")), {}, weight),
        Node("loss", "aten.sum.default", (Ref("sq"),), {}, scalar),
        Node("tokens", "aten.sum.default", (Ref("labels"),), {}, TensorType((), "int64")),
        Node("gw", "aten.mul.Tensor", (Ref("w"), 2.0), {}, weight),
    )
    outputs = (("loss_sum", Ref("loss")), ("tokens", Ref("tokens")), ("grad:w", Ref("gw")))
    return GraphPackage({"grad": Graph(inputs, nodes, outputs)}, "0" * 64, seq_len=4)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job whose model is captured already, on a machine without the CUDA compiler."""
    monkeypatch.setenv("LUMA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cuda, "_PLUGIN", "no_such_package")
    captured = package()

    def prepare(_job, _overrides, folder, **_options):
        folder.graph_file.write_bytes(captured.to_bytes())
        report = {"package_digest": captured.digest(), "parameters": 4096, "text": "captured"}
        return {"capture": report}

    monkeypatch.setattr("runtime.run.prepare.prepare", prepare)
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def compile_job(job: Path, capsys: pytest.CaptureFixture[str], *arguments: str):
    """Run the command; give its exit code, its JSON and what it said."""
    code = main(["compile", str(job), *arguments, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_the_targets_that_compile_are_in_one_artifact_and_a_failure_is_told(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, err = compile_job(job, capsys, "--target", "cpu,cuda-sm90", "--target", "cpux2")
    assert code == 1
    rows = {row["target"]: row for row in document["targets"]}
    assert list(rows) == ["cpu", "cuda-sm90", "cpux2"]
    for row in rows.values():
        assert set(ROW) <= set(row)
    assert [row["state"] for row in rows.values()] == ["compiled", "failed", "compiled"]
    assert "no_such_package" in rows["cuda-sm90"]["error"]
    assert "luma: cuda-sm90: target 'cuda-sm90': its compiler" in err
    assert rows["cuda-sm90"]["peak_memory_bytes"] is None
    one, two = rows["cpu"], rows["cpux2"]
    assert one["scrubbed"] is True
    assert one["plain_forms"] == []
    assert one["predicted_step_s"] > 0
    assert one["flops"] > 0
    assert two["peak_memory_bytes"] < one["peak_memory_bytes"]

    manifest = open_artifact(job.parent / document["artifact"], trusted_signer=None).manifest
    assert manifest.targets == ("cpu", "cpux2")
    for name in manifest.targets:
        for figure in ("peak_memory_bytes", "flops", "bytes_moved", "predicted_step_s"):
            assert manifest.statistics[f"{name}.{figure}"] == rows[name][figure]
    _, entry = manifest.entry("cpux2")
    assert entry.size == two["payload_bytes"]
    assert {cost.chips for cost in entry.description.programs.values()} == {2}

    code, document, _ = compile_job(job, capsys, "--target", "cpux2")
    assert code == 0
    (row,) = document["targets"]
    assert (row["state"], row["cached"]) == ("cached", True)


def test_where_every_target_fails_there_is_no_artifact(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, err = compile_job(job, capsys, "--target", "cuda-sm90,cuda-sm80")
    assert (code, document["artifact"]) == (1, None)
    assert [row["state"] for row in document["targets"]] == ["failed", "failed"]
    assert err.count("install luma's extra") == 2
    assert not (job.parent / "several.luma").exists()


def test_a_job_too_large_for_the_chip_says_so_with_numbers(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runtime.plan import Machine

    small = Machine(
        cpu="Tiny", cores=1, memory_available_bytes=1 << 16, flops_per_core=1e9,
        bytes_per_second=1e9,
    )  # fmt: skip
    monkeypatch.setattr("runtime.run.target_report.measure_machine", lambda: small)
    code, document, err = compile_job(job, capsys)
    assert code == 0
    (fit,) = document["targets"][0]["fit"]
    assert (fit["fits"], fit["chip"], fit["memory_bytes"]) == (False, "Tiny", 1 << 16)
    assert "cpu on Tiny: does not fit, needs" in err


def test_an_unknown_target_is_a_usage_mistake(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(job), "--target", "cpu,abacus"]) == 2
    assert "--target: " in (err := capsys.readouterr().err)
    assert "'abacus' is unknown; expected one of cpu, cuda-sm80" in err


def test_without_json_a_table_is_printed(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(job)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["artifact", "several.luma"]
    header, row = out[-2:]
    assert header.split()[:3] == ["TARGET", "STATE", "S"]
    assert row.split()[:2] == ["cpu", "compiled"]
