"""Dropout with keyed draws in place of torch's own, while a model is traced or checked."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.compiler.capture import ops


@dataclass(slots=True)
class DropoutCalls:
    """How many draws were made; the number of a call is part of its draw."""

    count: int = 0


@contextmanager
def keyed_dropout(key: Tensor) -> Generator[DropoutCalls]:
    """Replace `torch.nn.functional.dropout` by `luma::dropout` under `key` inside the block.

    Args:
        key: int32[2], the bit pattern of the step's and shard's key.
    """
    calls = DropoutCalls()

    def dropout(
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or p == 0:
            return input
        if p >= 1:
            return torch.zeros_like(input)
        call = calls.count
        calls.count += 1
        return ops.dropout(input.contiguous(), float(p), key, call)

    original = torch.nn.functional.dropout
    torch.nn.functional.dropout = dropout
    try:
        yield calls
    finally:
        torch.nn.functional.dropout = original
