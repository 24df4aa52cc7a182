"""AdamW, clipping and the gradient norm against torch's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from runtime.compiler.optimizer import adamw, block_squares, clip_factor, gradient_norm, rates

LR, BETAS, EPS, DECAY = 3e-3, (0.9, 0.95), 1e-8, 0.1


def scalars(step: int, clip: float = 0.0) -> np.ndarray:
    """Give the argument of step `step` (1-based)."""
    b1, b2 = BETAS
    values = [LR, b1, b2, EPS, DECAY, clip, 1 - b1**step, 1 - b2**step]
    return np.array(values, np.float32)


@pytest.mark.parametrize("shape", [(7,), (5, 3), (2, 3, 4)])
def test_adamw_follows_torch_over_many_steps(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    start = rng.standard_normal(shape).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    decay = DECAY if len(shape) >= 2 else 0.0
    optimizer = torch.optim.AdamW([theirs], lr=LR, betas=BETAS, eps=EPS, weight_decay=decay)
    param, first, second = jnp.asarray(start), jnp.zeros(shape), jnp.zeros(shape)
    step_once = jax.jit(lambda *state, scalars: adamw(*state, rates(scalars)))
    for step in range(1, 31):
        grad = (rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 2)).astype(np.float32)
        theirs.grad = torch.from_numpy(grad.copy())
        optimizer.step()
        given = (param, first, second, jnp.asarray(grad))
        param, first, second = step_once(*given, scalars=scalars(step))
    state = optimizer.state[theirs]
    np.testing.assert_allclose(first, state["exp_avg"].numpy(), rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(second, state["exp_avg_sq"].numpy(), rtol=4e-6, atol=1e-9)
    np.testing.assert_allclose(param, theirs.detach().numpy(), rtol=0, atol=2e-6)


def test_decay_spares_biases_and_norms() -> None:
    zero = jnp.zeros(3)
    unchanged = adamw(jnp.ones(3), zero, zero, zero, rates(jnp.asarray(scalars(1))))
    assert np.asarray(unchanged.param).tolist() == [1, 1, 1]
    matrix = jnp.zeros((3, 1))
    decayed = adamw(jnp.ones((3, 1)), matrix, matrix, matrix, rates(jnp.asarray(scalars(1))))
    np.testing.assert_allclose(decayed.param, np.full((3, 1), 1 - LR * DECAY), rtol=1e-7)


@pytest.mark.parametrize("clip", [0.5, 1e6])
def test_clipping_is_torchs(clip: float) -> None:
    rng = np.random.default_rng(5)
    grads = [rng.standard_normal(n).astype(np.float32) for n in (5000, 17)]
    theirs = [torch.nn.Parameter(torch.zeros(g.size)) for g in grads]
    for param, grad in zip(theirs, grads, strict=True):
        param.grad = torch.from_numpy(grad.copy())
    norm = float(torch.nn.utils.clip_grad_norm_(theirs, clip))
    factor = float(clip_factor(jnp.float32(norm), jnp.float32(clip)))
    for param, grad in zip(theirs, grads, strict=True):
        np.testing.assert_allclose(grad * factor, param.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("clip", [0.0, -1.0])
def test_no_clipping_where_it_is_off(clip: float) -> None:
    assert float(clip_factor(jnp.float32(1e9), jnp.float32(clip))) == 1.0


def test_the_norm_is_that_of_the_mean_gradient() -> None:
    rng = np.random.default_rng(9)
    sums = [rng.integers(-(2**30), 2**30, (n, 4096), dtype=np.int32) for n in (1, 3)]
    exponents = [np.array([-40], np.int32), np.array([-38, -41, -39], np.int32)]
    tokens = 4093
    exact = [
        s.astype(np.float64) * 2.0 ** e[:, None] / tokens
        for s, e in zip(sums, exponents, strict=True)
    ]
    expected = np.sqrt(sum((x**2).sum() for x in exact))
    weight = jnp.float32(1 / tokens)
    norm = gradient_norm(
        [
            block_squares(jnp.asarray(s), jnp.asarray(e), weight)
            for s, e in zip(sums, exponents, strict=True)
        ]
    )
    assert float(norm) == pytest.approx(expected, rel=1e-6)
