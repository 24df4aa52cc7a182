"""Properties of the event parser and the stop filter: pieces never change the result."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.serve.back_ends._sse import MAX_LINE_BYTES, EventParser
from runtime.serve.back_ends.stop_strings import StopFilter

LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=4),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from(["data:", "data: "]),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_events_survive_any_cut_and_any_line_end(
    events: list[list[str]], end: str, field: str, cuts: list[int]
) -> None:
    text = "".join(
        f": comment{end}" + "".join(f"{field}{line}{end}" for line in lines) + end
        for lines in events
    )
    expected = ["\n".join(lines) for lines in events]
    if field == "data:":  # one leading space belongs to the format
        expected = ["\n".join(line.removeprefix(" ") for line in lines) for lines in events]
    parser = EventParser()
    got = [data for piece in pieces(text.encode(), cuts) for data in parser.feed(piece)]
    assert got == expected


def test_an_event_that_is_cut_off_is_no_event() -> None:
    assert list(EventParser().feed(b'data: {"finish_reason": "stop"}\n')) == []


def test_an_endless_line_is_an_error() -> None:
    parser = EventParser()
    with pytest.raises(ValueError, match="longer"):
        list(parser.feed(b"x" * (MAX_LINE_BYTES + 1)))


@settings(max_examples=300, deadline=None)
@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 100), max_size=10),
)
def test_the_text_ends_before_the_first_stop_string(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    """Fed whole or in pieces: never a part of a stop string, never a lost character."""
    text_filter = StopFilter(tuple(stops))
    sent = [text_filter.feed(p.decode()) for p in pieces(text.encode(), cuts)]
    if not text_filter.stopped:
        sent.append(text_filter.flush())
    # The first stop string to be completed ends the answer, so compare at its completion.
    ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    got = "".join(sent)
    if not ends:
        assert got == text
        return
    assert text_filter.stopped
    assert text.startswith(got)
    assert not any(s in got for s in stops)
    assert any(text[len(got) :].startswith(s) for s in stops)
