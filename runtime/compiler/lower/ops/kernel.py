"""The `luma::` ops: each takes its plain XLA form, or a target's own kernel where it has one."""

from __future__ import annotations

from runtime.compiler.lower.registry import op
from runtime.kernels.attention import xla as attention
from runtime.kernels.dropout import xla as dropout
from runtime.kernels.grouped_mm import tpu as grouped_on_tpu
from runtime.kernels.grouped_mm import xla as grouped

op("luma.attention.default")(attention.attention)
op("luma.attention_backward.default")(attention.attention_backward)
op("luma.dropout.default")(dropout.dropout)
op("luma.grouped_mm.default")(grouped.grouped_mm)
op("luma.grouped_outer.default")(grouped.grouped_outer)
op("luma.grouped_mm.default", target="tpu")(grouped_on_tpu.grouped_mm)
op("luma.grouped_outer.default", target="tpu")(grouped_on_tpu.grouped_outer)
