"""One way to add to moto: replace a method, keep the original at hand."""

import functools
import inspect
from collections.abc import Callable
from typing import Any


def extends(owner: type, name: str) -> Callable[[Callable], Callable]:
    """Replace `owner.name` by the decorated function, which gets the original first.

    Raises:
        AttributeError: `owner` has no such method: moto is not the version this was written for.
    """
    original = getattr(owner, name)

    def decorate(function: Callable) -> Callable:
        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        # The original of a class method is bound already: nothing more is passed to it.
        setattr(owner, name, staticmethod(replaced) if inspect.ismethod(original) else replaced)
        return function

    return decorate
