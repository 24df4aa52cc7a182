"""The reference page and the code name the same rules."""

from __future__ import annotations

import re
from pathlib import Path

from runtime.artifact.attestation import Rule

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "attestation.md"


def test_the_table_of_rules_is_the_list_of_rules():
    rows = re.findall(r"^\| `([a-z_.]+)` \|", PAGE.read_text(), flags=re.MULTILINE)
    assert rows == [str(rule) for rule in Rule]
