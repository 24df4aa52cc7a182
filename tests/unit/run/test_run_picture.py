"""The picture of a run: both files are there and whole, and show what happened."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ET

import pytest

from runtime.run.history import History
from runtime.run.picture import draw_run, make_figure


def texts_of(figure) -> list[str]:
    """Give every text in a figure."""
    import matplotlib.text

    return [item.get_text() for item in figure.findobj(matplotlib.text.Text)]


def test_png_and_svg_are_written_whole(recorded_run):
    folder = recorded_run()
    png, svg = draw_run(folder)
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert png.read_bytes()[-8:-4] == b"IEND"
    assert ET.parse(svg).getroot().tag.endswith("svg")
    assert not list(folder.path.glob(".loss*"))


def test_the_svg_is_a_function_of_the_run(recorded_run):
    folder = recorded_run()
    first = draw_run(folder)[1].read_bytes()
    assert draw_run(folder)[1].read_bytes() == first
    assert b"<dc:date>" not in first


def test_axes_have_units_and_every_island_a_lane(recorded_run):
    figure = make_figure(History.read(recorded_run().path), title="recorded")
    loss, fleet = figure.axes
    assert loss.get_xlabel() == "step"
    assert "nats" in loss.get_ylabel()
    assert "seconds" in fleet.get_xlabel()
    lanes = [label.get_text() for label in fleet.get_yticklabels()]
    assert lanes == ["island-0", "island-1", "island-2", "island-3"]


def test_the_loss_curve_holds_every_committed_step(recorded_run):
    history = History.read(recorded_run().path)
    figure = make_figure(history, title="recorded")
    curve = next(line for line in figure.axes[0].lines if line.get_label() == "this run")
    assert list(curve.get_xdata()) == list(range(20))
    assert list(curve.get_ydata()) == [commit.loss for commit in history.commits]


def test_the_interruption_is_marked_at_its_step_and_named(recorded_run):
    figure = make_figure(History.read(recorded_run().path), title="recorded")
    assert any("SIGKILL island-1: next commit after 1.4 s" in text for text in texts_of(figure))
    marks = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert [mark.get_xdata()[0] for mark in marks] == [12]


def test_a_run_without_interruptions_has_no_marks(recorded_run):
    figure = make_figure(History.read(recorded_run(kill_step=None).path), title="recorded")
    assert [line for line in figure.axes[0].lines if line.get_linestyle() == "--"] == []


def test_a_reference_is_drawn_beneath_the_run(recorded_run):
    folder = recorded_run()
    history = History.read(folder.path)
    figure = make_figure(history, title="recorded", reference=history)
    assert figure.axes[0].lines[0].get_label() == "uninterrupted, one island"


def test_the_caption_names_hardware_versions_and_seed(recorded_run):
    svg = draw_run(recorded_run())[1].read_text()
    # matplotlib writes glyphs as paths and keeps the text in comments.
    for part in ("seed 7", "Example CPU", "jax 0.10.2"):
        assert part in " ".join(re.findall(r"<!-- (.*?) -->", svg))


@pytest.mark.parametrize("missing", ["log.sqlite", "plan.json"])
def test_a_broken_run_folder_is_an_error_and_leaves_no_picture(recorded_run, missing):
    from runtime.spec import LumaError

    folder = recorded_run()
    (folder.path / missing).unlink()
    shutil.rmtree(folder.islands_dir)
    with pytest.raises(LumaError):
        draw_run(folder)
    assert not (folder.path / "loss.png").exists()
