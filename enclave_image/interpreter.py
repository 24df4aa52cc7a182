"""The interpreter in an image: the Python that builds it, and the system's shared libraries.

Taken are the interpreter's program, the parts of its standard library that a service without a
terminal or a display can use, and all shared libraries that these and the packages need, found by
reading the ELF files. Libraries go to the folder of the C library, which is where that system's
loader looks, so they are found whatever folder they lay in here.

These files are a machine's own: the same version of Python is built differently by different
people. That is why they have a ramdisk of their own, and measurements name its digest.
"""

from __future__ import annotations

import fnmatch
import importlib
import socket
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from enclave_image.cpio import Entry, File, Symlink
from enclave_image.elf import read_elf, resolve_libraries
from runtime.spec.errors import ArtifactError

__all__ = ["Interpreter", "find_interpreter", "interpreter_entries", "library_entries"]

PREFIX = "opt/luma/python"
PROGRAM = f"{PREFIX}/bin/python3"
"""The interpreter's path in the image, whatever its version."""

# Neither tests and demonstrations, nor what needs a terminal, a display, a compiler or an installer.
_LEFT_OUT_FOLDERS = frozenset({
    "__pycache__", "config-*", "curses", "dbm", "dist-packages", "distutils", "ensurepip",
    "idlelib", "lib2to3", "pydoc_data", "site-packages", "sqlite3", "test", "tests", "tkinter",
    "turtledemo", "venv",
})  # fmt: skip
_LEFT_OUT_FILES = (
    "*.pyc", "*.a", "*.o", "*.exe", "*.whl", "*.txt", "antigravity.py", "this.py", "turtle.py",
    # Run at every start: a distribution's own, such as Debian's crash reporter.
    "sitecustomize.py", "usercustomize.py",
)  # fmt: skip
_LEFT_OUT_EXTENSIONS = (
    "_crypt", "_ctypes_test", "_curses*", "_dbm", "_gdbm", "_sqlite3", "_test*", "_tkinter",
    "_xx*", "nis", "ossaudiodev", "readline", "xx*",
)  # fmt: skip
_DYNAMIC = "lib-dynload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python installation.

    Attributes:
        program: the interpreter itself, links followed.
        base: its prefix.
        library: its standard library, below `base`.
        version: such as "3.11.7".
    """

    program: Path
    base: Path
    library: Path
    version: str

    @property
    def site_packages(self) -> str:
        """The folder of packages in the image."""
        return f"{PREFIX}/{self.library.relative_to(self.base).as_posix()}/site-packages"


def find_interpreter() -> Interpreter:
    """Give the running Python.

    Raises:
        ArtifactError: its standard library is not below its prefix, or it lacks what the first
            process needs.
    """
    _check_first_process()
    base = Path(sys.base_prefix).resolve()
    names = {"installed_base": str(base), "installed_platbase": str(base), "base": str(base)}
    library = Path(sysconfig.get_path("stdlib", vars=names)).resolve()
    executable = getattr(sys, "_base_executable", sys.executable)
    if not library.is_relative_to(base):
        raise ArtifactError(
            f"interpreter: its library {library} is not below its prefix {base}",
            remedy="build with a Python whose standard library lies in its own prefix",
        )
    return Interpreter(
        program=Path(executable).resolve(),
        base=base,
        library=library,
        version=".".join(map(str, sys.version_info[:3])),
    )


def _check_first_process() -> None:
    """Check for what `init.py` needs and some builds of Python lack.

    It mounts and loads the driver by ctypes, and says by vsock that the enclave has booted: without
    them the image builds, and its enclave is killed without a word (E36).
    """
    try:
        importlib.import_module("_ctypes")
    except ImportError as error:
        raise ArtifactError(
            f"interpreter: module _ctypes cannot be imported ({error}); the first process mounts "
            "file systems with it",
            remedy="build with a Python that was built where libffi and its headers were installed",
        ) from error
    if not hasattr(socket, "AF_VSOCK"):
        raise ArtifactError(
            "interpreter: no socket.AF_VSOCK; the first process and the service listen there",
            remedy="build with a Python for Linux that was built with linux/vm_sockets.h installed",
        )


def interpreter_entries(interpreter: Interpreter) -> tuple[Entry, ...]:
    """Give the program and the standard library."""
    name = f"python{'.'.join(interpreter.version.split('.')[:2])}"
    entries: list[Entry] = [
        File(f"{PREFIX}/bin/{name}", interpreter.program, 0o755),
        Symlink(PROGRAM, name),
    ]
    for source in sorted(interpreter.library.rglob("*")):
        relative = source.relative_to(interpreter.library)
        if source.is_file() and _takes(relative):
            below = interpreter.library.relative_to(interpreter.base) / relative
            entries.append(File(f"{PREFIX}/{below.as_posix()}", source.resolve(), 0o644))
    return tuple(entries)


def library_entries(files: Iterable[Path]) -> tuple[Entry, ...]:
    """Give the dynamic loader and the system's libraries that files need.

    Args:
        files: the interpreter's and the packages'.

    Raises:
        ArtifactError: a library is nowhere, or there is no C library among them.
    """
    listed: Sequence[Path] = sorted(files)
    libraries = resolve_libraries(listed)
    c_library = libraries.get("libc.so.6")
    if c_library is None:
        raise ArtifactError("interpreter: it does not load libc.so.6; only glibc systems will do")
    folder = c_library.resolve().parent.as_posix().lstrip("/")
    entries: list[Entry] = [
        File(f"{folder}/{name}", path.resolve(), 0o755) for name, path in libraries.items()
    ]
    needs = filter(None, map(read_elf, listed))
    loaders = sorted({found.interpreter for found in needs if found.interpreter})
    entries.extend(File(path.lstrip("/"), Path(path).resolve(), 0o755) for path in loaders)
    return tuple(entries)


def _takes(relative: Path) -> bool:
    """Say whether a file of the standard library goes into the image."""
    if any(
        fnmatch.fnmatchcase(part, pattern)
        for part in relative.parts[:-1]
        for pattern in _LEFT_OUT_FOLDERS
    ):
        return False
    if relative.parts[0] == _DYNAMIC:
        stem = relative.name.split(".", 1)[0]
        return not any(fnmatch.fnmatchcase(stem, pattern) for pattern in _LEFT_OUT_EXTENSIONS)
    return not any(fnmatch.fnmatchcase(relative.name, pattern) for pattern in _LEFT_OUT_FILES)
