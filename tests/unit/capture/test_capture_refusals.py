"""What cannot be captured is refused with the op, the module and the reason; nothing is silent."""

import pytest
import torch
from torch import nn

from runtime.compiler.capture import _attention, capture
from runtime.spec import CaptureError


class Body(nn.Module):
    """A causal LM whose middle is what a test gives."""

    def __init__(self, middle):
        super().__init__()
        self.embedding = nn.Embedding(40, 8)
        self.middle = middle
        self.head = nn.Linear(8, 40)

    def forward(self, input_ids):
        return self.head(self.middle(self.embedding(input_ids)))


class Middle(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.function = function

    def forward(self, x):
        return self.function(x * self.scale)


def body(function):
    return Body(Middle(function))


def in_place(x):
    y = x + 1
    y.mul_(2)
    y[:, 0] = 0
    return y


class Wrong(torch.autograd.Function):
    """Doubles, and says that its derivative is 7."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 7


def test_in_place_ops_become_pure_ones():
    captured = capture(body(in_place), micro_batch=2, seq_len=6)
    ops = {node.op for node in captured.package.graphs["grad"].nodes}
    assert not [op for op in ops if op.split(".")[1].endswith("_")]
    modules = {node.module for node in captured.package.graphs["grad"].nodes}
    assert "middle" in modules


def test_a_custom_function_keeps_its_own_backward():
    captured = capture(body(Wrong.apply), micro_batch=2, seq_len=6)
    constants = {
        value
        for node in captured.package.graphs["grad"].nodes
        for value in node.args
        if isinstance(value, (int, float))
    }
    assert 7 in constants
    assert captured.check.worst_relative_gradient_error < 1e-5


def test_random_ops_are_listed_with_their_modules():
    model = body(lambda x: x * torch.randn(x.shape) + torch.randn_like(x))
    with pytest.raises(CaptureError, match="cannot run") as caught:
        capture(model, micro_batch=2, seq_len=6)
    message = str(caught.value)
    assert "aten.randn.default in module 'middle' (random, not keyed)" in message
    assert "aten.randn_like.default" in message


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x * float(x.abs().max().item()),
        lambda x: x[x > 0].sum() + x,
    ],
    ids=["branch", "item", "mask"],
)
def test_values_that_depend_on_data_name_the_module(function):
    with pytest.raises(CaptureError, match="middle"):
        capture(body(function), micro_batch=2, seq_len=6)


def test_a_forward_that_changes_a_parameter_is_refused_with_its_name():
    class Clamped(Middle):
        def forward(self, x):
            self.scale.data.clamp_(-0.5, 0.5)
            return x * self.scale

    with pytest.raises(CaptureError, match=r"changes 'middle\.scale', which a step only reads"):
        capture(Body(Clamped(None)), micro_batch=2, seq_len=6)


def test_an_error_of_the_model_names_the_module_and_is_one_line():
    def fail(x):
        raise RuntimeError("no luck\nwith a second line")

    with pytest.raises(CaptureError, match=r"module 'middle' cannot be traced.*no luck") as caught:
        capture(body(fail), micro_batch=2, seq_len=6)
    assert "second line" not in str(caught.value)


def test_packing_is_refused_where_documents_would_mix():
    with pytest.raises(CaptureError, match="cannot be captured"):
        capture(body(lambda x: torch.cumsum(x, dim=1)), micro_batch=2, seq_len=12, packing=True)
    capture(body(torch.tanh), micro_batch=2, seq_len=12, packing=True)


def test_packing_is_refused_where_a_layer_hears_nothing_of_segments(build, monkeypatch):
    original = _attention._luma_attention

    def deaf(module, *args, segment_ids=None, **rest):
        kept = None if module.layer_idx == 1 else segment_ids
        return original(module, *args, segment_ids=kept, **rest)

    monkeypatch.setitem(
        _attention.AttentionInterface._global_mapping, _attention.IMPLEMENTATION, deaf
    )
    with pytest.raises(CaptureError, match="did not get segment_ids") as caught:
        capture(build("llama"), micro_batch=1, seq_len=12, packing=True)
    assert "data.packing" in caught.value.diagnostics()


def test_an_op_with_a_wrong_result_does_not_pass(build, monkeypatch):
    original = _attention._luma_attention

    def widened(module, *args, sliding_window=None, **rest):
        return original(module, *args, sliding_window=(sliding_window or 0) + 1, **rest)

    monkeypatch.setitem(
        _attention.AttentionInterface._global_mapping, _attention.IMPLEMENTATION, widened
    )
    captured = capture(build("mistral"), micro_batch=1, seq_len=16)
    assert captured.attention.startswith("math form: the captured")
    assert captured.check.worst_relative_gradient_error < 1e-5


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"micro_batch": 0, "seq_len": 8}, "train.micro_batch: 0; expected at least 1"),
        ({"micro_batch": 1, "seq_len": 0}, "train.seq_len: 0"),
        ({"micro_batch": 1, "seq_len": 65}, "at most 64 positions"),
    ],
)
def test_sizes_out_of_range_are_refused(build, sizes, message):
    with pytest.raises(CaptureError, match=message):
        capture(build("llama"), **sizes)


def test_other_dtypes_are_refused(build):
    with pytest.raises(CaptureError, match="neither float32 nor bfloat16"):
        capture(build("llama").to(torch.float16), micro_batch=1, seq_len=8)


def test_a_forward_without_logits_is_refused():
    class NoLogits(Body):
        def forward(self, input_ids):
            return self.embedding(input_ids).sum()

    with pytest.raises(CaptureError, match="expected logits"):
        capture(NoLogits(nn.Identity()), micro_batch=1, seq_len=4)


def test_a_model_without_an_embedding_is_refused():
    with pytest.raises(CaptureError, match="vocabulary"):
        capture(nn.Linear(2, 2), micro_batch=1, seq_len=4)


class Attentive(nn.Module):
    """A causal LM of its own, over torch's attention, that knows documents."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.places = nn.Embedding(32, 16)
        self.qkv = nn.Linear(16, 48)
        self.head = nn.Linear(16, 40)

    def forward(self, input_ids, position_ids, segment_ids):
        x = self.embedding(input_ids) + self.places(position_ids)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        mask = causal & (segment_ids[:, None, :, None] == segment_ids[:, None, None, :])
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.head(x + out.transpose(1, 2).flatten(2))


def test_a_module_of_its_own_with_torch_attention_is_captured_with_packing():
    captured = capture(Attentive(), micro_batch=2, seq_len=16, packing=True)
    assert captured.attention.startswith("math form")
    assert captured.check.worst_relative_gradient_error < 1e-5


def test_a_forward_with_other_parameters_is_refused():
    with pytest.raises(CaptureError, match="segment_ids"):
        capture(Attentive(), micro_batch=2, seq_len=16)
