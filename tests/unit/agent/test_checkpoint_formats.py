"""Any checkpoint loads in transformers, or in peft, as it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.numpy import load_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from runtime.agent.checkpoint import load_checkpoint, write_checkpoint
from runtime.agent.checkpoint_layout import state_dtype
from runtime.agent.state import initial_state
from runtime.spec import CheckpointError

JOB = "job"


def llama(*, tied: bool) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config)


def gpt2() -> PreTrainedModel:
    config = GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    return GPT2LMHeadModel(config)


MODELS = {
    "llama-tied": lambda: llama(tied=True),
    "llama-untied": lambda: llama(tied=False),
    "gpt2": gpt2,
}


def params_of(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {
        name: parameter.detach().numpy()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def logits(model: torch.nn.Module) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(input_ids=torch.arange(12).reshape(2, 6)).logits


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("max_file_bytes", [2_000_000_000, 6_000], ids=["one-file", "index"])
@pytest.mark.parametrize("source_dtype", ["bfloat16", None])
def test_from_pretrained_loads_a_checkpoint(
    tmp_path: Path, kind: str, max_file_bytes: int, source_dtype: str | None
) -> None:
    torch.manual_seed(1)
    model = MODELS[kind]()
    files = tmp_path / "model"
    model.save_pretrained(files)
    config = json.loads((files / "config.json").read_text())
    # A config that says bfloat16 would have transformers round the float32 weights.
    config["torch_dtype"] = source_dtype
    (files / "config.json").write_text(json.dumps(config))
    state_dtype(files, "float32")
    (files / "tokenizer_config.json").write_text("{}")
    info = write_checkpoint(
        tmp_path / "checkpoints",
        initial_state(params_of(model), n_blocks=3),
        job_digest=JOB,
        model_files=files,
        max_file_bytes=max_file_bytes,
        durable=False,
    )
    loaded, report = AutoModelForCausalLM.from_pretrained(info.path, output_loading_info=True)
    assert not report["unexpected_keys"]
    assert not report["missing_keys"]
    assert loaded.dtype == torch.float32
    assert torch.equal(logits(loaded), logits(model))
    assert (info.path / "tokenizer_config.json").read_text() == "{}"
    assert (info.path / "generation_config.json").exists()
    assert load_checkpoint(info).hash() == info.state_hash


def test_a_bfloat16_job_loads_as_it_computes_and_keeps_its_masters(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = llama(tied=False)
    model.save_pretrained(tmp_path / "model")
    state_dtype(tmp_path / "model", "bfloat16")
    info = write_checkpoint(
        tmp_path / "checkpoints",
        initial_state(params_of(model), n_blocks=3),
        job_digest=JOB,
        model_files=tmp_path / "model",
        durable=False,
    )
    as_computed = AutoModelForCausalLM.from_pretrained(info.path)
    assert as_computed.dtype == torch.bfloat16
    masters = AutoModelForCausalLM.from_pretrained(info.path, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        assert torch.equal(masters.get_parameter(name), parameter)
        assert torch.equal(as_computed.get_parameter(name), parameter.bfloat16())


def test_frozen_parameters_travel_with_the_weights(tmp_path: Path) -> None:
    model = llama(tied=True)
    model.save_pretrained(tmp_path / "model")
    model.model.embed_tokens.weight.requires_grad_(requires_grad=False)
    frozen = {"model.embed_tokens.weight": model.model.embed_tokens.weight.numpy()}
    params = params_of(model)
    assert not params.keys() & frozen.keys()
    info = write_checkpoint(
        tmp_path / "checkpoints",
        initial_state(params, n_blocks=3),
        job_digest=JOB,
        model_files=tmp_path / "model",
        constants=frozen,
        durable=False,
    )
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(info.path)), logits(model))
    assert load_checkpoint(info).params.keys() == params.keys()


@pytest.fixture(params=["plain", "dora", "head"])
def lora(request: pytest.FixtureRequest, tmp_path: Path) -> PeftModel:
    torch.manual_seed(2)
    llama(tied=False).save_pretrained(tmp_path / "base")
    options = {
        "plain": {},
        "dora": {"use_dora": True},
        "head": {"modules_to_save": ["lm_head"]},
    }
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=2,
        lora_alpha=4,
        target_modules=["q_proj", "v_proj"],
        **options[request.param],
    )
    model = get_peft_model(base, config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def test_peft_loads_a_lora_checkpoint(tmp_path: Path, lora: PeftModel) -> None:
    files = tmp_path / "model"
    files.mkdir()
    lora.peft_config["default"].save_pretrained(files)
    state = initial_state(params_of(lora), n_blocks=3)
    info = write_checkpoint(
        tmp_path / "checkpoints",
        state,
        job_digest=JOB,
        model_files=files,
        constants={"frozen": np.ones(3, np.float32)},
        durable=False,
    )
    written = load_file(info.path / "adapter_model.safetensors")
    assert written.keys() == get_peft_model_state_dict(lora).keys()
    expected = logits(lora)
    loaded = AutoPeftModelForCausalLM.from_pretrained(info.path)
    assert torch.equal(logits(loaded), expected)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert torch.equal(logits(PeftModel.from_pretrained(base, info.path)), expected)
    found = load_checkpoint(info)
    assert found.params.keys() == state.params.keys()
    assert found.hash() == state.hash()


def test_adapter_parameters_without_pefts_prefix_get_it(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    name = "model.layers.0.self_attn.q_proj.lora_A.default.weight"
    state = initial_state({name: np.ones((2, 3), np.float32)}, n_blocks=1)
    info = write_checkpoint(
        tmp_path / "c", state, job_digest=JOB, model_files=tmp_path, durable=False
    )
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    assert list(load_file(info.path / "adapter_model.safetensors")) == [key]
    assert list(load_checkpoint(info).params) == [name]


def test_two_parameters_of_one_adapter_key_are_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    array = np.ones(2, np.float32)
    state = initial_state({"q.lora_A.default.weight": array, "q.lora_A.weight": array}, n_blocks=1)
    with pytest.raises(CheckpointError, match="several parameters have the adapter key"):
        write_checkpoint(tmp_path / "c", state, job_digest=JOB, model_files=tmp_path)
    assert list((tmp_path / "c").iterdir()) == []


def test_weights_and_hidden_files_of_the_model_folder_are_not_copied(tmp_path: Path) -> None:
    files = tmp_path / "model"
    (files / ".cache").mkdir(parents=True)
    for name in ("pytorch_model.bin", "model.safetensors.index.json", ".cache/x", ".hidden"):
        (files / name).write_text("{}")
    (files / "templates").mkdir()
    (files / "templates" / "tool.jinja").write_text("x")
    state = initial_state({"w": np.ones(2, np.float32)}, n_blocks=1)
    info = write_checkpoint(tmp_path / "c", state, job_digest=JOB, model_files=files, durable=False)
    found = {str(path.relative_to(info.path)) for path in info.path.rglob("*") if path.is_file()}
    assert {name for name in found if not name.startswith("luma/")} == {
        "model.safetensors",
        "templates/tool.jinja",
    }


def test_a_config_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: its dtype cannot be set"):
        state_dtype(tmp_path, "float32")
