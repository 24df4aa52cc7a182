"""The logs of a run's processes, read one by one or together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from runtime.run.folder import RunFolder
from runtime.spec import RunError

_POLL_S = 0.1


def log_names(folder: RunFolder) -> list[str]:
    """Give the names of the processes that have a log, the coordinator first."""
    names = [path.stem for path in folder.islands_dir.glob("*.log")]
    return sorted(names, key=lambda name: (name != "coordinator", len(name), name))


def read_logs(folder: RunFolder, name: str | None = None) -> Iterator[str]:
    """Give the lines of one log, or of all, each then with its process's name in front.

    Raises:
        RunError: no process of that name has a log.
    """
    return follow_logs(folder, name, lambda: False)


def follow_logs(folder: RunFolder, name: str | None, running: Callable[[], bool]) -> Iterator[str]:
    """Give the lines as `read_logs`, and go on with new ones while `running` says so.

    Raises:
        RunError: no process of that name has a log.
    """
    if name is not None and name not in log_names(folder):
        known = ", ".join(log_names(folder)) or "none yet"
        raise RunError(f"'{name}' has no log in this run; there are: {known}")
    return _lines(folder, name, running)


def _lines(folder: RunFolder, name: str | None, running: Callable[[], bool]) -> Iterator[str]:
    offsets: dict[Path, int] = {}
    while True:
        more = running()
        for process in [name] if name is not None else log_names(folder):
            prefix = "" if name is not None else f"{process}: "
            path = folder.log_of(process)
            for line in _new_lines(path, offsets, everything=not more):
                yield prefix + line
        if not more:
            return
        time.sleep(_POLL_S)


def _new_lines(path: Path, offsets: dict[Path, int], *, everything: bool) -> list[str]:
    """Give whole lines after the last offset; at the end also one without its newline."""
    with path.open("rb") as file:
        file.seek(offsets.get(path, 0))
        data = file.read()
    end = len(data) if everything else data.rfind(b"\n") + 1
    offsets[path] = offsets.get(path, 0) + end
    return data[:end].decode(errors="replace").splitlines()
