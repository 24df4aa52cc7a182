"""Whatever a loop computes, its scan gives the unrolled graph's values."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.compiler.graph import Graph, Ref
from runtime.compiler.passes.reroll import reroll
from tests.unit.passes.loops import Tracer, assert_equal, scans

_WIDTH, _ROWS = 3, 48
_CARRIES = 2


@dataclass(frozen=True)
class Step:
    """One line of a body: an op on earlier values, or a row that the iteration decides."""

    op: str
    left: int
    right: int
    start: int
    stride: int


@dataclass(frozen=True)
class Loop:
    """A body, what its carries become, and what is used after it: (line, iteration)."""

    steps: tuple[Step, ...]
    following: tuple[int, ...]
    used: tuple[tuple[int, int], ...]


_OPS = ("row", "window", "add.Tensor", "mul.Tensor", "sin.default", "write", "listed")


@st.composite
def loops(draw: st.DrawFn, length: int) -> Loop:
    """Draw a body of up to seven lines."""
    count = draw(st.integers(1, 7))
    number = st.integers(0, _CARRIES + count - 1)
    steps = tuple(
        Step(
            op=draw(st.sampled_from(_OPS)),
            left=draw(number),
            right=draw(number),
            start=draw(st.integers(length * 2, _ROWS - 2 * length - 3)),
            stride=draw(st.sampled_from([-2, -1, 0, 1, 2])),
        )
        for _ in range(count)
    )
    following = tuple(draw(number) for _ in range(_CARRIES))
    used = draw(st.lists(st.tuples(number, st.integers(0, length - 1)), max_size=4))
    return Loop(steps, following, tuple(used))


def _unroll(trace: Tracer, loop: Loop, length: int, given_list: list[Ref]) -> list[Ref]:
    """Trace the loop; give its carries and what is used, and every iteration's last line."""
    table, written = trace.input(_ROWS, _WIDTH), trace.input(_ROWS, _WIDTH)
    carries = [trace.input(_WIDTH) for _ in range(_CARRIES)]
    history: list[list[Ref]] = []
    for i in range(length):
        values = list(carries)
        for step in loop.steps:
            left, right = (values[n % len(values)] for n in (step.left, step.right))
            place = step.start + step.stride * i
            if step.op == "row":
                values.append(trace.op("select.int", (table, 0, place), _WIDTH))
            elif step.op == "window":
                rows = trace.op("slice.Tensor", (table, 0, place, place + 3), 3, _WIDTH)
                values.append(trace.op("sum.dim_IntList", (rows, (0,)), _WIDTH))
            elif step.op == "write":
                args = (written, left, 0, place)
                written = trace.op("select_scatter.default", args, _ROWS, _WIDTH)
                values.append(left)
            elif step.op == "listed":
                values.append(given_list[-1 - i] if given_list else left)
            elif step.op == "sin.default":
                values.append(trace.op(step.op, (left,), _WIDTH))
            else:
                values.append(trace.op(step.op, (left, right), _WIDTH))
        history.append(values)
        carries = _followed(trace, *carries, *(values[n % len(values)] for n in loop.following))
    used = [history[i][line % len(history[i])] for line, i in loop.used]
    return [*carries, written, *used, *(values[-1] for values in history)]


def _followed(trace: Tracer, a: Ref, b: Ref, left: Ref, right: Ref) -> list[Ref]:
    """Give the next carries, bounded, each of both, so that no iteration is without use."""
    both = trace.op("add.Tensor", (a, b), _WIDTH)
    total = trace.op("add.Tensor", (both, left), _WIDTH)
    product = trace.op("mul.Tensor", (both, right), _WIDTH)
    return [
        trace.op("tanh.default", (total,), _WIDTH),
        trace.op("sigmoid.default", (product,), _WIDTH),
    ]


def _graph(first: Loop, second: Loop, length: int) -> Graph:
    """Trace two loops; the second may read, in reverse, the last lines of the first."""
    trace = Tracer()
    results = _unroll(trace, first, length, [])
    after = _unroll(trace, second, length, results[-length:])
    used = [*results[: -length + 1], *after[:-length]]
    return trace.graph(*used)


@given(first=loops(10), second=loops(10))
@settings(max_examples=4 * settings.default.max_examples)
def test_scans_give_the_values_of_the_unrolled_loops(first: Loop, second: Loop) -> None:
    """Two random loops, the second reading what the first kept, are each found."""
    graph = _graph(first, second, 10)
    rolled = reroll(graph)
    assert_equal(graph, rolled)
    # A value used of one iteration alone can leave too few that are alike.
    assert scans(rolled) or first.used or second.used
