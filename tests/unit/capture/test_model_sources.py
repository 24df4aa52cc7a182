"""Folders, hubs and functions as sources of a model; and what is refused before it is loaded."""

import shutil
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch

from runtime.compiler.capture import load_model
from runtime.spec import CaptureError

PLAIN = """
import torch
from neighbour import WIDTH

class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(10, WIDTH)
        self.head = torch.nn.Linear(WIDTH, 10)
    def forward(self, input_ids):
        return self.head(self.embedding(input_ids))

def build():
    return Tiny()

def number():
    return 3

def fail():
    raise ValueError("no weights today")
"""


@pytest.fixture
def folder(build, tmp_path):
    place = tmp_path / "model"
    build("llama").save_pretrained(place)
    return place


@pytest.fixture
def script(tmp_path):
    (tmp_path / "mine.py").write_text(PLAIN)
    (tmp_path / "neighbour.py").write_text("WIDTH = 6\n")
    return tmp_path


def test_a_folder_is_loaded_relative_to_the_job_file(folder, build):
    loaded = load_model("model", folder.parent)
    assert loaded.hf_dir == folder
    assert loaded.tokenizer is None
    expected = build("llama").state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in loaded.model.state_dict().items())


def test_a_folder_s_weights_come_in_float32(build, tmp_path):
    build("llama").to(torch.bfloat16).save_pretrained(tmp_path / "model")
    loaded = load_model("model", tmp_path)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}


def test_pickled_weights_are_refused(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(CaptureError, match=r"pickle \(pytorch_model.bin\)") as caught:
        load_model("model", folder.parent)
    assert "save_pretrained" in caught.value.diagnostics()


def test_folders_that_are_no_models_are_refused(folder):
    with pytest.raises(CaptureError, match="is not a folder"):
        load_model("nowhere", folder.parent)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CaptureError, match=r"no \*.safetensors"):
        load_model("model", folder.parent)
    (folder / "config.json").unlink()
    with pytest.raises(CaptureError, match=r"no config.json"):
        load_model("model", folder.parent)


def test_broken_weights_and_configs_are_refused(folder):
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:1000])
    with pytest.raises(CaptureError, match="cannot be loaded"):
        load_model("model", folder.parent)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text('{"model_type": "never heard of"}')
    with pytest.raises(CaptureError, match="cannot be loaded"):
        load_model("model", folder.parent)


def test_missing_weights_are_refused(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CaptureError, match=r"lacks 1 of the model's weights.*model.norm.weight"):
        load_model("model", folder.parent)


def test_a_function_builds_the_same_model_from_the_same_seed(script):
    one = load_model("mine.py:build", script, seed=3)
    again = load_model("mine.py:build", script, seed=3)
    other = load_model("mine.py:build", script, seed=4)
    assert (one.hf_dir, one.tokenizer) == (None, None)
    assert torch.equal(one.model.head.weight, again.model.head.weight)
    assert not torch.equal(one.model.head.weight, other.model.head.weight)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("other.py:build", "there is no file 'other.py'"),
        ("mine.py:missing", "has no function 'missing'"),
        ("mine.py:number", "returned int"),
        ("mine.py:fail", "raised ValueError in line 20: no weights today"),
    ],
)
def test_functions_that_give_no_model_are_refused(script, source, message):
    with pytest.raises(CaptureError, match=message):
        load_model(source, script)


def test_a_file_that_does_not_parse_names_the_error(script):
    (script / "mine.py").write_text("def build(:\n")
    with pytest.raises(CaptureError, match="raised SyntaxError"):
        load_model("mine.py:build", script)


def test_an_adapter_is_the_same_for_the_same_seed(folder):
    adapter = SimpleNamespace(r=2, alpha=4.0, dropout=0.0, target_modules=["q_proj"])
    one, again = (
        load_model("model", folder.parent, seed=5, adapter=adapter).model for _ in range(2)
    )
    trained = {n: p for n, p in one.named_parameters() if p.requires_grad}
    assert len(trained) == 4
    for name, value in again.named_parameters():
        if name in trained:
            assert torch.equal(value, trained[name])


def test_offline_hub_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CaptureError, match="hub cannot be reached") as caught:
        load_model("hf://someone/something@main", tmp_path)
    assert "local Hugging Face folder" in caught.value.diagnostics()


def test_a_hub_s_name_and_revision_reach_the_hub(folder, tmp_path, monkeypatch):
    seen = {}

    def download(name, *, revision, allow_patterns):
        seen.update(name=name, revision=revision, patterns=allow_patterns)
        return str(shutil.copytree(folder, tmp_path / "snapshot"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    loaded = load_model("hf://someone/something", tmp_path, revision="v2")
    assert (seen["name"], seen["revision"]) == ("someone/something", "v2")
    assert "*.safetensors" in seen["patterns"]
    assert not [p for p in seen["patterns"] if p.endswith((".bin", ".py"))]
    assert loaded.hf_dir == tmp_path / "snapshot"


def test_other_dtypes_are_refused(folder):
    with pytest.raises(CaptureError, match="'fp8'; expected one of fp32, bf16"):
        load_model("model", folder.parent, dtype="fp8")
