"""The byte encoder as a Hugging Face tokenizer, for models that were trained without one.

A checkpoint is then a whole folder for every loader: `AutoTokenizer` reads it, an engine serves it.
Its tokens are those of `runtime.run.data.tokens.ByteEncoder`: the id of a byte is its value, and
the end mark, which no text can spell, is never added by encoding.
"""

from __future__ import annotations

from typing import Any

from runtime.run.data.tokens import END_OF_DOCUMENT

_END_TEXT = "<|end_of_document|>"
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
"""Plain words: such a model knows no mark but the end of a document."""


def byte_tokenizer() -> Any:
    """Give the tokenizer, a `PreTrainedTokenizerFast` with a plain chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # No merges: each byte stays a token. The model wants a printable character a byte.
    vocabulary = {character: byte for byte, character in enumerate(_characters())}
    backend = Tokenizer(models.BPE(vocab={**vocabulary, _END_TEXT: END_OF_DOCUMENT}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=_END_TEXT,
        # A text that spells the end mark is bytes like any other.
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        chat_template=_CHAT_TEMPLATE,
    )


def _characters() -> list[str]:
    """Give the character that stands for each byte in byte-level vocabularies, in byte order.

    Printable bytes of Latin-1 stand for themselves; the others take, in order, the characters
    from U+0100. It is GPT-2's table, and built into the tokenizers library.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
