"""Read a YAML file into plain Python values, with the line of each field and every fault at once.

Only what JSON can say is taken: mappings with text keys, lists, text, numbers, true, false, null.
The traps of YAML become messages instead of surprises: a repeated key, a key that is no text
(`on` is true under YAML 1.1), `{trn2:1}` (a key without a value), dates, tags, alias bombs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from runtime.spec.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from ruamel.yaml.nodes import Node

Location: TypeAlias = tuple[str | int, ...]

MAX_BYTES: Final = 1 << 20
MAX_VALUES: Final = 20_000
MAX_DEPTH: Final = 32
MAX_DIGITS: Final = 30

_TAG: Final = "tag:yaml.org,2002:"
_CONSTANTS: Final = {"null": None, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and where."""

    location: Location
    line: int
    message: str


@dataclass(slots=True)
class Document:
    """A parsed file: its values, the line (from 1) of each location, and what was wrong."""

    data: object = None
    lines: dict[Location, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def line_of(self, location: Location) -> int:
        """Give the line of a location, or of the nearest one around it."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)


def read_document(path: Path) -> Document:
    """Read a YAML file; faults of single fields are collected in the document.

    Raises:
        SpecError: the file cannot be read, is no UTF-8 text, too large, or no YAML at all.
    """
    text = _read_text(path)
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        msg = f"{path}:{line}: not valid YAML: {_one_line(error.problem or error.context)}"
        raise SpecError(msg, remedy="check the indentation, quotes and brackets there") from None
    except (YAMLError, ValueError, RecursionError) as error:
        detail = "nested too deeply" if isinstance(error, RecursionError) else _one_line(str(error))
        msg = f"{path}: not valid YAML: {detail}"
        raise SpecError(msg, remedy="write plain YAML text, one document") from None
    document = Document()
    if root is not None:
        document.data = _Builder(document).build(root, ())
    return document


def _read_text(path: Path) -> str:
    remedy = "`luma init` writes a commented job file"
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        msg = f"{path}: cannot be read: {(error.strerror or 'unknown reason').lower()}"
        raise SpecError(msg, remedy=remedy) from None
    if len(raw) > MAX_BYTES:
        msg = f"{path}: larger than {MAX_BYTES} bytes; this is no job file"
        raise SpecError(msg, remedy=remedy)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"{path}: byte {error.start} is not UTF-8; expected a text file"
        raise SpecError(msg, remedy=remedy) from None


def _one_line(text: str | None) -> str:
    return " ".join((text or "unreadable").split())


class _Builder:
    """Turns ruamel's nodes into plain values; a node that is refused gives None and a fault."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._values = 0

    def build(self, node: Node, location: Location) -> object:
        line = node.start_mark.line + 1
        self._document.lines.setdefault(location, line)
        self._values += 1
        if self._values > MAX_VALUES or len(location) > MAX_DEPTH:
            # An alias bomb is a few lines that stand for billions of values: stop, do not expand.
            if self._values <= MAX_VALUES + 1:
                self._fault(location, line, "too many or too deeply nested values for a job file")
            return None
        if isinstance(node, MappingNode):
            return self._mapping(node, location)
        if isinstance(node, SequenceNode):
            return [self.build(item, (*location, i)) for i, item in enumerate(node.value)]
        return self._scalar(node, location, line)

    def _mapping(self, node: MappingNode, location: Location) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._key(key_node, location, line)
            if key is None:
                continue
            here = (*location, key)
            if key in result:
                first = self._document.lines[here]
                self._fault(here, line, f"written twice, first in line {first}; keep one of them")
                continue
            self._document.lines[here] = line
            result[key] = self.build(value_node, here)
        return result

    def _key(self, node: Node, location: Location, line: int) -> str | None:
        kind = _kind(node)
        if isinstance(node, ScalarNode) and kind == "str":
            return str(node.value)
        shown = repr(str(node.value)) if isinstance(node, ScalarNode) else "a list or mapping"
        self._fault(location, line, f"the key {shown} is no text; expected a field's name")
        return None

    def _scalar(self, node: Node, location: Location, line: int) -> object:
        kind, text = _kind(node), str(node.value)
        try:
            if kind == "str":
                return text
            if kind == "null":
                return None
            if kind == "bool":
                return _CONSTANTS[text.lower()]
            if kind in {"int", "float"} and len(text) <= MAX_DIGITS:
                return _number(kind, text)
        except (KeyError, ValueError):
            pass
        shown = text if len(text) <= MAX_DIGITS else f"{text[:12]}... ({len(text)} characters)"
        what = "a number with too many digits" if kind in {"int", "float"} else f"a YAML {kind}"
        hint = "expected true or false" if kind == "bool" else "put it in quotes if text is meant"
        self._fault(location, line, f"{shown!r} is {what}; {hint}")
        return None

    def _fault(self, location: Location, line: int, message: str) -> None:
        self._document.faults.append(Fault(location, line, message))


def _kind(node: Node) -> str:
    return str(node.tag or "unknown tag").removeprefix(_TAG)


def _number(kind: str, text: str) -> int | float:
    plain = text.replace("_", "")
    if kind == "int":
        return int(plain, 0) if plain.lstrip("+-")[:2].lower() in {"0x", "0o"} else int(plain)
    special = {".inf": "inf", "-.inf": "-inf", "+.inf": "inf", ".nan": "nan"}
    return float(special.get(plain.lower(), plain))
