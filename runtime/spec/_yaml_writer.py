"""Write plain values as YAML that every reader takes back as they are.

Mappings are blocks; everything else is in JSON's notation, which YAML shares. ruamel's own writer
leaves some text without quotes that its reader then refuses (0.19.1: `?0` inside braces).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

_PLAIN_KEY: Final = re.compile(r"[a-z][a-z_]*")
_WORDS: Final = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def write_yaml(data: dict[str, Any]) -> str:
    """Give the YAML text of a mapping of JSON values."""
    return "".join(f"{line}\n" for line in _lines(data, ""))


def _lines(data: dict[str, Any], indent: str) -> Iterator[str]:
    for key, value in data.items():
        plain = _PLAIN_KEY.fullmatch(key) and key not in _WORDS
        name = key if plain else _json(key)
        if isinstance(value, dict) and value:
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {_json(value)}"


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # YAML refuses some characters as they are, and JSON's pairs of escapes above U+FFFF.
    return re.sub(r"[^\x20-\x7e]", lambda found: f"\\U{ord(found[0]):08x}", text)
