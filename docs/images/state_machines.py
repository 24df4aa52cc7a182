# ruff: noqa: INP001 - a script beside what it draws, no package
"""Draw `training-jobs.svg` and `failover.svg`: both state machines, from their definitions.

    .venv/bin/python docs/images/state_machines.py

The pictures show what the console shows: every state under its name, Parallel and Map states around
what they hold, arrows for what comes next, dashed ones for errors that are caught. A way that leaves
rows out runs along the left, a way back up along the right, in grey. They are the same bytes each time with one version of matplotlib.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

COLOURS = {
    "Task": "#e3eefb",
    "Choice": "#fdf1d6",
    "Pass": "#f4f4f4",
    "Wait": "#ece6f6",
    "Succeed": "#dff3e1",
    "Fail": "#fbe0de",
    "Map": "#ffffff",
    "Parallel": "#ffffff",
}
EDGE, BACK, CAUGHT = "#33475b", "#b8c2cc", "#b3402e"
LETTER, HEIGHT = 0.078, 0.36
GAP_X, GAP_Y, PAD, TITLE = 0.3, 0.42, 0.22, 0.34


@dataclass(slots=True)
class Box:
    """One state, and what it holds.

    Attributes:
        name: of the state.
        kind: its type.
        ways: (next state, whether it is for a caught error).
        inner: the parts that a Parallel or Map holds.
        row: where it stands, from the top.
        width, height, x, y: its place; x and y are the upper left corner, y goes down.
    """

    name: str
    kind: str
    ways: list[tuple[str, bool]]
    inner: list[Part] = field(default_factory=list)
    row: int = 0
    width: float = 0.0
    height: float = 0.0
    x: float = 0.0
    y: float = 0.0


@dataclass(slots=True)
class Part:
    """A definition, or a part of one that a state holds.

    Attributes:
        boxes: its states, by name.
        rows: their names by row, from the top.
        width, height: its size.
    """

    boxes: dict[str, Box]
    rows: list[list[str]]
    width: float = 0.0
    height: float = 0.0


def part_of(definition: dict[str, Any]) -> Part:
    """Lay a definition out: each state below all that lead to it, ways back left aside."""
    boxes = {name: _box(name, state) for name, state in definition["States"].items()}
    depths = _depths(definition["StartAt"], boxes)
    rows: list[list[str]] = [[] for _ in range(max(depths.values()) + 1)]
    for name, box in boxes.items():
        rows[depths[name]].append(name)
        box.row = depths[name]
    part = Part(boxes, rows)
    _measure(part)
    return part


def _box(name: str, state: dict[str, Any]) -> Box:
    """Give a state as a box."""
    ways = [(way["Next"], False) for way in (state, *state.get("Choices", ())) if "Next" in way]
    if "Default" in state:
        ways.append((state["Default"], False))
    ways += [(way["Next"], True) for way in state.get("Catch", ())]
    held = [*state.get("Branches", ())]
    if "ItemProcessor" in state:
        held.append(state["ItemProcessor"])
    return Box(name, state["Type"], ways, [part_of(inner) for inner in held])


def _depths(start: str, boxes: dict[str, Box]) -> dict[str, int]:
    """Give the row of each state: the longest way to it that does not go round."""
    order: list[str] = []
    open_: set[str] = set()
    done: set[str] = set()
    back: set[tuple[str, str]] = set()

    def visit(name: str) -> None:
        open_.add(name)
        for target, _ in boxes[name].ways:
            if target in open_:
                back.add((name, target))
            elif target not in done:
                visit(target)
        open_.discard(name)
        done.add(name)
        order.append(name)

    visit(start)
    depths = dict.fromkeys(boxes, 0)
    for name in reversed(order):
        for target, _ in boxes[name].ways:
            if (name, target) not in back:
                depths[target] = max(depths[target], depths[name] + 1)
    return depths


def _measure(part: Part) -> None:
    """Give every box its size and its place in the part."""
    for box in part.boxes.values():
        box.width, box.height = 0.3 + LETTER * len(box.name), HEIGHT
        if box.inner:
            inside = sum(inner.width for inner in box.inner) + GAP_X * (len(box.inner) - 1)
            box.width = max(box.width, inside + 2 * PAD)
            box.height = TITLE + max(inner.height for inner in box.inner) + PAD
    widths = [sum(part.boxes[n].width for n in row) + GAP_X * (len(row) - 1) for row in part.rows]
    part.width = max(widths)
    y = 0.0
    for row, width in zip(part.rows, widths, strict=True):
        x = (part.width - width) / 2
        for name in row:
            box = part.boxes[name]
            box.x, box.y = x, y
            x += box.width + GAP_X
        y += max(part.boxes[name].height for name in row) + GAP_Y
    part.height = y - GAP_Y


def draw(definition: dict[str, Any], title: str) -> Figure:
    """Give the figure of a machine."""
    part = part_of(definition)
    width, height = part.width + 1.0, part.height + 1.2
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    axes.text(width / 2, 0.4, title, ha="center", va="center", weight="bold", size=13)
    _draw_part(axes, part, 0.5, 0.8)
    return figure


def _draw_part(axes: Axes, part: Part, x: float, y: float, level: int = 0) -> None:
    """Draw a part with its upper left corner at (x, y); deeper levels lie above."""
    for box in part.boxes.values():
        for target, caught in box.ways:
            _draw_way(axes, box, part.boxes[target], (x, y), level=level, caught=caught)
    for box in part.boxes.values():
        _draw_box(axes, box, x + box.x, y + box.y, level)


def _draw_box(axes: Axes, box: Box, x: float, y: float, level: int) -> None:
    """Draw a state, and what it holds."""
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            box.width,
            box.height,
            boxstyle="round,pad=0.02,rounding_size=0.07",
            facecolor=COLOURS[box.kind],
            edgecolor=EDGE,
            linewidth=1.4 if box.inner else 0.8,
            zorder=3 * level + 2,
        )
    )
    middle, top = x + box.width / 2, 3 * level + 3
    if not box.inner:
        y += box.height / 2
        axes.text(middle, y, box.name, ha="center", va="center", size=8, zorder=top)
        return
    label = f"{box.name} ({box.kind})"
    style: dict[str, Any] = {"ha": "center", "va": "center", "weight": "bold", "zorder": top}
    axes.text(middle, y + TITLE / 2, label, size=8.5, **style)
    inside = sum(inner.width for inner in box.inner) + GAP_X * (len(box.inner) - 1)
    left = middle - inside / 2
    for inner in box.inner:
        _draw_part(axes, inner, left, y + TITLE, level + 1)
        left += inner.width + GAP_X


def _draw_way(
    axes: Axes, box: Box, target: Box, at: tuple[float, float], *, level: int, caught: bool
) -> None:
    """Draw an arrow to the next row, along the left past others, or back up along the right."""
    x, y = at
    goes_back, skips = target.row <= box.row, target.row > box.row + 1
    if goes_back or skips:
        side = 1 if goes_back else 0
        start = (x + box.x + side * box.width, y + box.y + box.height / 2)
        end = (x + target.x + side * target.width, y + target.y + min(target.height, HEIGHT) / 2)
        rise = abs(end[1] - start[1])
        bend = f"arc3,rad={min(0.3, 1.2 / rise):.3f}"
    else:
        start = (x + box.x + box.width / 2, y + box.y + box.height + 0.02)
        end = (x + target.x + target.width / 2, y + target.y - 0.02)
        bend = "arc3,rad=0"
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            connectionstyle=bend,
            arrowstyle="-|>",
            mutation_scale=7,
            linewidth=0.7,
            linestyle="--" if caught else "-",
            color=CAUGHT if caught else BACK if goes_back else EDGE,
            shrinkA=0,
            shrinkB=0,
            alpha=0.85,
            zorder=3 * level + 1,
        )
    )


def synthesized() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Give file name, title and definition of both machines, from the constructs themselves."""
    import aws_cdk as cdk
    from aws_cdk import aws_autoscaling as autoscaling
    from aws_cdk import aws_iam as iam
    from aws_cdk import aws_sns as sns
    from aws_cdk import aws_sqs as sqs

    from luma_constructs.failover import FailoverStateMachine
    from luma_constructs.fleet_interface import ImportedFleet
    from luma_constructs.run_store import RunStore
    from luma_constructs.training_jobs import TrainingJobs

    app = cdk.App()
    stack = cdk.Stack(app, "Picture")
    imported = autoscaling.AutoScalingGroup.from_auto_scaling_group_name

    def fleet(name: str, purchase: str) -> ImportedFleet:
        return ImportedFleet(
            stack,
            name,
            fleet_name=name,
            target="cpu",
            queue=sqs.Queue(stack, f"{name}-queue"),
            role=iam.Role(stack, f"{name}-role", assumed_by=iam.AccountRootPrincipal()),
            auto_scaling_group=imported(stack, f"{name}-group", name),
            purchase=purchase,
        )

    store, topic = RunStore(stack, "Store"), sns.Topic(stack, "Topic")
    fleets = [fleet("spot", "spot"), fleet("floor", "on-demand")]
    coordinator, compiler = fleet("coordinator", "on-demand"), fleet("compiler", "on-demand")
    jobs = TrainingJobs(
        stack,
        "Jobs",
        fleets=fleets,
        coordinator=coordinator,
        compiler=compiler,
        store=store,
        topic=topic,
    )
    failover = FailoverStateMachine(
        stack,
        "Failover",
        fleets=[*fleets, coordinator, compiler],
        store=store,
        jobs=jobs.state_machine,
        topic=topic,
    )
    template = app.synth().get_stack_by_name("Picture").template
    for name, title, machine in (
        ("training-jobs", "TrainingJobs", jobs.state_machine),
        ("failover", "FailoverStateMachine", failover.state_machine),
    ):
        resource = template["Resources"][stack.get_logical_id(machine.node.default_child)]
        parts = resource["Properties"]["DefinitionString"]["Fn::Join"][1]
        text = "".join(part if isinstance(part, str) else "x" for part in parts)
        yield name, title, json.loads(text)


def write(folder: Path) -> None:
    """Write both pictures."""
    # Ids from a fixed salt, text as text, no date: the same figure gives the same bytes.
    with mpl.rc_context({"svg.hashsalt": "luma", "svg.fonttype": "none"}):
        for name, title, definition in synthesized():
            canvas = FigureCanvasSVG(draw(definition, title))
            canvas.print_svg(folder / f"{name}.svg", metadata={"Date": None, "Title": title})


if __name__ == "__main__":
    write(Path(__file__).parent if len(sys.argv) < 2 else Path(sys.argv[1]))
