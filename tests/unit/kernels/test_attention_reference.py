"""The attention reference against torch's own attention, and its backward against autograd."""

import pytest
import torch

from runtime.compiler.capture import ops
from runtime.kernels.attention.contract import sizes_of
from runtime.kernels.attention.reference import attention, attention_backward, attention_mask

CASES = [
    pytest.param(4, 4, 8, False, 0, 0.0, id="plain"),
    pytest.param(4, 2, 8, True, 0, 0.0, id="causal grouped"),
    pytest.param(4, 1, 6, True, 3, 0.0, id="window, one key head, other value size"),
    pytest.param(6, 3, 8, True, 0, 5.0, id="softcap"),
    pytest.param(4, 2, 8, True, 4, 2.0, id="window and softcap"),
]


def inputs(heads, kv_heads, value_dim, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=dtype)

    segments = torch.tensor([[1, 1, 1, 2, 2, 3, 3, 3, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]])
    q, k, v = draw(2, heads, 10, 8), draw(2, kv_heads, 10, 8), draw(2, kv_heads, 10, value_dim)
    return q, k, v, segments


def by_loops(q, k, v, segments, scale, causal, window, softcap):
    """The contract's sentences, one query at a time."""
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    lse = torch.zeros(q.shape[:3], dtype=q.dtype)
    groups = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for p in range(q.shape[2]):
                seen = [
                    j
                    for j in range(q.shape[2])
                    if (not causal or j <= p)
                    and (window == 0 or p - window < j <= p)
                    and (segments is None or segments[b, p] == segments[b, j])
                ]
                scores = scale * (k[b, h // groups, seen] @ q[b, h, p])
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                lse[b, h, p] = torch.logsumexp(scores, 0)
                out[b, h, p] = torch.softmax(scores, 0) @ v[b, h // groups, seen]
    return out, lse


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "value_dim", "causal", "window", "softcap"), CASES)
def test_equals_the_contract_one_query_at_a_time(
    heads, kv_heads, value_dim, causal, window, softcap, packed
):
    q, k, v, segments = inputs(heads, kv_heads, value_dim)
    segments = segments if packed else None
    out, lse = attention(q, k, v, segments, 0.3, causal, window, softcap)
    expected, expected_lse = by_loops(q, k, v, segments, 0.3, causal, window, softcap)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(lse, expected_lse.float(), rtol=1e-5, atol=1e-5)


def test_equals_torch_sdpa_in_float32():
    q, k, v, _ = inputs(4, 2, 8, torch.float32)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    out, _ = attention(q, k, v, None, 8**-0.5, True, 0, 0.0)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "value_dim", "causal", "window", "softcap"), CASES)
def test_backward_equals_autograd(heads, kv_heads, value_dim, causal, window, softcap, packed):
    q, k, v, segments = inputs(heads, kv_heads, value_dim)
    segments = segments if packed else None
    options = (segments, 0.3, causal, window, softcap)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, _ = attention(*leaves, *options)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    expected = torch.autograd.grad(out, leaves, grad)
    with torch.no_grad():
        # lse is float32 by contract; in float64 the check is sharper than its rounding.
        exact = by_loops(q, k, v, *options)[1]
        found = attention_backward(grad, q, k, v, out, exact, *options)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_op_is_sound_and_its_gradient_is_the_references():
    q, k, v, segments = inputs(4, 2, 8, torch.float32)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    options = (segments, 0.3, True, 4, 2.0)
    torch.library.opcheck(
        torch.ops.luma.attention.default, (*leaves, *options), raise_exception=True
    )
    expected = torch.autograd.grad(attention(*leaves, *options)[0].square().sum(), leaves)
    found = torch.autograd.grad(ops.attention(*leaves, *options)[0].square().sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_documents_of_a_row_do_not_see_each_other():
    q, k, v, segments = inputs(4, 2, 8, torch.float32)
    out, _ = attention(q, k, v, segments, 0.3, True, 0, 0.0)
    alone, _ = attention(*(x[:1, :, 3:5] for x in (q, k, v)), None, 0.3, True, 0, 0.0)
    torch.testing.assert_close(out[:1, :, 3:5], alone, rtol=1e-5, atol=1e-6)


def test_rows_of_padding_are_finite():
    q, k, v, _ = inputs(4, 2, 8, torch.float32)
    out, lse = attention(q, k, v, torch.zeros(2, 10, dtype=torch.int64), 0.3, True, 2, 0.0)
    assert torch.isfinite(out).all()
    assert torch.isfinite(lse).all()


def test_bfloat16_keeps_its_dtype_and_sums_in_float32():
    q, k, v, segments = inputs(4, 2, 8, torch.bfloat16)
    out, lse = attention(q, k, v, segments, 0.3, True, 0, 0.0)
    wide, _ = attention(q.float(), k.float(), v.float(), segments, 0.3, True, 0, 0.0)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(out.float(), wide, rtol=1e-2, atol=1e-2)


def test_no_mask_where_every_key_is_seen():
    assert attention_mask(5, None, False, 0) is None


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        ((2, 4, 8), (2, 4, 8, 4), (2, 4, 8, 4), "takes"),
        ((2, 4, 8, 4), (2, 2, 9, 4), (2, 2, 9, 4), "do not fit"),
        ((2, 4, 8, 4), (2, 2, 8, 4), (2, 1, 8, 4), "do not fit"),
        ((2, 4, 8, 4), (2, 3, 8, 4), (2, 3, 8, 4), "no multiple"),
    ],
)
def test_wrong_shapes_are_refused(q, k, v, message):
    with pytest.raises(ValueError, match=message):
        sizes_of(q, k, v)
