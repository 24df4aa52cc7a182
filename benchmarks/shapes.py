"""Which model is measured with which batch, and the batch itself; imports no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SEED = 0
IGNORE = -100


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A model and its micro-batch.

    Attributes:
        name: in results.
        builder: function of `benchmarks.models`.
        vocabulary: size of its vocabulary.
        micro_batch: sequences.
        seq_len: tokens of each.
        arguments: what the builder is called with.
    """

    name: str
    builder: str
    vocabulary: int
    micro_batch: int
    seq_len: int
    arguments: Mapping[str, int] = field(default_factory=dict)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            name="qwen3-512x6",
            builder="qwen3_512x6",
            vocabulary=8192,
            micro_batch=4,
            seq_len=256,
        ),
        Shape(
            name="smollm2-135m",
            builder="smollm2_135m",
            vocabulary=49152,
            micro_batch=1,
            seq_len=256,
        ),
        Shape(
            name="qwen3-128x4",
            builder="qwen3_128x4",
            vocabulary=320,
            micro_batch=4,
            seq_len=128,
        ),
    )
}
_SIZES = {
    "qwen3-128x4": ("qwen3_128x4", 320),
    "qwen3-512x6": ("qwen3_512x6", 8192),
    "smollm2-135m": ("smollm2_135m", 49152),
}
_BATCHES = {"qwen3-128x4": (8, 1), "qwen3-512x6": (8, 1), "smollm2-135m": (2, 1)}
LENGTHS = (128, 1024)
LAYERS = (6, 12, 24, 48)

SIZES_AND_LENGTHS = {
    f"{size}-{micro_batch}x{seq_len}": Shape(
        name=f"{size}-{micro_batch}x{seq_len}",
        builder=builder,
        vocabulary=vocabulary,
        micro_batch=micro_batch,
        seq_len=seq_len,
    )
    for size, (builder, vocabulary) in _SIZES.items()
    for micro_batch, seq_len in zip(_BATCHES[size], LENGTHS, strict=True)
}
"""Three sizes of model, each with short and with long sequences."""

DEPTHS = {
    f"qwen3-256x{layers}": Shape(
        name=f"qwen3-256x{layers}",
        builder="qwen3_256",
        vocabulary=1024,
        micro_batch=2,
        seq_len=128,
        arguments={"layers": layers},
    )
    for layers in LAYERS
}
"""One model with more and more layers."""

SHAPES |= SIZES_AND_LENGTHS | DEPTHS


def random_batch(shape: Shape) -> dict[str, NDArray[np.int32]]:
    """Give the batch that every side computes: input_ids, labels, position_ids.

    Returns:
        int32 [micro_batch, seq_len] each; labels[i] is the target of position i, the last one of
        a row is ignored.
    """
    size = (shape.micro_batch, shape.seq_len)
    ids = np.random.default_rng(SEED).integers(0, shape.vocabulary, size, np.int32)
    labels = np.roll(ids, -1, axis=1)
    labels[:, -1] = IGNORE
    positions = np.broadcast_to(np.arange(shape.seq_len, dtype=np.int32), size)
    return {"input_ids": ids, "labels": labels, "position_ids": np.ascontiguousarray(positions)}
