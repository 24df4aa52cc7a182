"""Reproducible ramdisks: cpio archives in the "newc" form that the Linux kernel unpacks.

The same entries give the same bytes, wherever and by whomever they are written: entries are sorted
with parents first, inodes count from 1, owner, group and times are 0, modes are stated, and nothing
is taken from the file system but contents. There are directories, regular files and symbolic links,
but neither hard links nor devices. The form is the kernel's (Documentation/driver-api/
early-userspace/buffer-format.rst): a head of 110 characters, the name with a NUL, the data, the
last two padded to a multiple of 4.

An archive's size is a multiple of 4, so archives can follow each other in one ramdisk.
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol, TypeAlias

from runtime.spec.errors import ArtifactError

__all__ = [
    "CHUNK_BYTES",
    "Directory",
    "Entry",
    "File",
    "Symlink",
    "Written",
    "read_cpio",
    "with_parents",
    "write_cpio",
]

CHUNK_BYTES = 1 << 20
MAX_NAME_BYTES = 4096
MAX_FILE_BYTES = 0xFFFF_FFFF
"""What the 8 hex digits of a size can say."""

_HEAD_BYTES = 110
_HEAD = re.compile(rb"070701((?:[0-9A-Fa-f]{8}){13})")
_TRAILER = "TRAILER!!!"
_MODE_BITS = 0o7777


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory.

    Attributes:
        path: relative, with forward slashes, such as "usr/lib".
        mode: permission bits.
    """

    path: str
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class File:
    """A regular file.

    Attributes:
        path: as of a `Directory`.
        content: the bytes, or the file that holds them.
        mode: permission bits.
    """

    path: str
    content: bytes | Path
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symbolic link.

    Attributes:
        path: as of a `Directory`.
        target: where it points.
    """

    path: str
    target: str


Entry: TypeAlias = Directory | File | Symlink


class Sink(Protocol):
    """What an archive is written to."""

    def write(self, data: bytes, /) -> int:
        """Take bytes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A regular file as it went into an archive.

    Attributes:
        path: in the archive.
        size: in bytes.
        sha256: of its content, in hex.
    """

    path: str
    size: int
    sha256: str


def with_parents(entries: Iterable[Entry]) -> list[Entry]:
    """Give the entries and, for each parent that has none, a directory of mode 0755."""
    listed = list(entries)
    known = {entry.path for entry in listed}
    missing = {
        parent
        for entry in listed
        for parent in map(str, PurePosixPath(entry.path).parents)
        if parent not in known and parent != "."
    }
    return [*listed, *map(Directory, sorted(missing))]


def write_cpio(
    file: Sink, entries: Iterable[Entry], *, on_file: Callable[[Written], None] | None = None
) -> int:
    """Write an archive; memory does not grow with the files in it.

    Args:
        file: where it goes.
        entries: in any order.
        on_file: called after each regular file.

    Returns:
        The archive's size in bytes.

    Raises:
        ArtifactError: a path is not allowed, there twice, or without its parent; or a file cannot
            be read, or changes while it is read.
    """
    archive = _Archive(file)
    for entry in _ordered(entries):
        match entry:
            case Directory():
                archive.head(entry.path, stat.S_IFDIR | entry.mode, links=2)
            case Symlink():
                archive.head(entry.path, stat.S_IFLNK | 0o777, size=len(entry.target.encode()))
                archive.data([entry.target.encode()])
            case File():
                written = _add_file(archive, entry)
                if on_file is not None:
                    on_file(written)
    archive.head(_TRAILER, 0, last=True)
    return archive.size


def read_cpio(file: BinaryIO) -> Iterator[Entry]:
    """Read the entries of an archive, or of several that follow each other; contents as bytes.

    Only what `write_cpio` writes is read: other types of entries are refused.

    Raises:
        ArtifactError: not an archive of this form, cut, or holding another type of entry.
    """
    first = True
    while head := file.read(_HEAD_BYTES):
        yield from _read_archive(file, head)
        first = False
    if first:
        raise ArtifactError("cpio: empty")


def _ordered(entries: Iterable[Entry]) -> list[Entry]:
    """Give the entries parents first, checked."""
    ordered = sorted(entries, key=lambda entry: entry.path.split("/"))
    folders, previous = {"."}, None
    for entry in ordered:
        _check_path(entry.path)
        if entry.path == previous:
            raise ArtifactError(f"cpio: '{entry.path}' is there twice")
        parent = str(PurePosixPath(entry.path).parent)
        if parent not in folders:
            raise ArtifactError(f"cpio: '{entry.path}' has no directory '{parent}' before it")
        if isinstance(entry, Directory):
            folders.add(entry.path)
        if not isinstance(entry, Symlink) and entry.mode & ~_MODE_BITS:
            raise ArtifactError(f"cpio: '{entry.path}' has the mode 0o{entry.mode:o}")
        previous = entry.path
    return ordered


def _check_path(path: str) -> None:
    parts = path.split("/")
    if not path or "\0" in path or any(part in {"", ".", ".."} for part in parts):
        raise ArtifactError(f"cpio: the path '{path!r}' is not relative and plain")
    if path == _TRAILER or len(path.encode()) >= MAX_NAME_BYTES:
        raise ArtifactError(f"cpio: the path '{path[:80]}' cannot be the name of an entry")


def _add_file(archive: _Archive, entry: File) -> Written:
    content = entry.content
    try:
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ArtifactError(f"cpio: '{entry.path}' has {size} bytes; at most {MAX_FILE_BYTES}")
        archive.head(entry.path, stat.S_IFREG | entry.mode, size=size)
        digest = archive.data(_chunks(content))
    except OSError as error:
        raise ArtifactError(f"cpio: {content!s} cannot be read: {error.strerror}") from error
    return Written(path=entry.path, size=size, sha256=digest)


def _chunks(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


class _Archive:
    """An archive that is being written."""

    def __init__(self, file: Sink) -> None:
        self.size = 0
        self._file = file
        self._inode = 0
        self._name = ""
        self._expected = 0

    def head(
        self, name: str, mode: int, *, size: int = 0, links: int = 1, last: bool = False
    ) -> None:
        """Write the head and the name of an entry."""
        self._inode += 1
        self._name, self._expected = name, size
        encoded = name.encode("utf-8") + b"\0"
        # ino, mode, uid, gid, nlink, mtime, filesize, 4 device numbers, namesize, check
        inode = 0 if last else self._inode
        fields = (inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, len(encoded), 0)
        self._write(b"070701" + b"".join(b"%08X" % field for field in fields) + encoded)
        self._pad()

    def data(self, chunks: Iterable[bytes]) -> str:
        """Write the data of the entry whose head was written; give its SHA-256."""
        digest, seen = hashlib.sha256(), 0
        for chunk in chunks:
            seen += len(chunk)
            if seen > self._expected:
                break
            digest.update(chunk)
            self._write(chunk)
        if seen != self._expected:
            raise ArtifactError(f"cpio: '{self._name}' changed while it was read")
        self._pad()
        return digest.hexdigest()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def _pad(self) -> None:
        self._write(bytes(-self.size % 4))


def _read_archive(file: BinaryIO, head: bytes) -> Iterator[Entry]:
    """Read one archive whose first head was read already."""
    while True:
        found = _HEAD.fullmatch(head)
        if found is None:
            raise ArtifactError("cpio head: not '070701' and 13 fields of 8 hex digits")
        fields = [int(found[1][i : i + 8], 16) for i in range(0, 104, 8)]
        mode, size, name_bytes = fields[1], fields[6], fields[11]
        if not 2 <= name_bytes <= MAX_NAME_BYTES:
            raise ArtifactError(f"cpio namesize: {name_bytes}; expected 2 to {MAX_NAME_BYTES}")
        name = _read_padded(file, name_bytes, _HEAD_BYTES)
        if name[-1:] != b"\0" or b"\0" in name[:-1]:
            raise ArtifactError("cpio name: does not end with its one NUL")
        path = _text(name[:-1], "name")
        if path == _TRAILER:
            return
        _check_path(path)
        yield _entry(path, mode, _read_padded(file, size, 0))
        head = file.read(_HEAD_BYTES)


def _entry(path: str, mode: int, data: bytes) -> Entry:
    kind, bits = stat.S_IFMT(mode), mode & _MODE_BITS
    if kind == stat.S_IFREG:
        return File(path, data, bits)
    if kind == stat.S_IFLNK:
        return Symlink(path, _text(data, "target"))
    if kind == stat.S_IFDIR and not data:
        return Directory(path, bits)
    raise ArtifactError(f"cpio mode of '{path}': 0o{mode:o} is no directory, file or link")


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"cpio {what}: not UTF-8") from error


def _read_padded(file: BinaryIO, size: int, before: int) -> bytes:
    """Read `size` bytes and the zeros that fill up to a multiple of 4, counted with `before`."""
    padding = -(before + size) % 4
    data = file.read(size + padding)
    if len(data) != size + padding:
        raise ArtifactError(f"cpio: cut in an entry of {size} bytes")
    if any(data[size:]):
        raise ArtifactError("cpio: the padding is not zero")
    return data[:size]
