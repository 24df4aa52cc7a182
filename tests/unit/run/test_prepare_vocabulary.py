"""Tokens outside a model's vocabulary are refused before training: a look-up would clamp them."""

from __future__ import annotations

import pytest
from torch import nn

from runtime.run.prepare import _check_vocabulary
from runtime.spec import DataError


class Embedded(nn.Module):
    """A module with an embedding of 256 tokens, where transformers' models have theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 4)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed


def test_a_token_without_an_embedding_is_an_error_that_names_it():
    with pytest.raises(DataError, match="token 256, the model knows tokens 0 to 255") as caught:
        _check_vocabulary(Embedded(), 256)
    assert caught.value.exit_code == 2


def test_tokens_inside_the_vocabulary_pass():
    _check_vocabulary(Embedded(), 255)
    _check_vocabulary(nn.Linear(2, 2), 10_000)  # nothing is known of its tokens
