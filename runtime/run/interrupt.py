"""Ctrl-C: what it means while a run trains, and what it means before and after.

While a run trains, the first interrupt asks it to stop resumably and a second Ctrl-C ends
everything at once. At any other time there is nothing to save, and the first one ends the launch.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSwitch:
    """Turns interrupts into requests to stop, while it is armed, and else into `KeyboardInterrupt`.

    Use it as a context manager in the main thread to take over SIGINT, SIGTERM and SIGHUP. A signal
    that the process was started to ignore (`nohup` ignores SIGHUP) stays ignored. In other threads
    it leaves the signals alone, and only `request` sets it.

    Args:
        on_first: called once, when an interrupt asks for a stop.
    """

    def __init__(self, on_first: Callable[[], None] | None = None) -> None:
        self._on_first = on_first
        self._asked = False
        self._by_signal = False
        self._armed = False
        self._old: dict[int, Any] = {}

    def asked(self) -> bool:
        """Say whether a stop was asked for."""
        return self._asked

    def by_signal(self) -> bool:
        """Say whether a signal asked for it."""
        return self._by_signal

    def request(self) -> None:
        """Ask for a stop."""
        self._asked = True

    @contextmanager
    def armed(self) -> Generator[None]:
        """While the block runs, an interrupt asks for a stop instead of ending the launch."""
        self._armed = True
        try:
            yield
        finally:
            self._armed = False

    def __enter__(self) -> Self:
        """Take over the signals."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if not self._armed or (self._by_signal and number == signal.SIGINT):
            raise KeyboardInterrupt
        if not self._by_signal:
            self._asked = self._by_signal = True
            if self._on_first is not None:
                self._on_first()
