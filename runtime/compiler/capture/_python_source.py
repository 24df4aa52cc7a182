"""A model from `module.py:function`: the user's own code, on the user's own machine."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from runtime.spec import CaptureError


def build_model(source: str, base_dir: Path) -> nn.Module:
    """Call the function of a `module.py:function` source and give the module that it returns.

    The file's folder is importable while the file is read and the function runs.

    Raises:
        CaptureError: no such file or function, it raised, or it returned something else.
    """
    file_name, _, function_name = source.rpartition(":")
    path = (base_dir / file_name).resolve()
    if not path.is_file():
        raise CaptureError(
            f"model.source: '{source}': there is no file '{path.name}' in '{path.parent}'",
            remedy="a path is relative to the job file",
            exit_code=2,
        )
    with _importable(path.parent):
        try:
            model = _function(path, function_name)()
        except CaptureError:
            raise
        except Exception as error:
            raise CaptureError(
                f"model.source: '{source}' raised {type(error).__name__} "
                f"{_where(error, path)}: {error}"
            ) from error
    if not isinstance(model, nn.Module):
        raise CaptureError(
            f"model.source: '{source}' returned {type(model).__name__}; expected a torch.nn.Module"
        )
    return model


def _function(path: Path, name: str) -> Callable[[], object]:
    function = getattr(_load(path), name, None)
    if not callable(function):
        raise CaptureError(f"model.source: '{path.name}' has no function '{name}'", exit_code=2)
    return function


def _load(path: Path) -> object:
    """Execute a file as a module of a name of its own, so that equal file names do not meet."""
    name = f"luma_model_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CaptureError(f"model.source: '{path.name}' is not a Python file", exit_code=2)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _where(error: BaseException, path: Path) -> str:
    """Give the last line of the user's own file that the error passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"in line {lines[-1]}" if lines else "while it was read"


@contextmanager
def _importable(folder: Path) -> Generator[None]:
    """Let the user's file import its neighbours inside the block."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
