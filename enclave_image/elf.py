"""What an ELF file needs to be loaded: its program interpreter, libraries and where it looks.

A small reader of 64-bit little-endian ELF (System V ABI, "Object Files" and "Dynamic Linking"), and
the search that the dynamic loader does, without its cache: RPATH or RUNPATH, then the system's
folders. The loader's own list of such folders depends on the distribution, so they are given.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from runtime.spec.errors import ArtifactError

__all__ = ["ElfNeeds", "find_library", "read_elf", "resolve_libraries", "system_folders"]

_IDENT = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_MOST_HEADERS = 256
_MOST_DYNAMIC = 4096
_MOST_TEXT = 1 << 24
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH = 1, 5, 10, 15, 29

_LOADER_CONFIGURATION = Path("/etc/ld.so.conf")
_MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfNeeds:
    """What an ELF file asks the loader for.

    Attributes:
        interpreter: the dynamic loader; None for a library, or a static program.
        needed: names of libraries.
        search: folders of RPATH and RUNPATH, as they stand in the file.
    """

    interpreter: str | None
    needed: tuple[str, ...]
    search: tuple[str, ...]


def read_elf(path: Path) -> ElfNeeds | None:
    """Read what a file asks for; None where it is not an ELF file.

    Raises:
        ArtifactError: it is one that is broken, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(64)
            if start[:4] != _IDENT[:4]:
                return None
            if start[: len(_IDENT)] != _IDENT or len(start) < 64:
                raise ArtifactError(f"ELF {path}: not of 64 bits and little-endian")
            return _read(file, start, path)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error
    except struct.error as error:
        raise ArtifactError(f"ELF {path}: a table is cut") from error


def _read(file: BinaryIO, start: bytes, path: Path) -> ElfNeeds:
    (table_at,) = struct.unpack_from("<Q", start, 32)
    entry_bytes, count = struct.unpack_from("<HH", start, 54)
    if entry_bytes != _PROGRAM_HEADER.size or count > _MOST_HEADERS:
        raise ArtifactError(f"ELF {path}: {count} program headers of {entry_bytes} bytes")
    table = _at(file, table_at, count * entry_bytes)
    headers = [_PROGRAM_HEADER.unpack_from(table, i * entry_bytes) for i in range(count)]
    loads = [(h[3], h[2], h[5]) for h in headers if h[0] == _PT_LOAD]
    interpreter = None
    dynamic: list[tuple[int, int]] = []
    for kind, _flags, offset, _virtual, _physical, size, *_ in headers:
        if kind == _PT_INTERP:
            interpreter = _at(file, offset, min(size, 4096)).rstrip(b"\0").decode()
        elif kind == _PT_DYNAMIC:
            data = _at(file, offset, min(size, _MOST_DYNAMIC * _DYNAMIC.size))
            dynamic = list(_DYNAMIC.iter_unpack(data[: len(data) // 16 * 16]))
    values = dict(dynamic)
    if _DT_STRTAB not in values:
        return ElfNeeds(interpreter=interpreter, needed=(), search=())
    texts_at = _file_offset(values[_DT_STRTAB], loads, path)
    texts = _at(file, texts_at, min(values.get(_DT_STRSZ, 0), _MOST_TEXT))
    needed = tuple(_text(texts, value) for tag, value in dynamic if tag == _DT_NEEDED)
    listed = [_text(texts, v) for tag, v in dynamic if tag in (_DT_RPATH, _DT_RUNPATH)]
    search = tuple(folder for text in listed for folder in text.split(":") if folder)
    return ElfNeeds(interpreter=interpreter, needed=needed, search=search)


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _file_offset(address: int, loads: Sequence[tuple[int, int, int]], path: Path) -> int:
    """Give where in the file a virtual address lies."""
    for start, offset, size in loads:
        if start <= address < start + size:
            return address - start + offset
    raise ArtifactError(f"ELF {path}: the string table is in no segment")


def _text(texts: bytes, at: int) -> str:
    end = texts.find(b"\0", at)
    return texts[at : max(end, at)].decode("utf-8", "replace")


@functools.cache
def system_folders() -> tuple[Path, ...]:
    """Give the folders where this system's loader looks, first those of its configuration."""
    multiarch = _MULTIARCH.get(os.uname().machine, "")
    configured = list(_configured(_LOADER_CONFIGURATION, depth=0))
    usual = ["/lib", "/usr/lib", "/lib64", "/usr/lib64"]
    if multiarch:
        usual = [f"/lib/{multiarch}", f"/usr/lib/{multiarch}", *usual]
    folders = [*configured, *map(Path, usual)]
    return tuple(dict.fromkeys(folder for folder in folders if folder.is_dir()))


def _configured(path: Path, depth: int) -> Iterable[Path]:
    """Give the folders that a loader's configuration file names, includes followed."""
    if depth > 4 or not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split("#", 1)[0].split()
        if words[:1] == ["include"]:
            for pattern in words[1:]:
                folder = path.parent / Path(pattern).parent
                for found in sorted(folder.glob(Path(pattern).name)):
                    yield from _configured(found, depth + 1)
        elif words:
            yield Path(words[0])


def find_library(name: str, needs: ElfNeeds, origin: Path) -> Path | None:
    """Find a needed library as the loader would.

    Args:
        name: from `needed`.
        needs: of the file that needs it.
        origin: that file's folder, for `$ORIGIN`.

    Returns:
        Its path, None where there is none.
    """
    own = [
        Path(folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(origin)))
        for folder in needs.search
    ]
    for folder in (*own, *system_folders()):
        candidate = folder / name
        if candidate.is_file():
            return candidate
    return None


def resolve_libraries(files: Iterable[Path]) -> dict[str, Path]:
    """Give all libraries that ELF files need from outside of `files`, and what those need.

    A library that is itself one of `files`, such as a wheel's own, is followed but not given.

    Args:
        files: programs and libraries; others are passed over.

    Returns:
        The path of each needed library, by the name that it is needed by.

    Raises:
        ArtifactError: one is broken, or a needed library is nowhere.
    """
    inside = {file.resolve() for file in files}
    names_inside = {file.name for file in inside}
    found: dict[str, Path] = {}
    waiting = sorted(inside)
    while waiting:
        path = waiting.pop()
        needs = read_elf(path)
        if needs is None:
            continue
        for name in needs.needed:
            if name in found or _is_loader(name, needs):
                continue
            library = find_library(name, needs, path.parent)
            if library is None:
                # A wheel's libraries may rely on another one having been loaded before.
                if name in names_inside:
                    continue
                raise ArtifactError(
                    f"ELF {path}: needs {name}, which is in none of the loader's folders",
                    remedy="install the system package that holds it, or leave the file out",
                )
            if library.resolve() in inside:
                continue
            found[name] = library
            waiting.append(library.resolve())
    return found


def _is_loader(name: str, needs: ElfNeeds) -> bool:
    """Say whether the name is the dynamic loader itself, which is there by its full path."""
    return name.startswith("ld-linux") or Path(needs.interpreter or "").name == name
