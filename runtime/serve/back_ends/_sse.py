"""Server-sent events, read from bytes as they come.

The stream splits only at CR, LF and CRLF, and only after decoding whole lines: a UTF-8 character may
arrive a byte at a time, and U+2028 is a character like any other (`str.splitlines` would cut at it).
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_LINE_BYTES = 4 * 1024 * 1024


class EventParser:
    """Turns chunks of bytes into the `data` of whole events.

    An event counts only when its blank line has come: a stream that is cut inside an event yields
    nothing for it.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data: list[str] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Take the next bytes and give the data of each event that they complete.

        Raises:
            ValueError: if a line is not UTF-8 or longer than `MAX_LINE_BYTES`.
        """
        self._buffer += chunk
        for line in self._lines():
            data = self._take(line.decode("utf-8"))
            if data is not None:
                yield data
        if len(self._buffer) > MAX_LINE_BYTES:
            msg = f"an event's line is longer than {MAX_LINE_BYTES} bytes"
            raise ValueError(msg)

    def _lines(self) -> Iterator[bytes]:
        while True:
            if self._after_cr and self._buffer[:1] == b"\n":
                del self._buffer[:1]
            if self._buffer:
                self._after_cr = False
            ends = [i for i in (self._buffer.find(b"\n"), self._buffer.find(b"\r")) if i >= 0]
            if not ends:
                return
            end = min(ends)
            self._after_cr = self._buffer[end] == ord("\r")
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            yield line

    def _take(self, line: str) -> str | None:
        """Handle one line; return the event's data at its blank line."""
        if line:
            field, _, value = line.partition(":")
            if field == "data":
                self._data.append(value.removeprefix(" "))
            return None
        data, self._data = self._data, []
        return "\n".join(data) if data else None
