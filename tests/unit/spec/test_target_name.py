"""Names of targets: what is taken apart is put together again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.target_name import TargetName

CHIPS = st.sampled_from(
    ["cpu", "cuda-sm90", "cuda-sm100", "tpu-v5e", "rocm-gfx942", "trn2", "inf2"]
)


@given(CHIPS, st.integers(1, 64), st.integers(1, 64))
def test_a_name_comes_back(chip: str, groups: int, tensor: int) -> None:
    name = TargetName(chip=chip, chips=groups * tensor, tensor_parallel=tensor)
    assert TargetName.parse(str(name)) == name
    assert name.groups == groups
    assert chip.startswith(name.family)


@pytest.mark.parametrize(
    ("written", "shortest"),
    [("cpux1", "cpu"), ("cuda-sm90x8-tp1", "cuda-sm90x8"), ("cpux4-tp4", "cpux4-tp4")],
)
def test_the_shortest_name_of_a_target_is_its_own(written: str, shortest: str) -> None:
    assert str(TargetName.parse(written)) == shortest


@pytest.mark.parametrize(
    "name", ["cpu-tp2", "cpux2-tp", "cpux2-tp0", "cpux2-tp02", "cpux2tp2", "cpux2-TP2", "x2", 7]
)
def test_another_form_is_no_target(name: object) -> None:
    with pytest.raises(ValueError, match="is no target; expected one of the forms cpu"):
        TargetName.parse(name)


def test_groups_that_do_not_divide_the_island_are_told_what_does() -> None:
    with pytest.raises(ValueError, match="groups of 4 do not divide 6 chips; allowed: 1, 2, 3, 6"):
        TargetName.parse("cpux6-tp4")
