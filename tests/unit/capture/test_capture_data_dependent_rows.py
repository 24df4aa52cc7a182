"""Models that pick rows by value are captured on all rows under a mask, or refused."""

import pytest
import torch
from torch import nn

from runtime.compiler.capture import capture
from runtime.spec import CaptureError

TOKENS, WIDTH, EXPERTS = 40, 8, 3


class Model(nn.Module):
    """A causal LM around a layer that a test gives."""

    def __init__(self, layer):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.layer = layer
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        return self.head(x + self.layer(x.reshape(-1, WIDTH)).view_as(x))


class LoopOverHitExperts(nn.Module):
    """Each token's two experts of three, in a loop over those that got one."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(x)
        mask = torch.nn.functional.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
        for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            number = expert[0]
            place, token = torch.where(mask[number])
            rows = torch.tanh(x[token] @ self.weight[number])
            out.index_add_(0, token, rows * weights[token, place, None])
        return out


class SplitBySizes(nn.Module):
    """Each token's best expert; tokens sorted by expert and split by sizes read from a tensor."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))

    def forward(self, x):
        gate, chosen = self.router(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        sizes = torch.nn.functional.one_hot(chosen, EXPERTS).sum(0).tolist()
        pieces = x[order].split(sizes, dim=0)
        done = [nn.functional.linear(pieces[i], self.weight[i]) for i in range(EXPERTS)]
        return torch.zeros_like(x).index_add(0, order, torch.cat(done, dim=0)) * gate[:, None]


class Function(nn.Module):
    """A layer that is a function of its input."""

    def __init__(self, function):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.function = function

    def forward(self, x):
        return self.function(x * self.scale)


@pytest.mark.parametrize("layer", [LoopOverHitExperts, SplitBySizes])
def test_rows_picked_by_value_are_computed_under_a_mask(layer):
    captured = capture(Model(layer()), micro_batch=2, seq_len=7)
    assert captured.check.worst_relative_gradient_error < 1e-5
    sizes = {size for n in captured.package.graphs["grad"].nodes if n.out for size in _sizes(n.out)}
    assert all(type(size) is int for size in sizes)


def test_an_expert_that_gets_no_token_adds_nothing():
    layer = LoopOverHitExperts()
    with torch.no_grad():
        layer.router.bias.copy_(torch.tensor([0.0, 0.0, -1e4]))
    captured = capture(Model(layer), micro_batch=2, seq_len=7)
    assert captured.check.worst_relative_gradient_error < 1e-5


def test_rows_under_a_mask_are_written_back_under_it():
    def adapt(x):
        out = torch.zeros_like(x)
        mask = x[:, 0] > 0
        out[mask] = torch.tanh(x[mask] * 2)
        return out

    captured = capture(Model(Function(adapt)), micro_batch=2, seq_len=6)
    assert captured.check.worst_relative_gradient_error < 1e-5


def test_a_loop_past_the_last_matrix_adds_nothing():
    """The mask has a class that no token has, as for padding: eager never visits its place."""

    class WithSpareClass(LoopOverHitExperts):
        def forward(self, x):
            weights, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
            out = torch.zeros_like(x)
            mask = torch.nn.functional.one_hot(chosen, num_classes=EXPERTS + 1).permute(2, 1, 0)
            for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
                place, token = torch.where(mask[expert[0]])
                rows = x[token].matmul(self.weight[expert[0]])
                out.index_add_(0, token, rows * weights[token, place, None])
            return out

    captured = capture(Model(WithSpareClass()), micro_batch=2, seq_len=7)
    assert captured.check.worst_relative_gradient_error < 1e-5


def test_a_comparison_that_bounds_decide_is_answered():
    def check_counts(x):
        counts = (x > 0).sum(dim=1)
        assert counts.max().item() <= WIDTH
        assert counts.min().item() >= 0
        return x * counts[:, None]

    captured = capture(Model(Function(check_counts)), micro_batch=2, seq_len=6)
    assert captured.check.worst_relative_gradient_error < 1e-5


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 if (x > 0).sum(dim=1).max().item() > 3 else x,
        lambda x: x * (x > 0).sum().item(),
        lambda x: x * 2 if x.sum().item() > 3 else x,
    ],
    ids=["a branch inside the bounds", "arithmetic", "a float"],
)
def test_a_value_that_decides_more_is_refused(function):
    with pytest.raises(CaptureError, match="layer"):
        capture(Model(Function(function)), micro_batch=2, seq_len=6)


def test_values_that_follow_from_no_input_are_read():
    def check_lengths(x):
        lengths = torch.tensor([x.shape[0]] * 3)
        assert lengths.max().item() <= x.shape[0]
        weights = [2.0 if even else 1.0 for even in (torch.arange(WIDTH) % 2 == 0).tolist()]
        return x * torch.tensor(weights)

    captured = capture(Model(Function(check_lengths)), micro_batch=2, seq_len=6)
    assert captured.check.worst_relative_gradient_error < 1e-5


def test_a_tensor_changed_through_its_view_is_not_read_as_it_was():
    def branch(x):
        flags = torch.zeros(4)
        flags[1:3].fill_(1.0)
        return x * 3 if flags.sum().item() > 1 else x

    # The trace does not name the changed tensor: refused, or right, but never the other branch.
    with pytest.raises(CaptureError, match="layer"):
        capture(Model(Function(branch)), micro_batch=2, seq_len=6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x[torch.where(x[:, 0] > 0)[0]].sum(),
        lambda x: x[torch.where(x[:, 0] > 0)[0]] + x[torch.where(x[:, 1] > 0)[0]],
        lambda x: torch.cat([x[torch.where(x[:, 0] > 0)[0]], x[:0]]),
        lambda x: torch.zeros_like(x).masked_scatter(x > 0, x[x[:, 0] > 0]),
        lambda x: x.index_add(0, torch.arange(x.shape[0]), x[torch.where(x[:, 0] > 0)[0]]),
    ],
    ids=["a sum", "two masks", "a concatenation", "in another's order", "fixed places"],
)
def test_rows_that_touch_each_other_are_refused_with_the_module(function):
    with pytest.raises(CaptureError, match=r"layer|rows whose number depends on data"):
        capture(Model(Function(function)), micro_batch=2, seq_len=6)


def _sizes(out):
    for one in out if isinstance(out, tuple) else (out,):
        if one is not None:
            yield from one.shape
