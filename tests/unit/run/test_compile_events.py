"""What a user reads of a compile, whoever compiles."""

from __future__ import annotations

import pytest

from runtime.run.compile_events import tell_compile_event


class Lines:
    """A reporter that keeps its lines."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def stage(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"stage": "done", "cached": True, "seconds": 0.1}, "from the cache, nothing was compiled"),
        ({"stage": "done", "cached": False, "seconds": 5.25}, "compiled in 5.2 s"),
        ({"stage": "failed", "message": "no form\nmore"}, "failed: no form"),
        ({"stage": "waiting"}, "another process compiles the same; waiting for it"),
        ({"stage": "note", "message": "an entry was replaced"}, "an entry was replaced"),
        ({"stage": "lower", "program": "grad", "seconds": 3.0}, "program grad lowered in 3.0 s"),
        ({"stage": "compile", "program": "grad", "seconds": 2.9}, None),
    ],
)
def test_each_event_that_is_worth_a_line_has_one(event, line):
    lines = Lines()
    tell_compile_event(lines, {"target": "cpu", **event})
    assert lines.said == ([] if line is None else [f"cpu: {line}"])
