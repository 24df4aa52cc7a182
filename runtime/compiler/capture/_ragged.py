"""Rows whose number depends on the data, as all rows that could be there and a mask.

Model code picks rows by value: `x[mask]`, `torch.where(mask)`, `nonzero()`, or sizes that are read
with `tolist()` and handed to `split`. A compiled step has no such sizes. While `ragged_rows` is
open, these calls give `Rows` instead: every row that may be among them, with a mask of those that
are. Work on each row (products with a matrix, activations, scales) is done on all of them; where
they come back into a tensor, by `index_add_`, `cat` or `x[mask] =`, the mask drops the others. A
loop over the `nonzero()` of a vector runs for every place.

That is dear where few rows count (E experts cost E times the work of all tokens), and right only if
rows do not touch each other and an iteration without rows changes nothing. What is seen to break
this is refused; the gradient check against eager judges the rest. What follows from no input is
read as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.overrides import TorchFunctionMode

from runtime.compiler.capture._bounds import bounded
from runtime.compiler.capture._known_values import known_value
from runtime.compiler.capture._rows import Place, Rows, is_rows, run_on_rows

# What reads values of its one argument, or gives a size that depends on them.
_READS = frozenset(
    {
        torch.nonzero,
        torch.where,
        torch.Tensor.nonzero,
        torch.Tensor.item,
        torch.Tensor.__bool__,
        torch.Tensor.__int__,
        torch.Tensor.__float__,
        torch.Tensor.__index__,
    }
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of pieces, read from a tensor: int64 [pieces], known only when the step runs."""

    values: Tensor


class _RaggedMode(TorchFunctionMode):
    """Gives `Rows` and `Sizes` where torch would give shapes that depend on data."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _READS and len(args) == 1:
            known = known_value(args[0])
            if known is not None:
                with disable_proxy_modes_tracing(), unset_fake_temporarily():
                    return func(known, **kwargs)
        handler = _HANDLERS.get(func, run_on_rows)
        return handler(func, args, kwargs)


@contextmanager
def ragged_rows() -> Generator[None]:
    """Give `Rows` for what picks rows by value, inside the block."""
    original = FakeTensor.tolist
    # A fake tensor reads itself element by element, past every mode.
    FakeTensor.tolist = _read_list  # type: ignore[method-assign]
    try:
        with _RaggedMode():
            yield
    finally:
        FakeTensor.tolist = original  # type: ignore[method-assign]


def _read_list(vector: FakeTensor) -> Any:
    """Give a fake tensor's values where they are known, else a vector's as `Sizes`."""
    known = known_value(vector)
    if known is not None:
        return known.tolist()
    if vector.dim() != 1:
        raise NotImplementedError("tolist() of values that depend on the data")
    return Sizes(vector)


def _where(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give the places of a mask, one index vector a dimension."""
    if len(args) == 1 and not kwargs:
        return tuple(_places(args[0]))
    return run_on_rows(func, args, kwargs)


def _nonzero(_func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give the places of a mask, one column (or one vector) a dimension."""
    columns = _places(args[0])
    if kwargs.get("as_tuple"):
        return tuple(columns)
    return Rows(torch.stack([c.values for c in columns], 1), columns[0].exists)


def _get(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read rows under a mask, or one row at a place of a loop."""
    x, index = args
    if isinstance(index, Place):
        # A place past the end is never visited in eager, so what is read for it counts nothing.
        return func(x, min(index, x.shape[0] - 1))
    return Rows(x, index) if _is_mask(index) else run_on_rows(func, args, kwargs)


def _set(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Write rows that a mask picked back to where the same mask says."""
    x, mask, rows = args
    if not is_rows(rows):
        return func(*args, **kwargs)
    if rows.exists is not mask:
        raise NotImplementedError("rows are written under another mask than they were picked by")
    shape = (-1, *(1,) * (x.dim() - 1))
    return x.copy_(torch.where(mask.reshape(shape), rows.values.to(x.dtype), x))


def _item(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read a value: its bounds, where they are known."""
    found = bounded(args[0])
    return func(*args, **kwargs) if found is None else found


def _split(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Cut the first dimension into pieces, which cover it, by sizes from the data."""
    x, sizes, *dim = args
    if not isinstance(sizes, Sizes):
        return run_on_rows(func, args, kwargs)
    if (dim[0] if dim else kwargs.get("dim", 0)) != 0:
        raise NotImplementedError("a split of another dimension than the first by sizes from data")
    place = torch.arange(x.shape[0], device=x.device)
    ends = torch.cumsum(sizes.values, 0)
    pieces = range(sizes.values.shape[0])
    masks = [(place >= ends[i] - sizes.values[i]) & (place < ends[i]) for i in pieces]
    return [Rows(x, mask, in_place=True) for mask in masks]


def _is_mask(index: Any) -> bool:
    """Tell whether an index is a mask of the first dimension that is only known in a step."""
    return isinstance(index, FakeTensor) and index.dtype == torch.bool and index.dim() == 1


def _places(mask: Tensor) -> list[Rows]:
    """Give the places of a mask that are not zero, one index vector a dimension, in row order."""
    exists = mask.reshape(-1) != 0
    place = torch.arange(exists.shape[0], device=mask.device)
    columns: list[Tensor] = []
    for size in reversed(mask.shape):
        columns.insert(0, place % size)
        place = place // size
    return [Rows(column, exists) for column in columns]


_HANDLERS: dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    torch.where: _where,
    torch.nonzero: _nonzero,
    torch.Tensor.nonzero: _nonzero,
    torch.Tensor.__getitem__: _get,
    torch.Tensor.__setitem__: _set,
    torch.Tensor.item: _item,
    torch.split: _split,
    torch.Tensor.split: _split,
}
