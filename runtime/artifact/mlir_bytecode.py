r"""Telling from MLIR bytecode whose it is: a Triton kernel, a Mosaic kernel, or something else.

Only as much of the format is read as that needs (mlir.llvm.org/docs/BytecodeFormat): the magic
`ML\xefR`, a version, a producer, then sections, of which number 0 holds all strings, with the
dialects' names among them.
"""

from __future__ import annotations

__all__ = ["bytecode_kind"]

_MAGIC = b"ML\xefR"
_STRINGS = 0
_ALIGNED, _PADDING = 0x80, 0xCB
_MAX_STRINGS = 1 << 13
_MAX_SECTION = 1 << 20  # bytes of strings
_MAX_PRODUCER, _MAX_SECTIONS = 256, 32
_LISTED = 8

_KINDS = {
    "triton_ir": {b"tt", b"ttg", b"ttng", b"triton_gpu", b"triton_nvidia_gpu"},
    "mosaic_ir": {b"tpu", b"mosaic_gpu"},
}


def bytecode_kind(data: bytes, start: int) -> tuple[str, bytes]:
    """Tell the kind of leak that the bytecode at `start` is, and some strings of it.

    Returns:
        "triton_ir", "mosaic_ir", or "mlir_bytecode" for any other, also where it is cut or
        altered; and a line for people.
    """
    try:
        strings = _strings(data, start + len(_MAGIC))
    except (IndexError, ValueError):
        return "mlir_bytecode", b"MLIR bytecode that is not whole"
    line = b"MLIR bytecode: " + b" ".join(strings[:_LISTED])
    for kind, dialects in _KINDS.items():
        if dialects.intersection(strings) or any(s.startswith(b"stable_mosaic") for s in strings):
            return kind if dialects.intersection(strings) else "mosaic_ir", line
    return "mlir_bytecode", line


def _strings(data: bytes, at: int) -> list[bytes]:
    """Give the strings of the bytecode whose version stands at `at`.

    Raises:
        IndexError: it ends before.
        ValueError: it has another form.
    """
    _, at = _varint(data, at)
    at = data.index(b"\0", at, at + _MAX_PRODUCER) + 1
    for _ in range(_MAX_SECTIONS):
        section, at = data[at], at + 1
        size, at = _varint(data, at)
        if section & _ALIGNED:
            _, at = _varint(data, at)
            while data[at] == _PADDING:
                at += 1
        if section & ~_ALIGNED == _STRINGS:
            if size > _MAX_SECTION:
                raise ValueError(f"{size} bytes of strings")
            return _string_section(data[at : at + size])
        at += size
    raise ValueError("no section of strings")


def _string_section(section: bytes) -> list[bytes]:
    """Give the strings of a string section: their number, lengths in reverse, and characters."""
    count, at = _varint(section, 0)
    if count > _MAX_STRINGS:
        raise ValueError(f"{count} strings")
    lengths = []
    for _ in range(count):
        length, at = _varint(section, at)
        lengths.append(length)
    strings = []
    for length in reversed(lengths):
        strings.append(section[at : at + length - 1])  # less the zero at the end
        at += length
    return strings


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Give (value, position behind it) of a prefix varint: its low zero bits tell its length."""
    first = data[at]
    if first == 0:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    more = (first & -first).bit_length()  # bytes in all
    if at + more > len(data):
        raise IndexError(at)
    return int.from_bytes(data[at : at + more], "little") >> more, at + more
