"""`Rows`: rows of which only some exist, which ones the data decides; and work on them.

A torch function of `Rows` runs on every row that may exist. What mixes rows (a sum over them, rows
picked by different masks) is refused, where it is seen: its result has no row for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_any, tree_flatten, tree_map


class Place(int):
    """One place of a vector that a loop over its `nonzero()` visits; it acts as the index tensor."""

    def __getitem__(self, _index: int) -> Place:
        """Give itself: `nonzero()` has rows of one entry."""
        return self

    def item(self) -> int:
        """Give the place as a number."""
        return int(self)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of which only some exist.

    Attributes:
        values: [n, ...], every row that may exist.
        exists: bool [n], which do.
        in_place: whether a row stands where it will stand in the concatenation of all pieces.
    """

    values: Tensor
    exists: Tensor
    in_place: bool = False

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        _types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a torch function of rows; see the module's text."""
        return run_on_rows(func, args, dict(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        """Give a tensor's method or property, to be run on the rows."""
        function = getattr(torch.Tensor, name)
        if not callable(function):
            return getattr(self.values, name)
        return lambda *args, **kwargs: run_on_rows(function, (self, *args), kwargs)

    def __getitem__(self, index: Any) -> Any:
        """Index the rows."""
        return run_on_rows(torch.Tensor.__getitem__, (self, index), {})

    def __mul__(self, other: Any) -> Any:
        """Multiply row by row."""
        return run_on_rows(torch.mul, (self, other), {})

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        """Add row by row."""
        return run_on_rows(torch.add, (self, other), {})

    __radd__ = __add__

    def __matmul__(self, other: Any) -> Any:
        """Multiply each row with a matrix."""
        return run_on_rows(torch.matmul, (self, other), {})

    def __iter__(self) -> Iterator[Place]:
        """Visit every place of a vector, the ones that are zero too."""
        if self.values.dim() != 2 or self.values.shape[1] != 1:
            raise NotImplementedError("a loop over rows whose number depends on data")
        return (Place(i) for i in range(self.values.shape[0]))

    def kept(self) -> Tensor:
        """Give [n, ...] with zeros where no row exists."""
        exists = self.exists.reshape(-1, *(1,) * (self.values.dim() - 1))
        return torch.where(exists, self.values, torch.zeros((), dtype=self.values.dtype))


def is_rows(value: Any) -> bool:
    """Tell whether a value is `Rows`."""
    return isinstance(value, Rows)


def run_on_rows(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a torch function, on all rows where an argument is `Rows`.

    Raises:
        NotImplementedError: the function mixes rows.
    """
    if not tree_any(is_rows, (args, kwargs), is_leaf=is_rows):
        return func(*args, **kwargs)
    joined = _JOINING.get(func)
    if joined is not None:
        return joined(func, *args, **kwargs)
    rows = [x for x in tree_flatten((args, kwargs), is_leaf=is_rows)[0] if is_rows(x)]
    first = rows[0]
    if any(other.exists is not first.exists for other in rows):
        raise NotImplementedError(f"'{_name(func)}' joins rows that were picked apart")
    plain = tree_map(lambda x: x.values if is_rows(x) else x, (args, kwargs), is_leaf=is_rows)
    count = first.values.shape[0]

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.dim() == 0 or value.shape[0] != count:
            raise NotImplementedError(f"'{_name(func)}' mixes rows whose number depends on data")
        return Rows(value, first.exists, first.in_place)

    return tree_map(wrapped, func(*plain[0], **plain[1]))


def _cat(_func: Callable[..., Any], pieces: Sequence[Rows], dim: int = 0) -> Tensor:
    """Put the pieces of a split together again."""
    if dim != 0 or not all(is_rows(piece) and piece.in_place for piece in pieces):
        raise NotImplementedError("a concatenation of rows whose number depends on data")
    total = pieces[0].kept()
    for piece in pieces[1:]:
        total = total + piece.kept()
    return total


def _index_add(
    func: Callable[..., Any], x: Tensor, dim: int, index: Any, source: Any, **kwargs: Any
) -> Tensor:
    """Add the rows that exist at their places."""
    if dim != 0 or not is_rows(index) or not is_rows(source):
        raise NotImplementedError("rows whose number depends on data are added to fixed places")
    if index.exists is not source.exists:
        raise NotImplementedError("rows are added at places that were picked apart from them")
    return func(x, 0, index.values, source.kept(), **kwargs)


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", str(func))


_JOINING: dict[Any, Callable[..., Tensor]] = {
    torch.Tensor.index_add_: _index_add,
    torch.Tensor.index_add: _index_add,
    torch.index_add: _index_add,
    torch.cat: _cat,
    torch.concat: _cat,
}
