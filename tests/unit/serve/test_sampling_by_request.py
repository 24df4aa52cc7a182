"""The keyed draw: it samples the softmax, repeats with its seed, and leaves greedy rows alone."""

from __future__ import annotations

import torch

from runtime.serve.back_ends.sampling import (
    KEEP_ALL,
    Draws,
    gumbel_noise,
    per_request_processors,
    processor_arguments,
)


def keys(seed: int, count: int) -> torch.Tensor:
    draws = Draws(seed)
    return torch.tensor([draws.next_key() for _ in range(count)], dtype=torch.int32)


def test_argmax_with_noise_draws_from_the_softmax() -> None:
    """Chi-squared over 20,000 keyed draws: fixed keys, so the figure never changes."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, -float("inf")])
    count = 20_000
    drawn = (logits + gumbel_noise(keys(11, count), 6)).argmax(-1)
    seen = torch.bincount(drawn, minlength=6).double()
    expected = logits.double().softmax(-1) * count
    assert seen[5] == 0
    chi_squared = ((seen - expected)[:5] ** 2 / expected[:5]).sum()
    assert chi_squared < 13.3  # 99% of a chi-squared variable with 4 degrees of freedom


def test_noise_is_gumbel_and_independent_of_column_and_key() -> None:
    noise = gumbel_noise(keys(3, 64), 4096)
    assert torch.isfinite(noise).all()
    assert abs(noise.mean().item() - 0.5772) < 0.01  # Euler's constant
    assert abs(noise.var().item() - 1.6449) < 0.03  # pi squared over 6
    correlation = torch.corrcoef(noise)
    off_diagonal = correlation - torch.eye(64)
    assert off_diagonal.abs().max() < 0.08  # five sigma at 4,096 samples


def test_keys_repeat_with_the_seed_and_differ_without() -> None:
    assert torch.equal(keys(5, 10), keys(5, 10))
    assert not torch.equal(keys(5, 10), keys(6, 10))
    assert (keys(5, 1000) != 0).all()
    assert Draws(None).next_key() != Draws(None).next_key()


def test_each_row_of_a_batch_follows_its_own_request() -> None:
    """A greedy row, a hot row and a top-k row in one batch, as the engine calls them."""

    class State:
        def __init__(self, **sampling: float) -> None:
            self.logit_processor_kwargs = processor_arguments(
                **{"temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 1, **sampling}
            )

    class Request:
        has_new_token = True

        def __init__(self, state: State) -> None:
            self.state = state

    chain = per_request_processors()
    rows = [Request(State(temperature=0)), Request(State(temperature=2.0)), Request(State(top_k=1))]
    for row in rows:
        chain.check_kwargs(row.state.logit_processor_kwargs)
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    storage = torch.zeros(chain.tensors_required, 8, dtype=torch.int32)
    args = chain.prepare_tensor_args(rows, storage)
    out = chain(torch.zeros(3, dtype=torch.int64), scores.clone(), args)
    assert torch.equal(out[0], scores[0])
    assert out[2].isfinite().sum() == 1
    assert out[2].argmax() == scores[2].argmax()
    noise = gumbel_noise(args[3, 1:2], 50)[0]
    torch.testing.assert_close(out[1], scores[1] / 2 + noise)


def test_temperature_zero_needs_no_arguments_and_zero_top_k_keeps_all() -> None:
    assert processor_arguments(temperature=0, top_p=0.1, top_k=1, seed=1) == {}
    some = processor_arguments(temperature=1, top_p=1, top_k=0, seed=1)
    assert some["top_k"] == KEEP_ALL
