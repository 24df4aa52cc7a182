"""The files beside the weights that make a checkpoint a Hugging Face folder. Imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtime.run.byte_tokenizer import byte_tokenizer
from runtime.run.data.tokens import END_OF_DOCUMENT


def save_model_files(model: Any, tokenizer: Any | None, folder: Path) -> None:
    """Write config, generation config and tokenizer of a model into a new folder.

    A transformers model without a tokenizer was trained on bytes; it gets the byte tokenizer, and
    where it names no end token, the end of a document.

    Args:
        model: a transformers model, a peft model (its adapter's config is written), or any other
            torch module (nothing is written for it).
        tokenizer: its tokenizer, with the chat template, or None for a model of bytes.
        folder: made here.
    """
    folder.mkdir(parents=True)
    if tokenizer is None and hasattr(model, "config"):
        tokenizer = byte_tokenizer()
        generation = getattr(model, "generation_config", None)
        if generation is not None and generation.eos_token_id is None:
            generation.eos_token_id = END_OF_DOCUMENT
    adapters = getattr(model, "peft_config", None)
    if isinstance(adapters, dict):
        adapters["default"].save_pretrained(folder)
    elif hasattr(model, "config") and hasattr(model.config, "save_pretrained"):
        # The loaders go by `architectures`; a model built from a bare config has none yet.
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        if getattr(model, "can_generate", bool)() and model.generation_config is not None:
            model.generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
