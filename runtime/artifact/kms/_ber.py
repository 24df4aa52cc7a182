"""A bounded reader of BER (X.690), for the little that KMS's answers need.

Definite and indefinite lengths, primitive and constructed octet strings, tags below 31. The input
is read once from front to back, by counting positions rather than by search; size, depth and
number of nodes are limited before anything is kept, so hostile bytes cost no more than good ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.spec.errors import ArtifactError

__all__ = [
    "MAX_DEPTH",
    "MAX_NODES",
    "OBJECT",
    "OCTETS",
    "SEQUENCE",
    "SET",
    "Node",
    "context",
    "read",
]

OCTETS, OBJECT, SEQUENCE, SET = 0x04, 0x06, 0x10, 0x11

MAX_DEPTH = 16
"""Deepest accepted nesting: twice what KMS's form has."""
MAX_NODES = 256
"""Most accepted nodes: KMS's form has about 30."""

_CONSTRUCTED = 0x20
_NUMBER = 0x1F
_INDEFINITE = 0x80
_MAX_LENGTH_BYTES = 4


def context(number: int) -> int:
    """Give the tag of a context-specific node, `[number]` in ASN.1."""
    return 0x80 | number


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One value: a tag, and either bytes or further nodes.

    Attributes:
        tag: class bits and number, without the constructed bit.
        constructed: whether it holds nodes.
        content: the bytes of a primitive node.
        children: the nodes of a constructed one.
    """

    tag: int
    constructed: bool
    content: bytes
    children: tuple[Node, ...]

    def require(self, tag: int, where: str) -> None:
        """Refuse another tag, or a form that the tag cannot have.

        Raises:
            ArtifactError: another tag; a structure that is primitive, or a value in parts.
        """
        if self.tag != tag:
            raise ArtifactError(f"{where}: tag 0x{self.tag:02x}; expected 0x{tag:02x}")
        structured = tag in (SEQUENCE, SET) or tag >= context(0)
        if self.constructed != structured:
            form = "constructed" if self.constructed else "primitive"
            raise ArtifactError(f"{where}: a {form} value is not allowed here")

    def octets(self, tag: int, where: str) -> bytes:
        """Give an octet string, whole or in parts; `tag` stands in place of its own if implicit.

        Raises:
            ArtifactError: another tag, or a part that is no octet string.
        """
        if self.tag != tag:
            raise ArtifactError(f"{where}: tag 0x{self.tag:02x}; expected 0x{tag:02x}")
        if not self.constructed:
            return self.content
        return b"".join(child.octets(OCTETS, where) for child in self.children)


def read(data: bytes, *, what: str, max_bytes: int) -> Node:
    """Read one BER value, which must be all of `data`.

    Args:
        data: the bytes, from anywhere.
        what: the name of the thing in error messages.
        max_bytes: largest accepted size.

    Raises:
        ArtifactError: too large, cut short, followed by other bytes, nested too deep, of too many
            nodes, or with a tag or length that is not allowed.
    """
    if len(data) > max_bytes:
        raise ArtifactError(f"{what}: {len(data)} bytes are more than the {max_bytes} allowed")
    reader = _Reader(data, what)
    node = reader.node(len(data), depth=1)
    if reader.position != len(data):
        raise ArtifactError(f"{what}: {len(data) - reader.position} bytes follow the value")
    return node


class _Reader:
    """A position in the input, and what was counted on the way to it."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._nodes = 0
        self.position = 0

    def node(self, end: int, *, depth: int) -> Node:
        """Read a value that must lie before `end`."""
        self._nodes += 1
        if depth > MAX_DEPTH:
            raise self._bad(f"nested deeper than {MAX_DEPTH}")
        if self._nodes > MAX_NODES:
            raise self._bad(f"more than {MAX_NODES} values")
        first = self._byte(end)
        if first & _NUMBER == _NUMBER or first == 0:
            raise self._bad(f"tag 0x{first:02x} is not allowed")
        constructed = bool(first & _CONSTRUCTED)
        length = self._length(end)
        content, children = b"", ()
        if length is None:
            if not constructed:
                raise self._bad("a primitive value of indefinite length")
            children = self._until_mark(end, depth)
        elif constructed:
            children = self._within(self.position + length, depth)
        else:
            content = self._data[self.position : self.position + length]
            self.position += length
        return Node(
            tag=first & ~_CONSTRUCTED, constructed=constructed, content=content, children=children
        )

    def _within(self, end: int, depth: int) -> tuple[Node, ...]:
        """Read values up to `end` exactly."""
        children = []
        while self.position < end:
            children.append(self.node(end, depth=depth + 1))
        return tuple(children)

    def _until_mark(self, end: int, depth: int) -> tuple[Node, ...]:
        """Read values up to the end-of-contents mark, two zero bytes."""
        children = []
        while self._data[self.position : min(self.position + 2, end)] != b"\0\0":
            children.append(self.node(end, depth=depth + 1))
        self.position += 2
        return tuple(children)

    def _length(self, end: int) -> int | None:
        """Read a length; None if indefinite. A definite one fits before `end`."""
        first = self._byte(end)
        if first == _INDEFINITE:
            return None
        length = first
        if first > _INDEFINITE:
            count = first - _INDEFINITE
            if count > _MAX_LENGTH_BYTES:
                raise self._bad(f"a length of {count} bytes")
            length = 0
            for _ in range(count):
                length = length << 8 | self._byte(end)
        if length > end - self.position:
            raise self._bad(f"a length of {length} where {end - self.position} bytes are left")
        return length

    def _byte(self, end: int) -> int:
        """Read a byte before `end`."""
        if self.position >= end:
            raise self._bad("cut short")
        value = self._data[self.position]
        self.position += 1
        return value

    def _bad(self, reason: str) -> ArtifactError:
        """Give the error for the place that was reached."""
        return ArtifactError(
            f"{self._what}: not the BER that KMS writes, at byte {self.position}: {reason}"
        )
