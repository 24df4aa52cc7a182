"""Each op of this subject, lowered, gives what torch eager gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.lower.cases.linear_algebra import CASES
from tests.unit.lower.support import QUICK, Case, check_op


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
@QUICK
@given(data=st.data())
def test_op_matches_eager(case: Case, data: st.DataObject) -> None:
    """Values, shape and dtype are torch's, over dtypes, shapes and edge values."""
    check_op(case, data)
