"""`luma offers JOB`: rows, the choice, its reasons, where figures come from, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.artifact import load_or_create_keys, write_artifact
from runtime.artifact.program import BlockTable, Program, TargetPayload, TensorSpec
from runtime.cli import main
from runtime.compiler.graph import Graph, GraphPackage, Input, Node, Ref, TensorType
from runtime.run import build, prepare

JOB = """\
schema: luma/v1
name: priced
model: {source: ./model, dtype: fp32}
compile: {targets: [cpu]}
train: {steps: 200, micro_shards: 4, micro_batch: 1, seq_len: 4, optimizer: {lr: 1.0e-3}}
data: {source: ./data}
resources: {accelerators: ["cpu:1"], infra: aws/us-east-1, max_workers: 2}
"""
MIB = 1 << 20


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job file, in a home of its own."""
    monkeypatch.setenv("LUMA_HOME", str(tmp_path / "home"))
    path = tmp_path / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return path


@pytest.fixture
def artifact(job: Path, tmp_path: Path) -> Path:
    """An artifact whose public figures are those of a job that does something."""
    path = tmp_path / "job.luma"
    figures = {"peak_memory_bytes": 900 * MIB, "flops": 4e12, "bytes_moved": 1e9}
    write_artifact(
        path,
        {"cpu": payload()},
        level="L1",
        signing_key=load_or_create_keys().signing_key,
        data_key=load_or_create_keys().data_key,
        graph_digest="0" * 64,
        statistics={f"cpu.{name}": value for name, value in figures.items()},
        versions={},
    )
    return path


def payload() -> TargetPayload:
    """Programs that only an artifact's writer looks at."""
    weight = TensorSpec(role="param", name="w", shape=(4096,), dtype="float32")
    programs = {
        name: Program(
            name=name, inputs=(weight,), outputs=(), donated=(), executable=b"x",
            peak_memory_bytes=1, flops=1.0, bytes_moved=1.0,
        )
        for name in ("grad", "apply")
    }  # fmt: skip
    return TargetPayload(
        target="cpu", programs=programs, blocks=BlockTable(block_size=4096, rows=(("w", 0, 1),)),
        cpu_name="", cpu_features=(), scrubbed=False,
    )  # fmt: skip


def document(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    """Run `luma offers` and give its JSON."""
    assert main(["offers", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_an_artifacts_public_figures_are_enough_without_its_key(job, artifact, capsys) -> None:
    found = document(capsys, str(job), "--artifact", str(artifact))
    chosen = [row for row in found["offers"] if row["chosen"]]
    assert chosen
    for row in found["offers"]:
        assert row["reason"]
        if row["fits"]:
            assert row["step_s"] > 0
    assert all(row["reason"].startswith("chosen: ") for row in chosen)
    choice = found["choice"]
    assert choice["cost_usd"] == pytest.approx(choice["usd_per_hour"] * choice["hours"])
    assert "the exchange between islands is not in the prediction" in choice["notes"]
    assert found["error"] is None


def test_the_table_names_where_prices_and_interruptions_are_from(job, artifact, capsys) -> None:
    assert main(["offers", str(job), "--artifact", str(artifact)]) == 0
    shown = capsys.readouterr()
    head, *rows = shown.out.splitlines()
    assert head.split()[:4] == ["#", "INFRA", "INSTANCE", "ACCELERATORS"]
    assert any(line.startswith(("1x ", "2x ")) and "chosen: " in line for line in rows)
    assert "prices: the catalogue that comes with Luma: us-east-1, of " in shown.err
    assert "not on this type" in shown.err
    assert "more; --all shows them" in shown.err
    assert main(["offers", str(job), "--artifact", str(artifact), "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > len(rows) + 1


def test_nothing_is_predicted_where_nothing_is_compiled(job, capsys) -> None:
    found = document(capsys, str(job), "--no-compile")
    assert found["choice"]["hours"] is None
    assert {row["fits"] for row in found["offers"]} == {None}


def test_a_limit_that_nothing_keeps_ends_with_1_and_all_rows(job, artifact, capsys) -> None:
    job.write_text(JOB.replace("max_workers: 2", "max_workers: 2, max_price: 0.01/h"))
    assert main(["offers", str(job), "--artifact", str(artifact), "--json"]) == 1
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["choice"] is None
    assert "resources.max_price: no choice of offers keeps it" in found["error"]
    assert "remedy: resources.max_price: 0." in shown.err
    assert not any(row["chosen"] for row in found["offers"])


def test_a_demanded_level_and_other_places_are_options(job, artifact, capsys) -> None:
    words = [str(job), "--artifact", str(artifact)]
    found = document(capsys, *words, "--require", "L3")
    assert all(row["seal"] == "L3" for row in found["offers"] if row["chosen"])
    elsewhere = document(capsys, *words, "--infra", "aws/eu-west-1,aws/us-east-1")
    assert {row["infra"] for row in elsewhere["offers"]} == {"aws/eu-west-1", "aws/us-east-1"}


def test_a_local_job_has_this_machine_for_nothing(job, artifact, capsys) -> None:
    found = document(capsys, str(job), "--artifact", str(artifact), "--infra", "local")
    (row,) = found["offers"]
    assert (row["infra"], row["usd_per_hour"], row["purchase"]) == ("local", 0.0, "owned")
    assert found["choice"]["cost_usd"] == 0.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--artifact", "a.luma", "--no-compile"], "exclude each other"),
        (["--artifact", "absent.luma"], "cannot be read"),
        (["--infra", "mars"], "'mars' is no place"),
        (["--infra", "aws/mars-*", "--no-compile"], "matches no region that the catalogue knows"),
    ],
)
def test_mistakes_are_named(job, capsys, words, message) -> None:
    assert main(["offers", str(job), *words]) in {1, 2}
    assert message in capsys.readouterr().err


def test_an_unknown_accelerator_is_refused_with_a_hint(job, capsys) -> None:
    job.write_text(JOB.replace("cpu:1", "H1000:8"))
    assert main(["offers", str(job), "--no-compile"]) == 2
    assert "did you mean h100" in capsys.readouterr().err


def test_an_artifact_without_figures_is_refused(job, tmp_path, capsys) -> None:
    path = tmp_path / "bare.luma"
    write_artifact(
        path, {"cpu": payload()}, level="L0", signing_key=load_or_create_keys().signing_key,
        data_key=None, graph_digest="0" * 64, statistics={}, versions={},
    )  # fmt: skip
    assert main(["offers", str(job), "--artifact", str(path)]) == 2
    assert "carries no figures of its targets" in capsys.readouterr().err


def test_the_job_is_compiled_where_no_artifact_is_given(job, monkeypatch, capsys) -> None:
    weight, scalar = TensorType((3,), "float32"), TensorType((), "float32")
    batch = TensorType((1, 4), "int64")
    inputs = (
        Input("w", "param", "w", weight),
        *(Input(key, "batch", key, batch) for key in ("input_ids", "labels", "position_ids")),
        Input("key", "key", "key", TensorType((2,), "int32")),
    )
    nodes = (
        Node("f", "aten.exp.default", (Ref("w"),), {}, weight, "model.act"),
        Node("loss", "aten.sum.default", (Ref("f"),), {}, scalar),
        Node("tokens", "aten.sum.default", (Ref("labels"),), {}, TensorType((), "int64")),
    )
    outputs = (("loss_sum", Ref("loss")), ("tokens", Ref("tokens")), ("grad:w", Ref("f")))
    package = GraphPackage(
        {"grad": Graph(inputs, nodes, outputs)}, config_digest="0" * 64, seq_len=4
    )

    def stage(_job: Path, _overrides: Any, folder: Any, **_options: Any) -> dict[str, Any]:
        folder.graph_file.write_bytes(package.to_bytes())
        return {"capture": {"text": "captured"}}

    # Loaded before the replacement: a module that takes the function's name while it is replaced
    # would keep the replacement for the rest of the process.
    assert build.prepare is prepare.prepare
    monkeypatch.setattr(prepare, "prepare", stage)
    job.write_text(JOB.replace("[cpu]", "[cpu, trn2]"))
    assert main(["offers", str(job), "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert "trn2: its compiler" in shown.err
    assert {row["fits"] for row in found["offers"] if row["target"] == "cpu"} == {True}
    assert found["choice"]["cost_usd"] > 0


def test_the_catalogue_is_shown_by_chip_target_or_type(job, capsys) -> None:
    assert main(["catalogue", "show", "cuda-sm90", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["accelerators"]
    assert {row["chip"] for row in rows} == {"H100", "H200"}
    assert main(["catalogue", "show", "c7i.8xlarge"]) == 0
    shown = capsys.readouterr()
    assert "recalled: memory_bandwidth_tb_s" in shown.out
    assert "of 2026-07-20" in shown.err
    assert main(["catalogue", "show", "abacus"]) == 2
    assert "'abacus' is not in the catalogue" in capsys.readouterr().err
