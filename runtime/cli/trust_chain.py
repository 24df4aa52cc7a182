"""The chain of evidence of an artifact, drawn as a tree in the terminal."""

from __future__ import annotations

import io
import os
import re
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from runtime.artifact import Evidence, Verification

__all__ = ["chain_lines"]

_STYLES = {"holds": "green", "does not hold": "red", "not given": "yellow"}
_BELOW = {"signer": "signature", "key-policy": "seal", "image": "attestation"}
"""What hangs below which link; the others hang on the artifact."""

_WIDTH = 4096  # the terminal folds long lines; cut ones would hide what they say
_HEX = re.compile(r"(?<![0-9A-Fa-f])[0-9a-f]{40,}")
_SHOWN_DIGITS = 16


def chain_lines(found: Verification, path: Path) -> Iterable[str]:
    """Give the tree, line by line; `--json` has every value whole, here long digests are cut.

    Args:
        found: the verification.
        path: the artifact's file.
    """
    root = Tree(
        f"[bold]artifact[/] {escape(str(path))}: {_short(found.digest)}, "
        f"targets {escape(', '.join(found.targets))}"
    )
    nodes: dict[str, Tree] = {}
    for item in found.evidence:
        below = nodes.get(_BELOW.get(item.name, ""), root)
        nodes[item.name] = _add(below, item)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    drawn = io.StringIO()
    console = Console(
        file=drawn, width=_WIDTH, force_terminal=colour, no_color=not colour, highlight=False
    )
    console.print(root)
    return (line.rstrip() for line in drawn.getvalue().splitlines())


def _add(parent: Tree, item: Evidence) -> Tree:
    """Hang a link, what it says and what it needs, on another."""
    style = _STYLES[item.state]
    name = item.name.replace("-", " ")
    node = parent.add(f"[bold]{name}[/] [{style}]{item.state}[/]: {escape(_short(item.detail))}")
    for label, value in item.facts.items():
        if isinstance(value, str):
            node.add(f"{escape(label)}: {escape(_short(value))}")
            continue
        listed = node.add(f"{escape(label)}:")
        for text in value:
            listed.add(escape(_short(text)))
    if item.needed is not None:
        node.add(f"needed: {escape(_short(item.needed))}")
    return node


def _short(text: str) -> str:
    """Cut long digests."""
    return _HEX.sub(lambda match: match[0][:_SHOWN_DIGITS] + "…", text)
