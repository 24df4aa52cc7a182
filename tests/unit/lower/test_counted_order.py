"""Sorting by counting, as AMD targets do it, against torch's stable sort."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.compiler.lower.ops import counted_order, order
from runtime.compiler.lower.registry import find_lowering
from tests.unit.lower.support import QUICK

_FEW_VALUES = (-2.0, -0.0, 0.0, 1.0, 1.5, float("inf"), float("-inf"), float("nan"))
_SHAPES = ((1,), (6,), (3, 5))


@QUICK
@given(data=st.data(), descending=st.booleans(), integers=st.booleans())
def test_it_is_torchs_stable_sort(data: st.DataObject, descending: bool, integers: bool) -> None:
    """Few distinct values, so that most draws hold equal elements and NaN."""
    shape = data.draw(st.sampled_from(_SHAPES))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    values = st.integers(-3, 3) if integers else st.sampled_from(_FEW_VALUES)
    count = int(np.prod(shape))
    drawn = data.draw(st.lists(values, min_size=count, max_size=count))
    x = np.array(drawn, np.int32 if integers else np.float32).reshape(shape)
    wanted, places = torch.sort(torch.tensor(x), dim=dim, descending=descending, stable=True)

    found, at = counted_order.sort(jnp.asarray(x), dim, descending)
    np.testing.assert_array_equal(found, wanted.numpy())
    np.testing.assert_array_equal(at, places.numpy())
    assert at.dtype == jnp.int32
    np.testing.assert_array_equal(counted_order.argsort(jnp.asarray(x), dim, descending), at)

    k = data.draw(st.integers(0, shape[dim]))
    top, top_at = counted_order.topk(jnp.asarray(x), k, dim, largest=descending)
    np.testing.assert_array_equal(top, np.take(found, range(k), dim))
    np.testing.assert_array_equal(top_at, np.take(at, range(k), dim))


def test_a_scalar_is_its_own_order() -> None:
    found, at = counted_order.sort_stable(jnp.float32(3), stable=True)
    assert (float(found), int(at)) == (3.0, 0)


def test_amd_targets_take_it_and_others_do_not() -> None:
    for name in (
        "aten.sort.default",
        "aten.sort.stable",
        "aten.argsort.default",
        "aten.topk.default",
    ):
        amd = find_lowering(name, "rocm-gfx942")
        assert amd is not None
        assert amd.__module__ == counted_order.__name__
        for target in ("cpu", "cuda-sm90", "neuron-trn2"):
            other = find_lowering(name, target)
            assert other is None or other.__module__ == order.__name__
