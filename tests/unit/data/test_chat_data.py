"""Chats: the loss is on the assistant's tokens and on no other, or the data is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from transformers import PreTrainedTokenizerFast

from runtime.agent.samples import IGNORE, SampleFile
from runtime.run.data import prepare_data
from runtime.run.data.chat import ChatEncoder
from runtime.run.data.readers import Document
from runtime.run.data.tokens import Tokens
from runtime.spec import DataError
from runtime.spec.job import JobSpec

MARKED = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}"
    # A template's engine drops a line's end right after a block, so it is written as an expression.
    "{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] }}<|im_end|>{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "What is a list?"},
    {"role": "assistant", "content": "A sequence."},
    {"role": "user", "content": "And a tuple?"},
    {"role": "assistant", "content": "A sequence that cannot change."},
]
TEXTS = st.text("ab <>|im_end\n", max_size=12)
CHATS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXTS}),
    min_size=1,
    max_size=5,
)


def encode(tokenizer: PreTrainedTokenizerFast, messages: list) -> Tokens:
    (tokens,) = ChatEncoder(tokenizer).encode([Document(messages, "d.jsonl:1")])
    return tokens


def supervised_text(tokenizer: PreTrainedTokenizerFast, tokens: Tokens) -> str:
    return tokenizer.decode(tokens.ids[tokens.supervised])


@pytest.mark.parametrize("marked", [False, True])
def test_the_assistants_words_and_their_ends_are_supervised(
    chat_tokenizer: PreTrainedTokenizerFast, marked: bool
) -> None:
    if marked:
        chat_tokenizer.chat_template = MARKED
    tokens = encode(chat_tokenizer, CHAT)
    expected = "A sequence.<|im_end|>A sequence that cannot change.<|im_end|>"
    assert supervised_text(chat_tokenizer, tokens) == expected
    whole = chat_tokenizer.apply_chat_template(CHAT, tokenize=True, return_dict=False)
    assert tokens.ids.tolist() == whole


@given(messages=CHATS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_rendering_prefixes_agrees_with_the_templates_own_marks(
    chat_tokenizer: PreTrainedTokenizerFast, messages: list
) -> None:
    messages = [{"role": "system", "content": "x"}, *messages]
    try:
        plain = encode(chat_tokenizer, messages)
    except DataError:
        # Leading white space may merge with the prompt's line end: refused, not guessed.
        assert any(message["content"][:1] in {" ", "\n"} for message in messages)
        return
    template = chat_tokenizer.chat_template
    try:
        chat_tokenizer.chat_template = MARKED
        marked = encode(chat_tokenizer, messages)
    finally:
        chat_tokenizer.chat_template = template
    assert np.array_equal(plain.ids, marked.ids)
    assert np.array_equal(plain.supervised, marked.supervised)


def test_what_the_model_would_generate_is_what_is_supervised(
    chat_tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokens = encode(chat_tokenizer, CHAT[:3])
    prompt = chat_tokenizer.apply_chat_template(
        CHAT[:2], tokenize=True, add_generation_prompt=True, return_dict=False
    )
    first = int(np.flatnonzero(tokens.supervised)[0])
    assert tokens.ids[:first].tolist() == prompt


def test_a_template_that_rewrites_earlier_turns_is_refused(
    chat_tokenizer: PreTrainedTokenizerFast,
) -> None:
    # As templates do that leave the reasoning out of all turns but the last.
    chat_tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{{ message['content'] if loop.last else message['content'][:3] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(
        DataError, match=r"d\.jsonl:1: the assistant's tokens of message 2"
    ) as error:
        encode(chat_tokenizer, CHAT)
    assert "generation blocks" in error.value.diagnostics()
    assert error.value.exit_code == 2


def test_a_prompt_that_merges_with_the_answer_is_refused(
    chat_tokenizer: PreTrainedTokenizerFast,
) -> None:
    # The prompt ends inside what is one token in the whole chat: no mask of whole tokens is right.
    chat_tokenizer.chat_template = (
        "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "th"}, {"role": "assistant", "content": "e"}]
    assert len(chat_tokenizer("the")["input_ids"]) < 3
    with pytest.raises(DataError, match="cannot be told apart: the answer's first") as error:
        encode(chat_tokenizer, messages)
    assert "remove white space around the answer" in error.value.diagnostics()


def test_a_chat_that_begins_with_the_assistant_is_refused(
    chat_tokenizer: PreTrainedTokenizerFast,
) -> None:
    with pytest.raises(DataError, match=r"d\.jsonl:1: the chat begins with the assistant"):
        encode(chat_tokenizer, CHAT[2:])


def test_a_template_that_refuses_a_chat_is_quoted(chat_tokenizer: PreTrainedTokenizerFast) -> None:
    chat_tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    message = r"d\.jsonl:1: the chat template refuses these messages \(roles must alternate\)"
    with pytest.raises(DataError, match=message):
        encode(chat_tokenizer, CHAT)


def test_a_tokenizer_without_a_template_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    for missing in (tokenizer, None):
        with pytest.raises(DataError, match="chat needs a tokenizer with a chat template"):
            ChatEncoder(missing)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_chats_from_files(
    tmp_path: Path,
    make_spec: Callable[..., JobSpec],
    chat_tokenizer: PreTrainedTokenizerFast,
    kind: str,
) -> None:
    chats = [CHAT, CHAT[:2], CHAT[1:3]]
    if kind == "jsonl":
        lines = "".join(json.dumps({"messages": chat}) + "\n" for chat in chats)
        (tmp_path / "d.jsonl").write_text(lines)
    else:
        parquet.write_table(pa.table({"messages": chats}), tmp_path / "d.parquet")
    spec = make_spec(f"d.{kind}", kind="chat", seq_len=64, packing=True)
    info = prepare_data(spec, chat_tokenizer, tmp_path / "data")
    samples = SampleFile.open(tmp_path / "data")
    labels = samples.columns["labels"]
    expected = sum(int(encode(chat_tokenizer, chat).supervised.sum()) for chat in chats)
    assert info.supervised_tokens == expected == int((labels != IGNORE).sum())
    # A chat in which the assistant says nothing teaches nothing.
    assert (info.documents, info.unused_documents) == (3, 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"messages": []}, "field 'messages' is an empty list; expected a list of messages"),
        ({"messages": "hi"}, "field 'messages' is text; expected a list of messages"),
        ({"messages": ["hi"]}, r"messages\[0\] is text; expected a message"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\] has no 'content'; it has: role"),
        ({"messages": [{"from": "user"}]}, r"messages\[0\] has no 'role'; it has: from"),
        ({"messages": [{"role": 1, "content": "x"}]}, r"messages\[0\]\.role is a number"),
        ({"conversation": []}, "no field 'messages'; present: conversation"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, r"messages\[0\]\.content"),
    ],
)
def test_bad_chats_are_named_by_file_line_and_field(
    tmp_path: Path,
    make_spec: Callable[..., JobSpec],
    chat_tokenizer: PreTrainedTokenizerFast,
    line: dict,
    message: str,
) -> None:
    good = json.dumps({"messages": CHAT})
    (tmp_path / "d.jsonl").write_text(f"{good}\n{json.dumps(line)}\n")
    with pytest.raises(DataError, match=rf"d\.jsonl:2: .*{message}"):
        prepare_data(make_spec("d.jsonl", kind="chat"), chat_tokenizer, tmp_path / "data")


def test_topics_are_no_chats(
    tmp_path: Path, make_spec: Callable[..., JobSpec], chat_tokenizer: PreTrainedTokenizerFast
) -> None:
    spec = make_spec("python://pydoc_data.topics", kind="chat")
    with pytest.raises(DataError, match="plain text"):
        prepare_data(spec, chat_tokenizer, tmp_path / "data")
