"""What a job's thread tells the thread that owns its connection.

Only the owner sends and receives records, so their numbers never race. It waits on the connection
and on the mailbox at once, and so sees a client that leaves in the middle of a compile.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Self

from enclave_image.service.errors import PeerGoneError
from enclave_image.service.protocol import Frame

__all__ = ["Ask", "Mailbox", "Say"]


@dataclass(frozen=True, slots=True)
class Say:
    """A message for the client."""

    kind: str
    fields: dict[str, object]


@dataclass(frozen=True, slots=True)
class Ask:
    """A message for the client that it answers.

    Attributes:
        kind: of the message.
        fields: its fields.
        answer: the kind of the answer.
        reply: takes the answer; None where there will be none.
    """

    kind: str
    fields: dict[str, object]
    answer: str
    reply: queue.SimpleQueue[Frame | None] = field(default_factory=queue.SimpleQueue)


class Mailbox:
    """Items from one thread to another that waits on a descriptor; a context manager."""

    def __init__(self) -> None:
        self._items: deque[Say | Ask | None] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._reader, self._writer = socket.socketpair()
        self._writer.settimeout(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Give the descriptor that is readable while there are items."""
        return self._reader.fileno()

    def say(self, kind: str, **fields: object) -> None:
        """Have a message sent.

        Raises:
            PeerGoneError: the owner has given up.
        """
        self._put(Say(kind, fields))

    def ask(self, kind: str, *, answer: str, **fields: object) -> Frame:
        """Have a message sent, and wait for its answer.

        Raises:
            PeerGoneError: the owner has given up.
        """
        asked = Ask(kind, fields, answer)
        self._put(asked)
        found = asked.reply.get()
        if found is None:
            raise _given_up()
        return found

    def end(self) -> None:
        """Say that the job is over."""
        self._put(None)

    def take(self) -> list[Say | Ask | None]:
        """Give what came; None stands for the job's end."""
        self._reader.recv(4096)
        with self._lock:
            items = list(self._items)
            self._items.clear()
        return items

    def close(self) -> None:
        """Give up: whoever asks or says something from now on learns of it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for item in self._items:
                if isinstance(item, Ask):
                    item.reply.put(None)
            self._items.clear()
            self._reader.close()
            self._writer.close()

    def _put(self, item: Say | Ask | None) -> None:
        with self._lock:
            if self._closed:
                if item is None:
                    return
                raise _given_up()
            self._items.append(item)
            try:
                self._writer.send(b"\0")
            except BlockingIOError:
                return  # full of bytes that nobody has read yet: the owner will wake anyway


def _given_up() -> PeerGoneError:
    return PeerGoneError("the client left", reason="gone")
