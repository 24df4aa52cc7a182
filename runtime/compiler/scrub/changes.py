"""What becomes of each telling field: dropped, renamed, or cut."""

from __future__ import annotations

from runtime.artifact.protobuf import join, split

__all__ = ["Scrubber", "skeleton_change"]

_DROPPED = frozenset({"op_name", "source_path", "frame_function", "stack_frame"})


class Scrubber:
    """The change that scrubs one executable.

    A name is replaced by a short one that tells only in which order names were met, the same one
    wherever it stands: names within a module stay different, and a step that names a computation
    still finds it.
    """

    def __init__(self) -> None:
        """Start without names."""
        self._names: dict[bytes, bytes] = {}

    def __call__(self, tag: str, value: bytes) -> bytes | None:
        """Give what takes the place of a field's content, None for nothing."""
        if tag in _DROPPED:
            return None
        if tag == "module_name":
            return b"m0"
        if tag == "hlo_name":
            return self._renamed(value) if value else value
        if tag == "debug_options":
            return _without_paths(value)
        return value

    def _renamed(self, name: bytes) -> bytes:
        """Give the short name of a name."""
        return self._names.setdefault(name, b"i%d" % len(self._names))


def skeleton_change(tag: str, value: bytes) -> bytes | None:
    """Take out everything that a scrubber may change, so that two executables can be compared."""
    if tag == "debug_options":
        return _without_paths(value)
    return value if tag == "kernel_name" else None


def _without_paths(options: bytes) -> bytes:
    """Drop flags whose text looks like a path: where dumps, tools and libraries lie."""
    return join(
        [field for field in split(options) if not (field.value or b"").startswith((b"/", b"./"))]
    )
