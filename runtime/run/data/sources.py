"""What `data.source` names: files, folders of them, hub data sets, and one book that Python ships.

A source is resolved before anything is read, so that a wrong path or an empty folder is told at
once, and it has an identity (a digest of its content), so that data is prepared once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from runtime.spec import DataError

TOPICS = "python://pydoc_data.topics"
SUFFIXES = {
    "text": (".txt", ".text", ".md", ".rst"),
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet",),
}
_HUB = re.compile(
    r"hf://(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[\w./-]+))?"
    r"(?::(?P<config>[\w.-]+))?(?:#(?P<split>[\w.\[\]:%+-]+))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """A file of documents.

    Attributes:
        path: the file.
        format: text, jsonl or parquet.
    """

    path: Path
    format: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A data set of the hub: `hf://NAME[@REVISION][:CONFIG][#SPLIT]`.

    Attributes:
        name: the data set.
        revision: branch, tag or commit, or None.
        config: its configuration, or None.
        split: its split.
    """

    name: str
    revision: str | None
    config: str | None
    split: str


@dataclass(frozen=True, slots=True)
class TopicsSource:
    """The standard library's `pydoc_data.topics`: Python's language reference, a topic each."""


Source = FileSource | HubSource | TopicsSource


def resolve_sources(names: tuple[str, ...], base_dir: Path, file_format: str) -> list[Source]:
    """Find what the job's `data.source` names.

    Args:
        names: one entry a source.
        base_dir: where relative paths start.
        file_format: auto, text, jsonl or parquet.

    Returns:
        Sources in the order named, the files of a folder by name.

    Raises:
        DataError: a path is missing, a folder holds nothing usable, or a name is not understood.
    """
    return [source for name in names for source in _resolve(name, base_dir, file_format)]


def file_digest(path: Path) -> str:
    """Hash a file's bytes.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
    except OSError as error:
        msg = f"data.source: {path}: cannot be read ({error.strerror})"
        raise DataError(msg) from error


def _resolve(name: str, base_dir: Path, file_format: str) -> Iterator[Source]:
    if name.startswith("python://"):
        yield _topics(name)
    elif name.startswith("hf://"):
        yield _hub(name)
    elif "://" in name:
        msg = f"data.source: {name!r} is of an unknown kind; expected a path, hf://NAME or {TOPICS}"
        raise DataError(msg)
    else:
        yield from _paths(base_dir / Path(name).expanduser(), file_format)


def _topics(name: str) -> TopicsSource:
    if name != TOPICS:
        # Importing any other module would run code that the job file merely names.
        msg = f"data.source: {name!r}: the only module that is data is {TOPICS}"
        raise DataError(msg)
    return TopicsSource()


def _hub(name: str) -> HubSource:
    match = _HUB.fullmatch(name)
    if match is None:
        msg = (
            f"data.source: {name!r} is no data set; expected hf://NAME[@REVISION][:CONFIG][#SPLIT]"
        )
        raise DataError(msg)
    parts = match.groupdict()
    return HubSource(
        name=parts["name"],
        revision=parts["revision"],
        config=parts["config"],
        split=parts["split"] or "train",
    )


def _paths(path: Path, file_format: str) -> Iterator[FileSource]:
    if path.is_dir():
        yield from _folder(path, file_format)
    elif path.is_file():
        yield FileSource(path=path, format=_format(path, file_format))
    else:
        what = "is neither a file nor a folder" if path.exists() else "does not exist"
        msg = f"data.source: {path} {what}"
        raise DataError(msg, remedy="paths start at the job file's folder")


def _folder(folder: Path, file_format: str) -> list[FileSource]:
    wanted = _suffixes(file_format)
    found = [
        FileSource(path=path, format=_format(path, file_format))
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in wanted and path.is_file() and not _hidden(path, folder)
    ]
    if not found:
        msg = f"data.source: {folder} holds no data file; looked for *{', *'.join(wanted)}"
        raise DataError(msg)
    return found


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _suffixes(file_format: str) -> tuple[str, ...]:
    if file_format == "auto":
        return tuple(suffix for group in SUFFIXES.values() for suffix in group)
    return SUFFIXES[file_format]


def _format(path: Path, file_format: str) -> str:
    if file_format != "auto":
        return file_format
    for name, suffixes in SUFFIXES.items():
        if path.suffix.lower() in suffixes:
            return name
    msg = (
        f"data.source: {path}: the suffix {path.suffix!r} tells no format; "
        f"known: {', '.join(_suffixes('auto'))}"
    )
    raise DataError(msg, remedy="set data.format to text, jsonl or parquet")
