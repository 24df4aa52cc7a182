"""`luma check JOB --target T`: what is rewritten and what is missing, without the target's compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.cli import main
from runtime.compiler.graph import Graph, GraphPackage, Input, Node, Ref, TensorType
from runtime.run import build, prepare

JOB = """\
schema: luma/v1
name: checked
model: {source: ./model, dtype: fp32}
compile: {targets: [cpu]}
train: {steps: 2, micro_shards: 4, micro_batch: 1, seq_len: 4, optimizer: {name: adamw, lr: 1.0e-3}}
data: {source: ./data}
"""
BATCH = TensorType((1, 4), "int64")


def package(op: str) -> GraphPackage:
    """Give a package whose loss is the sum of a function of one parameter."""
    weight, scalar = TensorType((3,), "float32"), TensorType((), "float32")
    inputs = (
        Input("w", "param", "w", weight),
        *(Input(key, "batch", key, BATCH) for key in ("input_ids", "labels", "position_ids")),
        Input("key", "key", "key", TensorType((2,), "int32")),
    )
    nodes = (
        Node("f", op, (Ref("w"),), {}, weight, "model.layers.0.act"),
        Node("loss", "aten.sum.default", (Ref("f"),), {}, scalar),
        Node("tokens", "aten.sum.default", (Ref("labels"),), {}, TensorType((), "int64")),
    )
    outputs = (("loss_sum", Ref("loss")), ("tokens", Ref("tokens")), ("grad:w", Ref("f")))
    graph = Graph(inputs, nodes, outputs)
    return GraphPackage({"grad": graph}, config_digest="0" * 64, seq_len=4)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job file; its capture is `captured`'s."""
    monkeypatch.setenv("LUMA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no neuronx-cc, wherever this runs
    path = tmp_path / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return path


def captured(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """Put a package in the place of a capture."""

    def stage(_job: Path, _overrides: Any, folder: Any, **_options: Any) -> dict[str, Any]:
        folder.graph_file.write_bytes(package(op).to_bytes())
        return {"capture": {"text": "captured"}}

    # Loaded before the replacement: a module that takes the function's name while it is replaced
    # would keep the replacement for the rest of the process.
    assert build.prepare is prepare.prepare
    monkeypatch.setattr(prepare, "prepare", stage)


def test_a_rewritten_op_is_named_with_what_replaces_it(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    captured(monkeypatch, "aten.erf.default")
    assert main(["check", str(job), "--target", "trn2,trn1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert found["unsupported"] == []
    assert [(i["target"], i["op"], i["by"]) for i in found["decomposed"]] == [
        ("trn2", "aten.erf.default", "activation.erf"),
        ("trn1", "aten.erf.default", "activation.erf"),
    ]
    assert found["decomposed"][0]["modules"] == ["model.layers.0.act"]
    details = [item["detail"] for item in found["checks"] if item["check"] == "compile"]
    assert details[0].startswith("trn2: not compiled, its compiler 'neuronx-cc' is not installed")


def test_an_op_that_no_target_has_is_named_for_each(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    captured(monkeypatch, "aten.erfinv.default")
    assert main(["check", str(job), "--target", "trn2,cpu", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert [(i["target"], i["op"], i["modules"]) for i in found["unsupported"]] == [
        ("trn2", "aten.erfinv.default", ["model.layers.0.act"]),
        ("cpu", "aten.erfinv.default", ["model.layers.0.act"]),
    ]
    detail = found["checks"][-1]["detail"]
    assert "trn2: aten.erfinv.default in model.layers.0.act: no lowering" in detail
    assert "docs/how-to/add-a-decomposition.md" in detail


def test_an_unknown_target_is_a_usage_mistake(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(job), "--target", "abacus", "--json"]) == 2
    assert "--target: compile.targets: 'abacus' is unknown" in capsys.readouterr().out
