"""The grouped products' reference against one matrix gathered a row, and its ops against autograd."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.compiler.capture import ops
from runtime.kernels.grouped_mm.contract import sizes_of_outer, sizes_of_product
from runtime.kernels.grouped_mm.reference import grouped_mm, grouped_outer


def inputs(sizes, behind=0, dtype=torch.float64, seed=0):
    """Rows [n, 3], weights [groups, 3, 4], gradients [n, 4] and sizes; `behind` rows have no group."""
    draw = torch.Generator().manual_seed(seed)
    n = sum(sizes) + behind
    shapes = ((n, 3), (len(sizes), 3, 4), (n, 4))
    rows, weights, grad = (torch.randn(s, generator=draw, dtype=torch.float64) for s in shapes)
    return *(x.to(dtype) for x in (rows, weights, grad)), torch.tensor(sizes, dtype=torch.int32)


def by_gathering(rows, weights, sizes):
    """One matrix a row, as transformers' batched_mm does it."""
    group = torch.repeat_interleave(torch.arange(len(sizes)), sizes.long())
    kept = torch.einsum("ni,nio->no", rows[: len(group)], weights[group])
    return torch.cat([kept, rows.new_zeros(len(rows) - len(group), weights.shape[2])])


SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@given(sizes=SIZES, behind=st.integers(0, 3), transposed=st.booleans())
def test_equals_one_matrix_gathered_a_row(sizes, behind, transposed):
    rows, weights, _, counts = inputs(sizes, behind)
    given_weights = weights.mT.contiguous() if transposed else weights
    found = grouped_mm(rows, given_weights, counts, transposed)
    torch.testing.assert_close(found, by_gathering(rows, weights, counts), rtol=1e-12, atol=1e-12)


@given(sizes=SIZES, behind=st.integers(0, 3), transposed=st.booleans())
def test_gradients_of_the_op_are_autograd_s(sizes, behind, transposed):
    rows, weights, grad, counts = inputs(sizes, behind)
    leaves = [rows.requires_grad_(), weights.requires_grad_()]
    expected = torch.autograd.grad(by_gathering(*leaves, counts), leaves, grad)
    used = weights.mT.contiguous() if transposed else weights
    out = ops.grouped_mm(rows, used, counts, transposed)
    found = torch.autograd.grad(out, leaves, grad)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@given(sizes=SIZES, behind=st.integers(0, 3))
def test_outer_is_the_sum_of_outer_products_and_so_are_its_gradients(sizes, behind):
    left, _, right, counts = inputs(sizes, behind)
    leaves = [left.requires_grad_(), right.requires_grad_()]
    ends = torch.cumsum(counts, 0).tolist()
    parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    expected = torch.stack([torch.einsum("ni,no->io", left[p], right[p]) for p in parts])
    found = ops.grouped_outer(left, right, counts)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn(expected.shape, dtype=expected.dtype)
    for one, other in zip(
        torch.autograd.grad(found, leaves, weight),
        torch.autograd.grad(expected, leaves, weight),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_ops_are_sound():
    rows, weights, grad, counts = inputs([3, 0, 2], dtype=torch.float32)
    leaves = [x.requires_grad_() for x in (rows, weights, grad)]
    torch.library.opcheck(torch.ops.luma.grouped_mm.default, (*leaves[:2], counts, False))
    torch.library.opcheck(torch.ops.luma.grouped_mm.default, (leaves[2], leaves[1], counts, True))
    torch.library.opcheck(torch.ops.luma.grouped_outer.default, (leaves[0], leaves[2], counts))


def test_frozen_weights_get_no_gradient_and_cost_none(monkeypatch):
    calls = []
    monkeypatch.setattr(ops, "grouped_outer", lambda *args: calls.append(args))
    rows, weights, grad, counts = inputs([3, 2])
    (found,) = torch.autograd.grad(
        ops.grouped_mm(rows.requires_grad_(), weights, counts), [rows], grad
    )
    torch.testing.assert_close(found, grouped_mm(grad, weights, counts, transposed=True))
    assert not calls


def test_bfloat16_keeps_its_dtype_and_sums_in_float32():
    rows, weights, grad, counts = inputs([40, 30], dtype=torch.bfloat16)
    wide = [x.float() for x in (rows, weights, grad)]
    assert torch.equal(
        grouped_mm(rows, weights, counts), grouped_mm(*wide[:2], counts).to(torch.bfloat16)
    )
    assert torch.equal(
        grouped_outer(rows, grad, counts), grouped_outer(wide[0], wide[2], counts).bfloat16()
    )


@pytest.mark.parametrize(
    ("rows", "weights", "sizes", "transposed", "message"),
    [
        ((4,), (2, 4, 5), (2,), False, "takes rows"),
        ((3, 4), (4, 5), (2,), False, "takes rows"),
        ((3, 5), (2, 4, 5), (2,), False, "do not fit"),
        ((3, 4), (2, 4, 5), (2,), True, r"do not fit together \(transposed\)"),
        ((3, 4), (2, 4, 5), (3,), False, "do not fit"),
        ((3, 4), (0, 4, 5), (0,), False, "do not fit"),
    ],
)
def test_wrong_shapes_of_a_product_are_refused(rows, weights, sizes, transposed, message):
    with pytest.raises(ValueError, match=message):
        sizes_of_product(rows, weights, sizes, transposed)


@pytest.mark.parametrize(
    ("left", "right", "sizes", "message"),
    [
        ((3, 4), (2, 5), (2,), "takes left"),
        ((3, 4), (3,), (2,), "takes left"),
        ((3, 4), (3, 5), (2, 1), "takes the sizes"),
        ((3, 4), (3, 5), (0,), "takes the sizes"),
    ],
)
def test_wrong_shapes_of_an_outer_product_are_refused(left, right, sizes, message):
    with pytest.raises(ValueError, match=message):
        sizes_of_outer(left, right, sizes)
