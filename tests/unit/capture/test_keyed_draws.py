"""Uniform and exponential draws of a model come from the job's key, and are so distributed."""

import math

import pytest
import torch

from runtime.compiler.capture import capture, run_graph
from runtime.compiler.capture._dropout import keyed_dropout


def key(*words):
    return torch.tensor(words, dtype=torch.int32)


def drawn(words, shape=(100, 100)):
    with keyed_dropout(key(*words)):
        return torch.rand_like(torch.empty(shape))


def test_uniform_numbers_lie_evenly_between_0_and_1():
    numbers = drawn((1, 2)).flatten()
    assert 0 < float(numbers.min()) < 1e-3
    assert 1 - 1e-3 < float(numbers.max()) < 1
    ordered = numbers.sort().values
    # Kolmogorov and Smirnov: 1.63 / sqrt(n) is exceeded once in a hundred keys, and this key is fixed.
    even = torch.arange(1, ordered.numel() + 1) / ordered.numel()
    assert float((ordered - even).abs().max()) < 1.63 / math.sqrt(ordered.numel())


def test_draws_differ_by_key_and_call_and_repeat():
    assert torch.equal(drawn((1, 2)), drawn((1, 2)))
    assert not torch.equal(drawn((1, 2)), drawn((1, 3)))
    with keyed_dropout(key(1, 2)):
        first, second = torch.rand_like(torch.empty(9)), torch.rand_like(torch.empty(9))
    assert not torch.equal(first, second)


def test_in_place_draws_have_their_bounds_and_mean():
    with keyed_dropout(key(5, 6)):
        uniform = torch.empty(10_000).uniform_(-3.0, 1.0)
        exponential = torch.empty(10_000).exponential_(2.0)
    assert float(uniform.min()) > -3
    assert float(uniform.max()) < 1
    assert float(uniform.mean()) == pytest.approx(-1.0, abs=0.05)
    assert float(exponential.min()) > 0
    assert float(exponential.mean()) == pytest.approx(0.5, abs=0.02)


def test_outside_the_block_torch_draws():
    with keyed_dropout(key(1, 2)):
        pass
    torch.manual_seed(0)
    first = torch.rand_like(torch.empty(4))
    torch.manual_seed(0)
    assert torch.equal(torch.rand(4), first)


class Sampling(torch.nn.Module):
    """A causal LM whose middle keeps an element as often as it draws."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(40, 8)
        self.head = torch.nn.Linear(8, 40)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        scale = torch.empty_like(x).exponential_() if self.training else 1.0
        return self.head(x * scale)


def test_a_model_that_samples_is_captured_with_its_key():
    captured = capture(Sampling(), micro_batch=2, seq_len=6)
    assert captured.check.worst_relative_gradient_error < 1e-5
    graph = captured.package.graphs["grad"]
    given = {
        item.name: torch.from_numpy(captured.arrays[item.target])
        for item in graph.inputs
        if item.role in {"param", "buffer"}
    }
    for item in graph.inputs:
        if item.role == "batch":
            given[item.name] = torch.ones(item.type.shape, dtype=torch.int64)
    (name,) = [item.name for item in graph.inputs if item.role == "key"]
    losses = [float(run_graph(graph, given | {name: key(7, n)})["loss_sum"]) for n in range(2)]
    assert losses[0] != losses[1]
