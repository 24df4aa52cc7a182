"""docs/explanation/levels.md and its picture say what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from runtime.artifact import LEVELS
from runtime.artifact.levels import needs

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explanation" / "levels.md").read_text(encoding="utf-8")


def test_the_table_of_evidence_is_the_codes():
    table = PAGE.partition("| level | evidence |")[2].partition("\n\n")[0]
    found: dict[str, list[str]] = {}
    level = ""
    for row in table.splitlines()[2:]:
        cells = [cell.strip() for cell in row.split("|")]
        level = cells[1] or level
        found.setdefault(level, []).append(cells[2].strip("`"))
    below: tuple = ()
    for name in LEVELS:
        assert below + tuple(found[name]) == needs(name)
        below = needs(name)


def test_the_picture_is_what_its_script_draws(tmp_path):
    drawn = tmp_path / "drawn.svg"
    script = ROOT / "docs" / "images" / "trust_chain.py"
    subprocess.run([sys.executable, "-B", str(script), str(drawn)], check=True, timeout=100)
    kept = (ROOT / "docs" / "images" / "trust-chain.svg").read_text(encoding="utf-8")

    # The words: coordinates may differ in the last digit between versions of matplotlib.
    def words(svg: str) -> list[str]:
        return re.findall(r">([^<>]+)</text>", svg)

    assert words(kept)
    assert words(drawn.read_text(encoding="utf-8")) == words(kept)


def test_pages_that_are_linked_are_there():
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / "explanation" / link).resolve().exists(), link
