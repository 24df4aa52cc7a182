"""Custom autograd functions: kept with their own backward, or refused by name and module."""

import pytest
import torch
from torch import nn

from runtime.compiler.capture import capture, eager_loss, run_graph
from runtime.compiler.capture._autograd_functions import (
    FunctionUse,
    function_that_failed,
    functions_under,
)
from runtime.compiler.capture._batches import random_batch
from runtime.spec import CaptureError


class Probe(torch.autograd.Function):
    """Six times x, with the derivative 7: whoever differentiates the forward finds 6."""

    @staticmethod
    def forward(ctx, x):
        return x * 6

    @staticmethod
    def backward(ctx, grad):
        return grad * 7


class NewStyle(torch.autograd.Function):
    """The same, in the form with a separate setup_context, and with a saved tensor."""

    @staticmethod
    def forward(x, scale):
        return x * 6 * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, grad):
        (scale,) = ctx.saved_tensors
        return grad * 7 * scale, None


class TwoOutputs(torch.autograd.Function):
    """Two results, one without a derivative; the backward asks what is needed."""

    @staticmethod
    def forward(ctx, x, sign):
        places = (x > 0).long()
        ctx.mark_non_differentiable(places)
        ctx.sign = sign
        return x * 6, places

    @staticmethod
    def backward(ctx, grad, _places):
        return (grad * 7 * ctx.sign if ctx.needs_input_grad[0] else None), None


class ReadsInForward(torch.autograd.Function):
    """Branches on a value in its forward."""

    @staticmethod
    def forward(ctx, x):
        return x if float(x.sum()) > 0 else -x

    @staticmethod
    def backward(ctx, grad):
        return grad


class ReadsInBackward(torch.autograd.Function):
    """Branches on a value in its backward."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad if float(grad.sum()) > 0 else -grad


class SideEffect(torch.autograd.Function):
    """Writes a weight's gradient by itself, as reversible layers do."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        ctx.save_for_backward(x)
        return x * weight.detach()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        update = (grad * x).sum((0, 1))
        with torch.no_grad():
            weight = ctx.weight
            weight.grad = update if weight.grad is None else weight.grad + update
        return grad * ctx.weight.detach(), None


class Body(nn.Module):
    """A causal LM of its own whose middle is what a test gives."""

    def __init__(self, function):
        super().__init__()
        self.embedding = nn.Embedding(40, 8)
        self.middle = Middle(function)
        self.head = nn.Linear(8, 40)

    def forward(self, input_ids):
        return self.head(self.middle(self.embedding(input_ids)))


class Middle(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.function = function

    def forward(self, x):
        return self.function(x, self.scale)


def gradients(model, batch, captured):
    """Give (captured, eager) gradients of the model on a batch, by name."""
    graph = captured.package.graphs["grad"]
    key = torch.zeros(2, dtype=torch.int32)
    arrays = {name: torch.from_numpy(value) for name, value in captured.arrays.items()}
    sources = {"batch": batch, "key": {"key": key}}
    outputs = run_graph(
        graph, {i.name: sources.get(i.role, arrays)[i.target] for i in graph.inputs}
    )
    model.zero_grad()
    eager_loss(model, batch)[0].backward()
    return {
        name: (outputs[f"grad:{name}"], parameter.grad)
        for name, parameter in model.named_parameters()
    }


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, w: Probe.apply(x * w), id="old style"),
        pytest.param(lambda x, w: NewStyle.apply(x, w.detach()) * w, id="setup_context"),
        pytest.param(lambda x, w: TwoOutputs.apply(x * w, -1.0)[0], id="two outputs"),
    ],
)
def test_a_function_keeps_its_own_backward(function):
    torch.manual_seed(3)
    model = Body(function)
    captured = capture(model, micro_batch=2, seq_len=6)
    assert [use.module for use in captured.functions] == ["middle"]
    batch = random_batch(model, micro_batch=2, seq_len=6, packing=False, seed=9)
    for name, (found, expected) in gradients(model, batch, captured).items():
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=name)
        assert expected.abs().max() > 0, name


def test_the_probe_gives_seven_and_not_six():
    """The gradient through the probe is 7/6 of that through its forward differentiated."""
    torch.manual_seed(3)
    model, plain = Body(lambda x, w: Probe.apply(x * w)), Body(lambda x, w: x * w * 6)
    plain.load_state_dict(model.state_dict())
    captured = capture(model, micro_batch=2, seq_len=6)
    batch = random_batch(model, micro_batch=2, seq_len=6, packing=False, seed=9)
    found = gradients(model, batch, captured)
    eager_loss(plain, batch)[0].backward()
    for name in ("embedding.weight", "middle.scale"):
        six = plain.get_parameter(name).grad
        torch.testing.assert_close(found[name][0], six * 7 / 6, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found["head.weight"][0], plain.head.weight.grad)


@pytest.mark.parametrize("function", [ReadsInForward, ReadsInBackward])
def test_a_function_that_reads_values_is_refused_by_name_and_module(function):
    with pytest.raises(CaptureError, match="cannot be traced") as caught:
        capture(Body(lambda x, w: function.apply(x * w)), micro_batch=2, seq_len=6)
    message = str(caught.value)
    assert f"the custom autograd function '{__name__}.{function.__name__}'" in message
    assert "in module 'middle'" in message


def test_a_function_with_a_side_effect_is_refused_by_name_and_module():
    with pytest.raises(CaptureError, match="differs from eager's") as caught:
        capture(Body(SideEffect.apply), micro_batch=2, seq_len=6)
    message = str(caught.value)
    assert "'middle.scale'" in message
    assert f"custom autograd functions: '{__name__}.SideEffect' in module 'middle'" in message


def test_functions_are_found_under_a_loss_each_once_and_not_those_beside_it():
    x = torch.ones(3, requires_grad=True)
    beside = NewStyle.apply(x, torch.ones(3))
    loss = Probe.apply(Probe.apply(x)).sum() + TwoOutputs.apply(x, 1.0)[0].sum()
    found = functions_under(loss, lambda _number: "somewhere")
    assert beside.grad_fn is not None
    assert found == (
        FunctionUse(f"{__name__}.Probe", "somewhere"),
        FunctionUse(f"{__name__}.TwoOutputs", "somewhere"),
    )


def test_an_error_outside_functions_names_none():
    with pytest.raises(ZeroDivisionError) as caught:
        Probe.apply(torch.ones(3) * (1 // 0))
    assert function_that_failed(caught.value) is None
