"""Keyed draws in place of torch's own, while a model is traced or checked.

Dropout becomes `luma::dropout`. Uniform and exponential numbers (routers that sample) are built from
its bits, so that every target draws them alike: an element's number has 23 bits, the kept or
dropped of 23 calls with p = 1/2.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from runtime.compiler.capture import ops

_UNIFORM_BITS = 23
"""With half a unit added a number is below 1 and above 0, and float32 holds it exactly."""


@dataclass(slots=True)
class DropoutCalls:
    """How many draws were made; the number of a call is part of its draw."""

    count: int = 0


@contextmanager
def keyed_dropout(key: Tensor) -> Generator[DropoutCalls]:
    """Replace torch's dropout, uniform and exponential draws by keyed ones inside the block.

    Args:
        key: int32[2], the bit pattern of the step's and shard's key.
    """
    calls = DropoutCalls()

    def draw(x: Tensor, p: float) -> Tensor:
        call = calls.count
        calls.count += 1
        return ops.dropout(x.contiguous(), p, key, call)

    def dropout(
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or p == 0:
            return input
        return torch.zeros_like(input) if p >= 1 else draw(input, float(p))

    original = torch.nn.functional.dropout
    torch.nn.functional.dropout = dropout
    try:
        with _KeyedNumbers(draw):
            yield calls
    finally:
        torch.nn.functional.dropout = original


class _KeyedNumbers(TorchFunctionMode):
    """Draws uniform and exponential numbers by key; other random functions stay torch's."""

    def __init__(self, draw: Callable[[Tensor, float], Tensor]) -> None:
        super().__init__()
        self._draw = draw

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.rand_like:
            like = torch.empty_like(*args, **kwargs)
            return self._uniform(like).to(like.dtype)
        if func is torch.Tensor.uniform_:
            return self._fill_uniform(*args, **kwargs)
        if func is torch.Tensor.exponential_:
            return self._fill_exponential(*args, **kwargs)
        return func(*args, **kwargs)

    def _fill_uniform(self, x: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
        return x.copy_(low + (high - low) * self._uniform(x))

    def _fill_exponential(self, x: Tensor, lambd: float = 1.0) -> Tensor:
        return x.copy_(-torch.log(self._uniform(x)) / lambd)

    def _uniform(self, like: Tensor) -> Tensor:
        """Give float32 numbers between 0 and 1, neither included, of a tensor's shape."""
        ones = torch.ones(like.shape, device=like.device)
        with torch.no_grad():
            total = torch.full_like(ones, 0.5**_UNIFORM_BITS / 2)
            for place in range(1, _UNIFORM_BITS + 1):
                # A kept 1 is 2: it is divided by the probability of keeping it.
                total = total + self._draw(ones, 0.5) * 0.5 ** (place + 1)
        return total
