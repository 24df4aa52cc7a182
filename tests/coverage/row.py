"""One row of the coverage: how far an architecture came, and why no further."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

LEVELS = ("not built", "not trainable", "built", "captured", "compiled", "correct")
"""What an architecture reached, in order. "not trainable" is a property of the model itself: in
eager torch it gives no loss or gradients from token ids alone."""

STAGES = ("build", "eager", "capture", "second batch", "lower", "compile", "run", "")
"""What was under way, in order; "" when all was done."""

NEURON = ("", "none left", "left", "not judged")
"""The state of the pre-flight for Neuron: not run (yet), every op has a form, some have none, and
the pre-flight itself failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one architecture may use, and the size of its batch.

    Attributes:
        seconds: wall-clock time.
        gibibytes: of private memory.
        micro_batch: sequences.
        seq_len: tokens of each.
        capture_only: stop before compilation.
    """

    seconds: float = 900.0
    gibibytes: float = 10.0
    micro_batch: int = 2
    seq_len: int = 32
    capture_only: bool = False


@dataclass(slots=True)
class Row:
    """One architecture.

    Attributes:
        model_type: its name in transformers.
        status: one of `LEVELS`.
        stage: the one of `STAGES` that failed; "" where none did.
        error: the error's first line, or "".
        missing_ops: ops without a lowering.
        reason: the cause in a few words, or "".
        seconds: by finished stage.
        nodes: of the captured training step; 0 before it is captured.
        attention: how attention was captured.
        gradient_error: of the compiled step, the largest difference over the largest gradient.
        neuron: one of `NEURON`: what Neuron's pre-flight says of the captured graphs.
        neuron_left: what that compiler could not compile, after decomposition: by op, the reasons.
    """

    model_type: str
    status: str = "not built"
    stage: str = "build"
    error: str = ""
    missing_ops: list[str] = field(default_factory=list)
    reason: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    nodes: int = 0
    attention: str = ""
    gradient_error: float | None = None
    neuron: str = ""
    neuron_left: dict[str, list[str]] = field(default_factory=dict)

    def reached(self, level: str) -> bool:
        """Say whether it came at least that far."""
        return LEVELS.index(self.status) >= LEVELS.index(level)

    @property
    def is_final(self) -> bool:
        """Whether the run came to its end: it failed with an error, or nothing was left to do."""
        return bool(self.error) or self.status == LEVELS[-1]

    def write(self, folder: Path) -> None:
        """Write the row into its file, whole or not at all."""
        path = row_path(folder, self.model_type)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self), indent=1) + "\n")
        draft.replace(path)


def graph_path(folder: Path, model_type: str) -> Path:
    """Give the file of an architecture's captured graphs."""
    return folder / f"{model_type}.graph"


def row_path(folder: Path, model_type: str) -> Path:
    """Give the file of an architecture's row."""
    return folder / f"{model_type}.json"


def read_row(folder: Path, model_type: str) -> Row | None:
    """Read a row, or give None where there is none."""
    path = row_path(folder, model_type)
    return Row(**json.loads(path.read_text())) if path.exists() else None
