"""What `luma::attention` and `luma::attention_backward` promise, on every target.

With b batch rows, h query heads, hk key heads (h a multiple of hk; query head i uses key head
i // (h // hk)), s positions, d and dv head sizes:

    attention(q[b,h,s,d], k[b,hk,s,d], v[b,hk,s,dv], segment_ids[b,s] | None,
              scale, causal, window, softcap) -> (out[b,h,s,dv], lse[b,h,s])
    attention_backward(grad_out, q, k, v, out, lse, segment_ids,
              scale, causal, window, softcap) -> (dq, dk, dv)

The score of query p and key j is `scale * q_p . k_j`, then `softcap * tanh(score / softcap)` where
softcap is not 0. Key j is seen by query p when all of these hold: j <= p if causal; p - window < j
<= p if window is not 0; segment_ids[p] == segment_ids[j] if segments are given. Segment 0 is
padding, which so attends only to padding: every row sees at least itself, and no row is NaN.
`lse` is the logarithm of the sum of exponentials of the scores seen, float32. Scores and sums are
float32 whatever the inputs' dtype; out has q's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

OP = "luma.attention.default"
BACKWARD_OP = "luma.attention_backward.default"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSizes:
    """The sizes of one attention call.

    Attributes:
        batch: rows.
        heads: query heads.
        kv_heads: key and value heads.
        seq_len: positions, of queries and of keys.
        head_dim: size of a query and a key.
        value_dim: size of a value.
    """

    batch: int
    heads: int
    kv_heads: int
    seq_len: int
    head_dim: int
    value_dim: int

    @property
    def groups(self) -> int:
        """Query heads that share one key head."""
        return self.heads // self.kv_heads


def sizes_of(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> AttentionSizes:
    """Check the shapes of q, k and v against the contract and give their sizes.

    Raises:
        ValueError: a shape that the contract does not allow.
    """
    if not len(q) == len(k) == len(v) == 4:
        raise ValueError(f"attention takes [batch, heads, seq, dim]; got q {q}, k {k}, v {v}")
    sizes = AttentionSizes(
        batch=q[0], heads=q[1], kv_heads=k[1], seq_len=q[2], head_dim=q[3], value_dim=v[3]
    )
    if k != (sizes.batch, sizes.kv_heads, sizes.seq_len, sizes.head_dim) or v[:3] != k[:3]:
        raise ValueError(f"attention's q {q}, k {k} and v {v} do not fit together")
    if sizes.kv_heads == 0 or sizes.heads % sizes.kv_heads:
        message = f"attention's {sizes.heads} query heads are no multiple of {sizes.kv_heads}"
        raise ValueError(message)
    return sizes
