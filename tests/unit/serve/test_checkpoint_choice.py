"""Which folder is served, and what a folder that cannot be served is told."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from blake3 import blake3

from runtime.serve import find_checkpoint, serve
from runtime.serve.checkpoint import read_servable
from runtime.spec import CheckpointError, ServeError


def whole(folder: Path) -> Path:
    (folder / "luma").mkdir(parents=True)
    data = b"weights"
    (folder / "model.safetensors").write_bytes(data)
    record = {"size_bytes": len(data), "blake3": blake3(data).hexdigest()}
    manifest = {"format": 1, "files": {"model.safetensors": record}}
    (folder / "luma" / "manifest.json").write_text(json.dumps(manifest))
    return folder


def servable(folder: Path, **generation: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_the_newest_whole_checkpoint_is_found_by_number(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    whole(root / "step-000009")
    newest = whole(root / "step-1000000")
    whole(root / ".step-2000000.tmp")
    (root / "step-3000000").mkdir()  # no manifest: not whole
    assert find_checkpoint(tmp_path) == newest


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "manifest"])
def test_a_newer_checkpoint_that_is_not_as_its_manifest_says_is_passed_over(
    tmp_path: Path, damage: str
) -> None:
    older = whole(tmp_path / "checkpoints" / "step-000009")
    newer = whole(tmp_path / "checkpoints" / "step-000010")
    assert find_checkpoint(tmp_path) == newer
    weights = newer / "model.safetensors"
    if damage == "flipped":
        weights.write_bytes(b"weightz")
    elif damage == "cut":
        weights.write_bytes(b"weight")
    elif damage == "gone":
        weights.unlink()
    else:
        (newer / "luma" / "manifest.json").write_text('{"files": {"../x": {}}}')
    assert find_checkpoint(tmp_path) == older
    (older / "luma" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no whole checkpoint") as failure:
        find_checkpoint(tmp_path)
    assert "step-000010: " in failure.value.message


def test_a_model_folder_is_itself_the_checkpoint(tmp_path: Path) -> None:
    folder = servable(tmp_path / "model")
    assert find_checkpoint(folder) == folder


def test_a_run_without_a_whole_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        find_checkpoint(tmp_path)
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        find_checkpoint(tmp_path)


def test_a_models_own_defaults_are_read(tmp_path: Path) -> None:
    read = read_servable(servable(tmp_path / "a", temperature=0.2, top_p=0.9, top_k=20))
    assert (read.temperature, read.top_p, read.top_k) == (0.2, 0.9, 20)
    plain = read_servable(servable(tmp_path / "b"))
    assert (plain.temperature, plain.top_p, plain.top_k) == (1.0, 1.0, 0)
    assert not plain.has_chat_template
    (tmp_path / "b" / "chat_template.jinja").write_text("x")
    assert read_servable(tmp_path / "b").has_chat_template


def test_a_folder_that_cannot_be_served_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="is not a folder") as absent:
        read_servable(tmp_path / "none")
    assert absent.value.exit_code == 2
    with pytest.raises(ServeError, match=r"config.json, \*.safetensors, tokenizer.json missing"):
        read_servable(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ServeError, match="LoRA") as adapter:
        read_servable(tmp_path)
    assert "merge" in adapter.value.diagnostics()
    broken = servable(tmp_path / "broken")
    (broken / "config.json").write_text("{")
    with pytest.raises(ServeError, match="is not JSON"):
        read_servable(broken)


def test_a_port_in_use_and_an_unknown_back_end_are_usage_errors(tmp_path: Path) -> None:
    folder = servable(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServeError, match="is in use") as failure:
            serve(folder, model_name="m", host="127.0.0.1", port=port)
    assert failure.value.exit_code == 2
    with pytest.raises(ServeError, match="expected one of transformers"):
        serve(folder, model_name="m", host="127.0.0.1", port=0, back_end="other")
