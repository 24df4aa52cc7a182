"""Documents to tokens: text with its end mark, and bytes for a model that has no tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from runtime.run.data.readers import Document

END_OF_DOCUMENT = 256
"""The byte encoder's end mark; such a model needs a vocabulary of at least 257."""

_PIECE_CHARS = 1 << 18
_LINE_END = re.compile(r"\n")


@dataclass(frozen=True, slots=True)
class Tokens:
    """A document as tokens.

    Attributes:
        ids: int32 [n].
        supervised: bool [n], whether the loss counts the prediction of this token. The first
            token of a document is predicted by nothing, whatever stands here.
    """

    ids: NDArray[np.int32]
    supervised: NDArray[np.bool_]


class Encoder(Protocol):
    """Turns a batch of documents into tokens."""

    def encode(self, documents: Sequence[Document]) -> list[Tokens]:
        """Encode documents, in order.

        Raises:
            DataError: a document cannot be encoded; the message names its place.
        """
        ...

    def digest(self) -> str:
        """Give an identity: encoders of equal digest give equal tokens."""
        ...


class ByteEncoder:
    """A token a byte of UTF-8, then `END_OF_DOCUMENT`."""

    def encode(self, documents: Sequence[Document]) -> list[Tokens]:
        """Encode documents, in order."""
        return [self._one(document.content) for document in documents]

    def digest(self) -> str:
        """Give the encoder's name and version."""
        return "bytes-1"

    def _one(self, text: str) -> Tokens:
        data = np.frombuffer(text.encode(), np.uint8)
        # An empty document stays empty: an end mark alone would teach nothing.
        tail = [END_OF_DOCUMENT] if data.size else []
        ids = np.concatenate([data.astype(np.int32), np.array(tail, np.int32)])
        return Tokens(ids, np.ones(ids.size, np.bool_))


class TextEncoder:
    """A Hugging Face tokenizer over plain text, with the end mark that the model knows.

    A text of more than 256 k characters is tokenised in pieces that end with a line, since a
    tokenizer's time and memory may grow faster than its input.

    Args:
        tokenizer: the model's tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, documents: Sequence[Document]) -> list[Tokens]:
        """Encode documents, in order."""
        pieces = [list(_pieces(document.content)) for document in documents]
        first = self._ids([parts[0] for parts in pieces], special=True)
        rest = self._ids([part for parts in pieces for part in parts[1:]], special=False)
        following = iter(rest)
        encoded = []
        for parts, ids in zip(pieces, first, strict=True):
            whole = list(ids)
            for _ in parts[1:]:
                # Some tokenizers end each text; only the last piece ends the document.
                if whole[-1:] == [self._tokenizer.eos_token_id]:
                    whole.pop()
                whole += next(following)
            encoded.append(self._finish(whole, empty=not parts[0]))
        return encoded

    def digest(self) -> str:
        """Hash the tokenizer."""
        return f"text-1:{tokenizer_digest(self._tokenizer)}"

    def _ids(self, texts: list[str], *, special: bool) -> list[list[int]]:
        if not texts:
            return []
        answer = self._tokenizer(
            texts,
            add_special_tokens=special,
            return_attention_mask=False,
            truncation=False,
            padding=False,
            # A document longer than the model's window is what windows are for.
            verbose=False,
        )
        return answer["input_ids"]

    def _finish(self, ids: list[int], *, empty: bool) -> Tokens:
        end = self._tokenizer.eos_token_id
        if empty:
            ids = []
        elif end is not None and (not ids or ids[-1] != end):
            ids = [*ids, end]
        array = np.array(ids, np.int32)
        return Tokens(array, np.ones(array.size, np.bool_))


def tokenizer_digest(tokenizer: Any) -> str:
    """Hash what decides a tokenizer's output.

    Args:
        tokenizer: a Hugging Face tokenizer, fast or slow.

    Returns:
        BLAKE3, hex.
    """
    hasher = blake3(type(tokenizer).__name__.encode())
    backend = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = (
        backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    )
    for part in (vocabulary, repr(tokenizer.eos_token_id), repr(tokenizer.chat_template)):
        hasher.update(len(part).to_bytes(8, "little") + part.encode())
    return hasher.hexdigest()


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _PIECE_CHARS:
        match = _LINE_END.search(text, start + _PIECE_CHARS)
        if match is None:
            break
        yield text[start : match.end()]
        start = match.end()
    # The whole of a short text, even an empty one: each document has a first piece.
    if start == 0 or start < len(text):
        yield text[start:]
