"""Threefry against its published vectors, and dropout against its contract."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.compiler.capture import ops
from runtime.kernels.dropout.contract import threshold
from runtime.kernels.dropout.reference import dropout, keep_mask, threefry2x32

# Random123's kat_vectors: counter, key, result of threefry2x32 with 20 rounds.
KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


def signed(words):
    return torch.from_numpy(np.array(words, dtype=np.uint32).view(np.int32))


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter, key, expected):
    words = tuple(np.array([word], dtype=np.uint32) for word in counter)
    first, second = threefry2x32(key, words)
    assert (int(first[0]), int(second[0])) == expected


@given(
    key=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    p=st.floats(0.01, 0.95),
    call=st.integers(0, 1000),
)
def test_every_element_is_dropped_or_scaled_by_its_own_draw(key, p, call):
    x = torch.arange(1.0, 65.0).reshape(4, 16)
    found = dropout(x, p, signed(key), call)
    for i in range(64):
        counter = (np.array([i], dtype=np.uint32), np.array([call], dtype=np.uint32))
        kept = int(threefry2x32(key, counter)[0][0]) >= round(p * 2**32)
        expected = (i + 1) / (1 - p) if kept else 0.0
        assert float(found.flatten()[i]) == pytest.approx(expected, rel=1e-6)


def test_share_dropped_is_p():
    kept = keep_mask(200_000, 0.1, (1, 2), 0)
    assert abs(kept.mean() - 0.9) < 0.005


def test_calls_and_keys_draw_apart():
    first = keep_mask(1000, 0.5, (1, 2), 0)
    assert not np.array_equal(first, keep_mask(1000, 0.5, (1, 2), 1))
    assert not np.array_equal(first, keep_mask(1000, 0.5, (1, 3), 0))
    assert np.array_equal(first, keep_mask(1000, 0.5, (1, 2), 0))


def test_backward_drops_what_the_forward_dropped():
    x = torch.randn(8, 8, requires_grad=True)
    key = signed((7, 0xFFFFFFFF))
    out = ops.dropout(x, 0.4, key, 3)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad == 0, out == 0)
    torch.library.opcheck(torch.ops.luma.dropout.default, (x, 0.4, key, 3))


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_probability_out_of_range_is_refused(p):
    with pytest.raises(ValueError, match="probability"):
        threshold(p)
