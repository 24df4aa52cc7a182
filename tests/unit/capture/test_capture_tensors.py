"""Tied weights, buffers, constants, frozen weights and adapters; and what a package never holds."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from runtime.compiler.capture import apply_adapter, capture, model_arrays
from runtime.spec import CaptureError

LORA = SimpleNamespace(r=4, alpha=8.0, dropout=0.0, target_modules=None)


class Plain(nn.Module):
    """A small causal LM of its own, with every kind of tensor."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.linear = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.register_buffer("shift", torch.linspace(0, 1, 16))
        self.register_buffer("hidden_shift", torch.linspace(1, 2, 16), persistent=False)
        self.register_buffer("unused", torch.zeros(3))
        self.table = torch.linspace(-1, 1, 16)
        self.unused_weight = nn.Parameter(torch.ones(4))

    def forward(self, input_ids):
        x = self.embedding(input_ids) + self.shift * self.hidden_shift + self.table
        x = torch.cumsum(torch.tanh(self.linear(x)), dim=1) * torch.tensor(0.5)
        return self.head(x)


def by_role(captured, role, graph="grad"):
    return [item.target for item in captured.package.graphs[graph].of_role(role)]


def test_tied_weights_are_one_parameter_under_the_saved_name(build, captured, tmp_path):
    model, captured = build("llama tied"), captured("llama tied", packing=False)
    params = by_role(captured, "param")
    assert "model.embed_tokens.weight" in params
    assert "lm_head.weight" not in params
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "np") as saved:
        assert sorted(saved.keys()) == params


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_parameters_have_the_names_of_the_saved_checkpoint(build, captured, tmp_path, name):
    model, captured = build(name), captured(name, packing=name != "gpt2")
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "np") as saved:
        assert sorted(saved.keys()) == by_role(captured, "param")
        for key in saved.keys():  # noqa: SIM118 (not a dict)
            np.testing.assert_array_equal(saved.get_tensor(key), captured.arrays[key])


def test_buffers_constants_and_unused_weights():
    captured = capture(Plain(), micro_batch=2, seq_len=6)
    assert by_role(captured, "buffer") == ["constant.0", "constant.1", "hidden_shift", "shift"]
    assert by_role(captured, "buffer", "forward") == by_role(captured, "buffer")
    constants = [captured.arrays[f"constant.{i}"] for i in (0, 1)]
    assert sorted(c.size for c in constants) == [1, 16]
    assert "unused_weight" in by_role(captured, "param")
    assert "unused" not in captured.arrays


def test_frozen_parameters_get_no_gradient(build):
    model = build("llama")
    model.model.embed_tokens.weight.requires_grad_(requires_grad=False)
    captured = capture(model, micro_batch=1, seq_len=8)
    assert by_role(captured, "frozen") == ["model.embed_tokens.weight"]
    labels = [label for label, _ in captured.package.graphs["grad"].outputs]
    assert "grad:model.embed_tokens.weight" not in labels


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_only_an_adapter_is_trained_and_named_as_peft_saves_it(build, tmp_path, dropout):
    model = apply_adapter(build("llama"), SimpleNamespace(**{**vars(LORA), "dropout": dropout}))
    captured = capture(model, micro_batch=2, seq_len=12, packing=True)
    assert captured.attention == "op"
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "adapter_model.safetensors", "np") as saved:
        assert sorted(saved.keys()) == by_role(captured, "param")
    assert "model.layers.0.self_attn.q_proj.weight" in by_role(captured, "frozen")
    ops = [node.op for node in captured.package.graphs["grad"].nodes]
    assert ("luma.dropout.default" in ops) is (dropout > 0)
    second = [v for name, v in captured.arrays.items() if name.endswith("lora_B.weight")]
    assert second
    assert not any(value.any() for value in second)


def test_arrays_come_without_a_capture_as_well(build):
    model = build("llama tied")
    captured = capture(model, micro_batch=1, seq_len=8)
    arrays = model_arrays(model)
    for name, value in captured.arrays.items():
        np.testing.assert_array_equal(arrays[name], value)
        assert np.shares_memory(arrays[name], value)


def test_a_package_holds_no_weights_and_no_source(captured):
    captured = captured("qwen3", packing=True)
    data = captured.package.to_bytes()
    for name, value in captured.arrays.items():
        raw = value.tobytes()
        for begin in range(0, len(raw) - 16, 16):
            piece = raw[begin : begin + 16]
            if len(set(piece)) > 8:  # not the ones of a norm's weight
                assert piece not in data, name
    for text in (
        b".py",
        b"site-packages",
        b"def forward",
        b"self.",
        b"/home",
        b"transformers.models",
    ):
        assert text not in data
    module_text = Plain.forward.__code__.co_filename.encode()
    assert module_text not in capture(Plain(), micro_batch=1, seq_len=4).package.to_bytes()


def test_nothing_trainable_is_refused(build):
    model = build("llama").requires_grad_(requires_grad=False)
    with pytest.raises(CaptureError, match="no trainable parameter"):
        capture(model, micro_batch=1, seq_len=8)


def test_an_adapter_that_fits_nothing_is_refused(build):
    options = SimpleNamespace(**{**vars(LORA), "target_modules": ["nowhere"]})
    with pytest.raises(CaptureError, match="peft cannot adapt") as caught:
        apply_adapter(build("llama"), options)
    assert "target_modules" in caught.value.diagnostics()
    with pytest.raises(CaptureError, match="only transformers' models"):
        apply_adapter(Plain(), LORA)
