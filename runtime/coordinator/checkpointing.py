"""Who writes which checkpoint, and whether all islands agree on the state that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_HASHES_KEPT = 64


@dataclass(slots=True)
class CheckpointDuty:
    """The checkpoint being written, the one before it, and the states' hashes.

    One island writes (its buffers are reused), and one checkpoint is written at a time: one that
    falls due meanwhile is taken at the first commit after it.

    Attributes:
        due: a checkpoint is wanted at the next commit, whatever its step.
        last: applied steps of the newest durable checkpoint that is known, or -1.
        writing: applied steps of the checkpoint being written, or None.
    """

    due: bool = False
    last: int = -1
    writing: int | None = None
    _writer: str | None = None
    _hashes: dict[int, str] = field(default_factory=dict)

    def assign(self, step: int, candidates: Sequence[str]) -> str | None:
        """Give the island that writes the state after `step` steps: the same one while it lives.

        None when another checkpoint is still being written.
        """
        if self.writing is not None:
            self.due = True
            return None
        if self._writer not in candidates:
            self._writer = candidates[0]
        self.writing, self.due = step, False
        return self._writer

    def reassign(self, step: int, island: str) -> None:
        """Have `island` write the state after `step` steps, whoever wrote before."""
        self._writer, self.writing = island, step

    def written(self, step: int) -> None:
        """Take in that a checkpoint is durable."""
        self.last, self.writing = max(self.last, step), None

    def failed(self) -> None:
        """Take in that the checkpoint could not be written; it is tried again."""
        self.writing, self.due = None, True

    def forget(self, island: str) -> None:
        """Take in that an island is gone, and what it was writing with it."""
        if self._writer == island:
            self._writer = None
            if self.writing is not None:
                self.failed()

    def state_hash(self, step: int) -> str | None:
        """Give the hash of the state after `step` steps, where an island has told it."""
        return self._hashes.get(step)

    def disagreement(self, step: int, state_hash: str, island: str) -> str | None:
        """Compare an island's state after `step` steps with what others told; give what differs."""
        known = self._hashes.setdefault(step, state_hash)
        for old in [s for s in self._hashes if s < step - _HASHES_KEPT]:
            del self._hashes[old]
        if known == state_hash:
            return None
        return f"{island} has state {state_hash[:16]} after step {step}, others have {known[:16]}"
