"""Stop strings over a stream: no part of one is ever sent."""

from __future__ import annotations


class StopFilter:
    """Passes text on until one of the stop strings appears, and nothing from there on.

    Text that could be the beginning of a stop string is held back until it is decided.

    Args:
        stop: the strings; empty ones are refused by the gateway before.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Take the next text and give what is certain to be part of the answer."""
        if self.stopped:
            return ""
        self._held += text
        found = [i for i in (self._held.find(s) for s in self._stop) if i >= 0]
        if found:
            self.stopped = True
            out, self._held = self._held[: min(found)], ""
            return out
        keep = self._undecided()
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out

    def flush(self) -> str:
        """Give what is still held back: the answer ended, so it was no stop string."""
        out, self._held = self._held, ""
        return out

    def _undecided(self) -> int:
        """Count the last characters that begin a stop string."""
        longest = max((len(s) for s in self._stop), default=0) - 1
        for n in range(min(longest, len(self._held)), 0, -1):
            if any(s.startswith(self._held[-n:]) for s in self._stop):
                return n
        return 0
