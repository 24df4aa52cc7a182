"""The state hash is BLAKE3 over the bytes, in an order that names alone decide."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runtime.agent.state import initial_state, little_endian_bytes, state_hash

ARRAYS = st.dictionaries(
    st.text("abc.", min_size=1, max_size=6),
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)),
    max_size=4,
)


@given(params=ARRAYS, moment1=ARRAYS, moment2=ARRAYS, threads=st.sampled_from([0, 1, 2]))
@settings(max_examples=40, deadline=None)
def test_hash_is_blake3_of_the_bytes_in_name_order(
    params: dict, moment1: dict, moment2: dict, threads: int
) -> None:
    reference = b"".join(
        np.asarray(group[name], "<f4").tobytes("C")
        for group in (params, moment1, moment2)
        for name in sorted(group)
    )
    backwards = dict(reversed(params.items()))
    found = state_hash(backwards, moment1, moment2, threads=threads)
    assert found == blake3(reference).hexdigest()


def test_layout_and_byte_order_in_memory_do_not_matter() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = state_hash({"a": array}, {}, {})
    assert state_hash({"a": np.asfortranarray(array)}, {}, {}) == expected
    assert state_hash({"a": array.astype(">f4")}, {}, {}) == expected
    assert state_hash({"a": np.repeat(array, 2, axis=1)[:, ::2]}, {}, {}) == expected
    assert state_hash({"a": array + 1}, {}, {}) != expected


def test_a_contiguous_array_is_not_copied() -> None:
    array = np.arange(6, dtype=np.float32)
    view = np.frombuffer(little_endian_bytes(array), np.uint8)
    assert np.shares_memory(view, array)


def test_initial_state_has_zero_moments_and_empty_blocks() -> None:
    state = initial_state({"b": np.ones((2, 3), np.float32)}, n_blocks=4)
    assert state.step == 0
    assert not state.moment1["b"].any()
    assert state.moment2["b"].shape == (2, 3)
    assert state.block_exponents.tolist() == [-1024] * 4
    assert state.size_bytes() == 3 * 24 + 16
    assert state.hash() == state_hash(state.params, state.moment1, state.moment2)
    names = [name for name, _ in state.arrays()]
    assert names == ["params/b", "moment1/b", "moment2/b", "block_exponents"]


@pytest.mark.parametrize("module", ["samples", "sampler", "state", "checkpoint"])
def test_a_node_needs_no_torch_for_data_and_checkpoints(module: str) -> None:
    code = (
        f"import sys, runtime.agent.{module}; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'jax')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
