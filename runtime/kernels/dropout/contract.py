"""What `luma::dropout` promises, on every target the same bits.

    dropout(x, p, key int32[2], call) -> x * mask / (1 - p)
    mask_i = threefry2x32(key, (i, call))[0] >= round(p * 2**32)

where i is the flat (row-major) index of an element, key's two words are the bit patterns of uint32,
and threefry2x32 is the 20-round generator of Random123 (Salmon et al., SC 2011). The backward is
the same op on the gradient. So a draw depends on (key, call, element) only, never on who computes
it, and `1 / (1 - p)` is rounded once, to float32.
"""

from __future__ import annotations

OP = "luma.dropout.default"

ROUNDS = 20
PARITY = 0x1BD11BDA
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
MAX_ELEMENTS = 1 << 32


def threshold(p: float) -> int:
    """Give the draw below which an element is dropped: round(p * 2**32).

    Raises:
        ValueError: p is not in [0, 1).
    """
    if not 0.0 <= p < 1.0:
        raise ValueError(f"dropout takes a probability from 0 up to, not including, 1; got {p}")
    return round(p * (1 << 32))
