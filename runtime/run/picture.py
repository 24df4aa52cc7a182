"""The picture of a run: loss over step with the interruptions marked, and a lane for each island.

Written as `loss.png` and `loss.svg`. The upper axes count steps, the lower ones seconds since the
first island joined; an interruption carries the same number in both.
"""

from __future__ import annotations

import textwrap
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.coordinator.plan import RunPlan
from runtime.run.files import write_bytes
from runtime.run.folder import RunFolder
from runtime.run.history import History, Interruption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOSS_COLOR = "#1f4e79"
REFERENCE_COLOR = "#e0a030"
LANE_COLOR = "#7fa8c9"
LOST_COLOR = "#c0392b"
CHECKPOINT_COLOR = "#2e7d4f"


def draw_run(folder: RunFolder) -> list[Path]:
    """Draw a run's picture from its records and write both files.

    Returns:
        The paths of `loss.png` and `loss.svg`.

    Raises:
        RunError: the records cannot be read, or the disk refuses.
    """
    import io

    history, plan, record = History.read(folder.path), RunPlan.read(folder.path), folder.record()
    reference = None
    if (folder.reference_dir / "log.sqlite").exists():
        reference = History.read(folder.reference_dir)
    paths = []
    with _style():
        figure = make_figure(history, title=record["name"], reference=reference)
        caption = _caption(plan, record)
        figure.text(0.01, 0.01, caption, fontsize=7, color="#555555", va="bottom")
        for suffix in ("png", "svg"):
            buffer = io.BytesIO()
            # Without a date, and with a fixed salt for ids, the SVG is a function of the run.
            metadata = {"Date": None} if suffix == "svg" else {}
            figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
            path = folder.path / f"loss.{suffix}"
            write_bytes(path, buffer.getvalue())
            paths.append(path)
    return paths


def make_figure(history: History, *, title: str, reference: History | None = None) -> Figure:
    """Give the figure of a run: two axes, without the caption.

    Args:
        history: the run's records, with one commit at least.
        title: the job's name.
        reference: the records of the uninterrupted reference, drawn beneath.
    """
    from matplotlib.figure import Figure

    lanes = history.lanes()
    height = 4.2 + 0.26 * max(3, len(lanes))
    with _style():
        figure = Figure(figsize=(8.6, height))
        loss, fleet = figure.subplots(
            2, 1, gridspec_kw={"height_ratios": [2.6, 0.5 + 0.28 * max(3, len(lanes))]}
        )
        marks = _numbered(history.interruptions())
        _draw_loss(loss, history, marks, reference)
        _draw_lanes(fleet, history, marks)
        loss.set_title(f"{title}: loss through the run's interruptions", loc="left", pad=14)
        figure.subplots_adjust(left=0.1, right=0.98, top=0.93, bottom=0.85 / height, hspace=0.34)
    return figure


def _style() -> AbstractContextManager[None]:
    import matplotlib as mpl

    return mpl.rc_context({"svg.hashsalt": "luma", "font.size": 9, "font.family": "DejaVu Sans"})


def _numbered(interruptions: list[Interruption]) -> list[tuple[int, Interruption]]:
    """Number the interruptions; those that hit together have one number."""
    numbered: list[tuple[int, Interruption]] = []
    for item in interruptions:
        same = numbered and abs(numbered[-1][1].time - item.time) < 0.1
        numbered.append((numbered[-1][0] if same else len({n for n, _ in numbered}) + 1, item))
    return numbered


def _draw_loss(
    axes: Axes, history: History, marks: list[tuple[int, Interruption]], reference: History | None
) -> None:
    if reference is not None:
        axes.plot(
            [commit.step for commit in reference.commits],
            [commit.loss for commit in reference.commits],
            color=REFERENCE_COLOR,
            linewidth=5,
            alpha=0.55,
            label="uninterrupted, one island",
        )
    steps = [commit.step for commit in history.commits]
    losses = [commit.loss for commit in history.commits]
    axes.plot(steps, losses, color=LOSS_COLOR, marker="o", markersize=3, label="this run")
    groups = _by_number(marks)
    for number, group in groups.items():
        axes.axvline(group[0].at_step, color=LOST_COLOR, linewidth=1, linestyle="--")
        _number(axes, number, group[0].at_step)
    axes.text(
        0.99,
        0.96,
        "\n".join(_describe(number, group) for number, group in groups.items()),
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize=7,
        color=LOST_COLOR,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
    )
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower left", fontsize=8, frameon=False)


def _draw_lanes(axes: Axes, history: History, marks: list[tuple[int, Interruption]]) -> None:
    lanes = history.lanes()
    start = min((lane.joined for lane in lanes), default=0.0)
    names = sorted({lane.island for lane in lanes}, key=lambda name: (len(name), name))
    rows = {name: row for row, name in enumerate(names)}
    for lane in lanes:
        width = max(lane.left - lane.joined, 0.05)
        axes.barh(rows[lane.island], width, left=lane.joined - start, height=0.55, color=LANE_COLOR)
        if lane.lost:
            axes.plot(lane.left - start, rows[lane.island], marker="x", color=LOST_COLOR, mew=2)
    for event in history.of_kind("commit"):
        for island in event["members"]:
            if island in rows:
                at, row = event["time"] - start, rows[island]
                axes.plot([at, at], [row - 0.27, row + 0.27], color="white", linewidth=0.6)
    for event in history.of_kind("checkpoint"):
        if event.get("writer") in rows:
            at = event["time"] - start
            axes.plot(at, rows[event["writer"]], marker="D", markersize=4, color=CHECKPOINT_COLOR)
    for number, group in _by_number(marks).items():
        at = group[0].time - start
        axes.axvline(at, color=LOST_COLOR, linewidth=1, linestyle="--")
        _number(axes, number, at)
    axes.set_yticks(list(rows.values()), list(rows))
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds since the first island joined")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _number(axes: Axes, number: int, at: float) -> None:
    """Write an interruption's number above the axes."""
    axes.annotate(
        str(number),
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        ha="center",
        va="bottom",
        fontsize=8,
        color=LOST_COLOR,
    )


def _describe(number: int, group: list[Interruption]) -> str:
    """Give an interruption's line: number, kind, whom it hit, and what it cost."""
    names = ", ".join(item.island for item in group)
    seconds = group[-1].seconds_to_next_commit
    after = "no commit followed" if seconds is None else f"next commit after {seconds:.1f} s"
    return f"{number}  {group[0].kind} {names}: {after}"


def _by_number(marks: list[tuple[int, Interruption]]) -> dict[int, list[Interruption]]:
    groups: dict[int, list[Interruption]] = {}
    for number, item in marks:
        groups.setdefault(number, []).append(item)
    return groups


def _caption(plan: RunPlan, record: dict[str, Any]) -> str:
    machine, versions = record["machine"], record["versions"]
    shown = [f"{name} {versions[name]}" for name in ("luma", "jax", "torch") if name in versions]
    text = (
        f"{plan.total_steps} steps of {plan.micro_shards} micro-shards x {plan.micro_batch}, seed"
        f" {plan.seed}; {plan.islands} islands at the start; {machine['cpu']},"
        f" {machine['cores']} cores; python {versions['python']}, {', '.join(shown)}. White ticks:"
        " committed steps. Diamonds: checkpoints. Crosses: islands lost."
    )
    return "\n".join(textwrap.wrap(text, 150))
