"""Chats to tokens by the model's chat template, with the loss on the assistant's tokens only.

Which tokens those are is found exactly or not at all:

- a template with `{% generation %}` marks them itself;
- else each assistant turn is found by rendering the chat up to it, with the generation prompt, and
  up to its end. Both must be prefixes of the whole, in tokens: then the turn's tokens are those
  that the model would have had to generate there. A turn ends with the end token if the template
  writes one; what a template writes after that (a line's end) is not the assistant's.

A template that renders earlier turns differently once later ones follow (some leave out earlier
reasoning) has no such prefixes, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.run.data.readers import Document
from runtime.run.data.tokens import Tokens, tokenizer_digest
from runtime.spec import DataError

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_ASSISTANT = "assistant"


class ChatEncoder:
    """A Hugging Face tokenizer and its chat template.

    Args:
        tokenizer: the model's tokenizer.

    Raises:
        DataError: it has no chat template.
    """

    def __init__(self, tokenizer: Any) -> None:
        template = getattr(tokenizer, "chat_template", None)
        if not template:
            msg = "data.kind: chat needs a tokenizer with a chat template; this model has none"
            raise DataError(msg, remedy="take an instruct model, or set data.kind to text")
        self._tokenizer = tokenizer
        self._marked = isinstance(template, str) and bool(_GENERATION.search(template))

    def encode(self, documents: Sequence[Document]) -> list[Tokens]:
        """Encode chats, in order.

        Raises:
            DataError: the template refuses a chat, or the assistant's tokens cannot be told apart.
        """
        if self._marked:
            return [self._by_mark(document) for document in documents]
        return self._by_prefixes(documents)

    def digest(self) -> str:
        """Hash the tokenizer and its template."""
        return f"chat-1:{tokenizer_digest(self._tokenizer)}"

    def _by_mark(self, document: Document) -> Tokens:
        try:
            answer = self._tokenizer.apply_chat_template(
                document.content,
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
                tokenizer_kwargs={"verbose": False},
            )
        except Exception as error:
            raise _refused(document, error) from error
        supervised = np.array(answer["assistant_masks"], np.bool_)
        if _turns(document) and not supervised.any():
            msg = f"{document.where}: the chat template marks none of the assistant's tokens"
            raise DataError(msg, remedy="mark them with generation blocks in the chat template")
        return Tokens(np.array(answer["input_ids"], np.int32), supervised)

    def _by_prefixes(self, documents: Sequence[Document]) -> list[Tokens]:
        texts: list[str] = []
        for document in documents:
            texts.append(self._render(document, len(document.content), prompt=False))
            for turn in _turns(document):
                if turn == 0:
                    msg = f"{document.where}: the chat begins with the assistant, without a prompt"
                    raise DataError(msg, remedy="begin it with a system or user message")
                texts.append(self._render(document, turn, prompt=True))
                texts.append(self._render(document, turn + 1, prompt=False))
        answer = self._tokenizer(
            texts, add_special_tokens=False, return_attention_mask=False, verbose=False
        )
        tokens = (np.array(ids, np.int32) for ids in answer["input_ids"])
        rendered = zip(texts, tokens, strict=True)
        return [self._mask(document, rendered) for document in documents]

    def _mask(
        self, document: Document, rendered: Iterator[tuple[str, NDArray[np.int32]]]
    ) -> Tokens:
        text, whole = next(rendered)
        supervised = np.zeros(whole.size, np.bool_)
        for turn in _turns(document):
            (prompt, before), (up_to_end, after) = next(rendered), next(rendered)
            if not (_is_prefix(before, after) and _is_prefix(after, whole)):
                same_text = up_to_end.startswith(prompt) and text.startswith(up_to_end)
                raise _not_apart(document, turn, same_text=same_text)
            supervised[before.size : self._turn_end(after, before.size)] = True
        return Tokens(whole, supervised)

    def _turn_end(self, after: NDArray[np.int32], start: int) -> int:
        ends = np.flatnonzero(after[start:] == self._tokenizer.eos_token_id)
        return start + int(ends[-1]) + 1 if ends.size else after.size

    def _render(self, document: Document, count: int, *, prompt: bool) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                document.content[:count], tokenize=False, add_generation_prompt=prompt
            )
        except Exception as error:
            # Templates raise what they like, from jinja2's errors to TypeErrors of their filters.
            raise _refused(document, error) from error


def _turns(document: Document) -> list[int]:
    return [
        number for number, message in enumerate(document.content) if message["role"] == _ASSISTANT
    ]


def _is_prefix(first: NDArray[np.int32], whole: NDArray[np.int32]) -> bool:
    return first.size <= whole.size and bool((first == whole[: first.size]).all())


def _not_apart(document: Document, turn: int, *, same_text: bool) -> DataError:
    where = f"{document.where}: the assistant's tokens of message {turn} cannot be told apart"
    remedy = "mark them with generation blocks in the chat template"
    if same_text:
        msg = f"{where}: the answer's first or last characters share a token with the template's"
        return DataError(msg, remedy=f"remove white space around the answer, or {remedy}")
    msg = f"{where}: in the whole chat the template writes the messages before it differently"
    return DataError(msg, remedy=remedy)


def _refused(document: Document, error: Exception) -> DataError:
    msg = f"{document.where}: the chat template refuses these messages ({error})"
    return DataError(msg)
