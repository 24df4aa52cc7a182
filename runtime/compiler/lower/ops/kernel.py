"""The `luma::` ops: each takes its plain XLA form, or a target's own kernel where it has one."""

from __future__ import annotations

from runtime.compiler.lower.registry import op
from runtime.kernels.attention import xla as attention
from runtime.kernels.dropout import xla as dropout

op("luma.attention.default")(attention.attention)
op("luma.attention_backward.default")(attention.attention_backward)
op("luma.dropout.default")(dropout.dropout)
