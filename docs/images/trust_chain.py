# ruff: noqa: INP001 - a script beside what it draws, no package
"""Draw `trust-chain.svg`: what a verifier starts from, and what each level adds.

    .venv/bin/python docs/images/trust_chain.py

The picture holds no figure that was measured. It is the same bytes each time with one version of
matplotlib.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

WIDTH, HEIGHT = 11.0, 6.9
GIVEN, SHOWN, EDGE = "#fdf1d6", "#e3eefb", "#33475b"
LEFT, RIGHT, BOX_WIDTH, BOX_HEIGHT = 0.85, 6.55, 3.9, 0.84

ROWS = (
    (
        "L0",
        "signer's public key\n(--signer)",
        "signed manifest\nits SHA-384 is the artifact's digest d;\nit holds the signer's key",
        "signs",
    ),
    (
        "L1",
        "customer's key\n(--key-file, or --customer and KMS)",
        "sealed chunks\nAES-256-GCM, bound to d;\ntheir keyed digests stand in the manifest",
        "opens",
    ),
    (
        "L2",
        "AWS Nitro root (fixed)\nroot, region, zone, instance, leaf",
        "attestation document\nuser_data = d, judged at its own time,\nno debug mode",
        "signs",
    ),
    (
        "L2",
        "measurements.json (--measurements)\nPCR0, 1, 2, 8 by image name; luma enclave build",
        "PCRs in the document\nthe image that compiled and sealed",
        "equal",
    ),
    (
        "L3",
        "AMIs of measurements.json\nNitroTPM PCR4 and 12, or PCR7",
        "key policy (--key-policy)\nDecrypt denied to every other machine;\nas given: a file cannot show that it is in force",
        "only ones let in",
    ),
)
"""(level, what the verifier starts from, what is shown to him, how the first bears on the second)."""


def draw() -> Figure:
    """Give the figure."""
    figure = Figure(figsize=(WIDTH, HEIGHT))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(0, HEIGHT)
    axes.axis("off")
    top = HEIGHT - 0.35
    for x, text in ((LEFT, "what the verifier starts from"), (RIGHT, "what it is shown")):
        axes.text(x + BOX_WIDTH / 2, top, text, ha="center", va="center", weight="bold", size=11)
    for number, (level, given, shown, how) in enumerate(ROWS):
        y = top - 0.75 - number * 1.2
        axes.text(LEFT - 0.25, y, level, ha="right", va="center", weight="bold", size=13)
        _box(axes, LEFT, y, given, GIVEN)
        _box(axes, RIGHT, y, shown, SHOWN)
        _arrow(axes, (LEFT + BOX_WIDTH, y), (RIGHT, y))
        axes.text((LEFT + BOX_WIDTH + RIGHT) / 2, y + 0.14, how, ha="center", va="center", size=9)
        if number:
            _arrow(axes, (RIGHT + BOX_WIDTH / 2, y + 1.2 - BOX_HEIGHT / 2 - 0.06),
                   (RIGHT + BOX_WIDTH / 2, y + BOX_HEIGHT / 2 + 0.06))  # fmt: skip
    axes.text(
        WIDTH / 2,
        0.28,
        "A level needs all rows above its own as well; what the manifest claims bounds L0 to L2. "
        "d binds the rows to one artifact.",
        ha="center",
        va="center",
        size=9.5,
        style="italic",
    )
    return figure


def _box(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    """Draw a box with a bold first line, centred at height y."""
    style = "round,pad=0.05,rounding_size=0.08"
    axes.add_patch(
        FancyBboxPatch(
            (x, y - BOX_HEIGHT / 2),
            BOX_WIDTH,
            BOX_HEIGHT,
            boxstyle=style,
            facecolor=colour,
            edgecolor=EDGE,
        )
    )
    lines = text.split("\n")
    step = 0.25
    first = y + step * (len(lines) - 1) / 2
    for number, line in enumerate(lines):
        axes.text(
            x + BOX_WIDTH / 2,
            first - step * number,
            line,
            ha="center",
            va="center",
            size=9.5 if number == 0 else 8.5,
            weight="bold" if number == 0 else "normal",
        )


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw an arrow."""
    style = {"arrowstyle": "-|>", "color": EDGE, "shrinkA": 4, "shrinkB": 4}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


def write(path: Path) -> None:
    """Write the picture."""
    # Ids from a fixed salt, text as text, no date: the same figure gives the same bytes.
    with mpl.rc_context({"svg.hashsalt": "luma", "svg.fonttype": "none"}):
        FigureCanvasSVG(draw()).print_svg(path, metadata={"Date": None, "Title": "Trust chain"})


if __name__ == "__main__":
    target = Path(__file__).with_name("trust-chain.svg") if len(sys.argv) < 2 else Path(sys.argv[1])
    write(target)
