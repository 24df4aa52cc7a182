"""Which module of the model made each node, in the forward and in the backward.

Forward hooks keep the stack of running modules and write its top into the tracer's metadata. An
autograd node's sequence number tells between which two module changes it was made, so a hook on it
writes the same path while the backward is traced.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import traceback as fx_traceback

_FIELD = "nn_module_stack"


class ModulePaths:
    """Writes the running module's path into the metadata of nodes as they are traced."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._paths: list[str] = []
        self._backward = ""

    @property
    def current(self) -> str:
        """The path of the innermost module whose forward or backward runs, or where it failed."""
        return self._stack[-1] if self._stack else self._backward

    def enter(self, module: nn.Module, _args: Any) -> None:
        """Note that a module's forward begins."""
        self._stack.append(self._names.get(id(module), self.current))
        self._mark()

    def leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        """Note that a module's forward has ended."""
        self._stack.pop()
        self._mark()

    def label_backward(self, loss: Tensor) -> None:
        """Make every autograd node under `loss` write its module's path when it runs."""
        pending, seen = [loss.grad_fn], set()
        while pending:
            node = pending.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            node.register_prehook(self._writer(self.at(node._sequence_nr())))  # noqa: SLF001
            pending.extend(following for following, _ in node.next_functions)

    def _writer(self, path: str) -> Callable[[Any], None]:
        def write(_grads: Any) -> None:
            self._backward = path
            _write(path)

        return write

    def _mark(self) -> None:
        self._numbers.append(_sequence_number())
        self._paths.append(self.current)
        _write(self.current)

    def at(self, number: int) -> str:
        """Give the path of the module that made the autograd node of this sequence number."""
        position = bisect_right(self._numbers, number) - 1
        return self._paths[position] if position >= 0 else ""


@contextmanager
def recorded_modules(model: nn.Module) -> Generator[ModulePaths]:
    """Record module paths of what is traced inside the block."""
    names = {
        id(module): name.removeprefix("base_model.model.")
        for name, module in model.named_modules()
        if name not in ("", "base_model", "base_model.model")
    }
    paths = ModulePaths(names)
    before = nn.modules.module.register_module_forward_pre_hook(paths.enter)
    after = nn.modules.module.register_module_forward_hook(paths.leave)
    try:
        with fx_traceback.preserve_node_meta():
            yield paths
    finally:
        before.remove()
        after.remove()


def module_of(meta: dict[str, Any]) -> str:
    """Give the path that was written into a node's metadata, or ""."""
    return next(reversed(meta.get(_FIELD) or {}), "")


def _sequence_number() -> int:
    """Give the number that the next autograd node will get."""
    return torch.autograd._get_sequence_nr()  # noqa: SLF001


def _write(path: str) -> None:
    fx_traceback.current_meta[_FIELD] = {path: (path, "")}
