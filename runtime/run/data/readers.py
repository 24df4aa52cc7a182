"""Documents out of sources, one at a time, each with the place that an error message names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from runtime.run.data.sources import FileSource, HubSource, Source, TopicsSource, file_digest
from runtime.spec import DataError

_READ_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Document:
    """One document.

    Attributes:
        content: the text, or the chat's messages.
        where: the file and line, or the row, that it comes from.
    """

    content: Any
    where: str


class Reader:
    """The documents of one source, and the source's identity.

    Args:
        source: what to read.
        field: the field or column that holds the text or the messages.
        kind: text or chat.
    """

    def __init__(self, source: Source, *, field: str, kind: str) -> None:
        self._source, self._field, self._kind = source, field, kind
        self._dataset = _load_hub(source) if isinstance(source, HubSource) else None

    def digest(self) -> str:
        """Give the identity of the content: equal content, equal digest, wherever it lies.

        Raises:
            DataError: the source cannot be read.
        """
        if isinstance(self._source, FileSource):
            return f"{self._source.format}:{file_digest(self._source.path)}"
        if self._dataset is not None:
            return f"{self._source}:{self._dataset._fingerprint}"  # noqa: SLF001 - its only identity
        text = json.dumps(_topics(), sort_keys=True)
        return f"topics:{blake3(text.encode()).hexdigest()}"

    def documents(self) -> Iterator[Document]:
        """Give the documents in the source's order.

        Raises:
            DataError: the source cannot be read, or a document is not of the kind asked for; the
                message names file, line and field.
        """
        for content, where in self._contents():
            if self._kind == "text" and not isinstance(content, str):
                msg = f"{where}: field {self._field!r} is {_type(content)}; expected text"
                raise DataError(msg)
            if self._kind == "chat":
                messages = check_messages(content, where, self._field)
                yield Document(messages, where)
            else:
                yield Document(_encodable(content, where, self._field), where)

    def _contents(self) -> Iterator[tuple[Any, str]]:
        match self._source:
            case TopicsSource():
                if self._kind == "chat":
                    msg = "data.kind: pydoc_data.topics is plain text; expected kind text"
                    raise DataError(msg)
                for name, text in sorted(_topics().items()):
                    yield text, f"pydoc_data.topics[{name!r}]"
            case FileSource(path=path, format="text"):
                yield _read_text(path), str(path)
            case FileSource(path=path, format="jsonl"):
                yield from _read_jsonl(path, self._field)
            case FileSource(path=path):
                yield from _read_parquet(path, self._field)
            case HubSource(name=name):
                yield from _rows(self._dataset, f"hf://{name}", self._field)


def check_messages(value: Any, where: str, field: str) -> list[dict[str, Any]]:
    """Check that a value is a chat: a list of messages, each with a role and content.

    Args:
        value: what the field holds.
        where: for the message of an error.
        field: the field's name.

    Returns:
        The messages, without fields that are null (Parquet gives each message all fields).

    Raises:
        DataError: it is not a chat.
    """
    if not isinstance(value, list) or not value:
        msg = f"{where}: field {field!r} is {_type(value)}; expected a list of messages"
        raise DataError(msg)
    messages = []
    for number, message in enumerate(value):
        if not isinstance(message, Mapping):
            msg = f"{where}: {field}[{number}] is {_type(message)}; expected a message"
            raise DataError(msg)
        for name in ("role", "content"):
            # A call of tools has no content.
            if message.get(name) is None and not (name == "content" and "tool_calls" in message):
                msg = f"{where}: {field}[{number}] has no {name!r}; it has: {_names(message)}"
                raise DataError(msg)
        if not isinstance(message["role"], str):
            msg = f"{where}: {field}[{number}].role is {_type(message['role'])}; expected text"
            raise DataError(msg)
        if isinstance(message.get("content"), str):
            _encodable(message["content"], where, f"{field}[{number}].content")
        messages.append({name: part for name, part in message.items() if part is not None})
    return messages


def _encodable(text: str, where: str, field: str) -> str:
    """Refuse half of a surrogate pair, which JSON can spell and no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = f"{where}: field {field!r} holds {text[error.start]!a}, which is no character"
        raise DataError(msg, remedy="write the whole surrogate pair, or remove it") from error
    return text


def _topics() -> dict[str, str]:
    from pydoc_data.topics import topics

    return topics


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        msg = f"data.source: {path}: cannot be read ({error.strerror})"
        raise DataError(msg) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        msg = f"{path}:{line}: not UTF-8 (byte {error.object[error.start]:#04x})"
        raise DataError(msg, remedy="convert the file to UTF-8") from error


def _read_jsonl(path: Path, field: str) -> Iterator[tuple[Any, str]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"{path}:{number}"
                    yield _field(_parse(line, where), field, where), where
    except OSError as error:
        msg = f"data.source: {path}: cannot be read ({error.strerror})"
        raise DataError(msg) from error


def _parse(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        msg = f"{where}: not UTF-8 (byte {error.object[error.start]:#04x})"
        raise DataError(msg, remedy="convert the file to UTF-8") from error
    except json.JSONDecodeError as error:
        msg = f"{where}: not JSON: {error.msg} at column {error.colno}"
        raise DataError(msg, remedy="each line of a JSONL file is one JSON object") from error
    except RecursionError as error:
        msg = f"{where}: nested too deeply"
        raise DataError(msg) from error


def _read_parquet(path: Path, field: str) -> Iterator[tuple[Any, str]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise _no_field(field, names, str(path))
            row = 0
            for batch in file.iter_batches(_READ_ROWS, columns=[field]):
                for value in batch.column(0).to_pylist():
                    yield value, f"{path}: row {row}"
                    row += 1
    except (pa.ArrowException, OSError) as error:
        msg = f"data.source: {path}: cannot be read as Parquet ({error})"
        raise DataError(msg) from error


def _load_hub(source: HubSource) -> Any:
    import datasets

    try:
        return datasets.load_dataset(
            source.name, source.config, split=source.split, revision=source.revision
        )
    except Exception as error:
        # The library's errors share no base: offline, no such name, no such split, a broken file.
        reason = str(error).strip().splitlines() or [type(error).__name__]
        msg = f"data.source: hf://{source.name} cannot be loaded ({reason[0]})"
        raise DataError(
            msg,
            remedy="check the name and that this machine is online, "
            "or download the files and name their folder",
        ) from error


def _rows(dataset: Any, name: str, field: str) -> Iterator[tuple[Any, str]]:
    if field not in dataset.column_names:
        raise _no_field(field, dataset.column_names, name)
    for number, row in enumerate(dataset.select_columns([field])):
        yield row[field], f"{name}: row {number}"


def _field(record: Any, field: str, where: str) -> Any:
    if not isinstance(record, dict):
        msg = f"{where}: the line is {_type(record)}; expected an object with a field {field!r}"
        raise DataError(msg)
    if field not in record:
        raise _no_field(field, record, where)
    return record[field]


def _no_field(field: str, present: Iterable[str], where: str) -> DataError:
    msg = f"{where}: no field {field!r}; present: {', '.join(sorted(map(str, present))) or 'none'}"
    return DataError(msg, remedy="name the field in data.text_field")


def _names(message: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, message))) or "nothing"


def _type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    if value is None:
        return "null"
    if value == []:
        return "an empty list"
    return names.get(
        type(value), "a number" if isinstance(value, int | float) else "of another type"
    )
