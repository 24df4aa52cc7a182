"""Custom `torch.autograd.Function`s of a model: which ones a captured step has, and where.

Tracing runs a function's own forward and its own backward, so a backward that is not the derivative
of its forward is kept as it is. What tracing cannot keep is refused with the function's name: a
body that reads values, or a backward that works by side effects (it writes to `.grad`, or runs the
autograd engine on its own), which the gradient check finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

# Functions that are no part of the model: of custom ops, and this package's own reorderings.
_OURS = ("torch._library.", "runtime.compiler.capture.")
_FORWARD: CodeType = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
_BACKWARD: CodeType = BackwardCFunction.apply.__code__


@dataclass(frozen=True, slots=True, order=True)
class FunctionUse:
    """One custom function of a traced step.

    Attributes:
        name: the qualified name of its class.
        module: path of the module that ran it, or "".
    """

    name: str
    module: str

    def __str__(self) -> str:
        """Say which function, and where."""
        where = f"module '{self.module}'" if self.module else "the model"
        return f"'{self.name}' in {where}"


def functions_under(loss: Tensor, path_at: Callable[[int], str]) -> tuple[FunctionUse, ...]:
    """Give the custom functions whose backward a gradient of `loss` runs, each place once.

    Args:
        loss: the end of an autograd graph.
        path_at: gives a module's path from an autograd node's sequence number.
    """
    found: set[FunctionUse] = set()
    pending: list[Any] = [loss.grad_fn]
    seen: set[Any] = {None}
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        pending.extend(following for following, _ in node.next_functions)
        if isinstance(node, BackwardCFunction) and not _is_ours(_class_of(node)):
            found.add(FunctionUse(_name(_class_of(node)), path_at(node._sequence_nr())))  # noqa: SLF001
    return tuple(sorted(found))


def function_that_failed(error: BaseException) -> str | None:
    """Give the name of the innermost custom function in whose forward or backward an error rose."""
    found: type | None = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code, values = trace.tb_frame.f_code, trace.tb_frame.f_locals
        if code is _FORWARD:
            found = values["cls"]
        elif code is _BACKWARD:
            found = _class_of(values["self"])
        trace = trace.tb_next
    return None if found is None or _is_ours(found) else _name(found)


def suspicion(functions: Iterable[FunctionUse]) -> str:
    """Word that a wrong gradient may come from these functions; "" for none."""
    names = "; ".join(str(use) for use in functions)
    if not names:
        return ""
    return (
        f" (the step runs custom autograd functions: {names}; a backward that writes to .grad or "
        "runs backward by itself cannot be captured)"
    )


def _class_of(node: Any) -> type:
    return node._forward_cls  # noqa: SLF001


def _is_ours(function: type) -> bool:
    return f"{function.__module__}.".startswith(_OURS)


def _name(function: type) -> str:
    return f"{function.__module__}.{function.__qualname__}"
