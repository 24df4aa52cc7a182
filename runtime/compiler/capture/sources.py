"""Where a model comes from: a local Hugging Face folder, a hub, or a function in a Python file.

Weights are read from safetensors files only: a pickled checkpoint runs code when it is loaded, and
code that a folder brings along (`trust_remote_code`) is never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from torch import nn

from runtime.compiler.capture._adapter import AdapterOptions, apply_adapter
from runtime.compiler.capture._narrow import masters_of, to_bfloat16
from runtime.compiler.capture._python_source import build_model
from runtime.spec import CaptureError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DTYPES = ("fp32", "bf16")
HUB_PREFIX = "hf://"
_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "spiece.model",
)


_LOADING_FAILURES = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    ImportError,
    SafetensorError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model as its source gave it, with the job's adapter around it.

    Attributes:
        model: the model, in the job's dtype, on the CPU.
        tokenizer: its tokenizer, or None where the source has none.
        hf_dir: the Hugging Face folder that it was read from, or None.
        masters: float32 values of the trained parameters, by saved name, where the model holds
            them rounded.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase | None
    hf_dir: Path | None
    masters: Mapping[str, np.ndarray] = field(default_factory=dict)


def load_model(
    source: str,
    base_dir: Path,
    revision: str | None = None,
    dtype: str = "fp32",
    seed: int = 0,
    adapter: AdapterOptions | None = None,
) -> LoadedModel:
    """Load a job's model, and put its adapter around it.

    Args:
        source: a folder, `hf://name[@revision]` or `module.py:function`; paths are relative to
            `base_dir`.
        base_dir: the folder of the job file.
        revision: branch, tag or commit of an `hf://` source.
        dtype: one of `DTYPES`. With "bf16" the model is rounded after it was loaded in float32; an
            adapter around it is float32, as peft makes it.
        seed: of the random weights of a function's model, and of an adapter's.
        adapter: the job's LoRA section, or None.

    Raises:
        CaptureError: the source is not there, is not a causal LM, or cannot be loaded safely.
    """
    if dtype not in DTYPES:
        raise CaptureError(f"model.dtype: '{dtype}'; expected one of {', '.join(DTYPES)}")
    torch.manual_seed(seed)
    if source.startswith(HUB_PREFIX):
        loaded = _from_folder(_downloaded(source.removeprefix(HUB_PREFIX), revision), source)
    elif ".py:" in source:
        loaded = LoadedModel(model=build_model(source, base_dir), tokenizer=None, hf_dir=None)
    else:
        loaded = _from_folder((base_dir / source).resolve(), source)
    if dtype == "bf16":
        masters = masters_of(loaded.model) if adapter is None else {}
        to_bfloat16(loaded.model)
        loaded = replace(loaded, masters=masters)
    if adapter is None:
        return loaded
    torch.manual_seed(seed)
    return replace(loaded, model=apply_adapter(loaded.model, adapter))


def _from_folder(folder: Path, source: str) -> LoadedModel:
    """Load a Hugging Face folder."""
    _check_folder(folder, source)
    try:
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
        tokenizer = _tokenizer(folder)
    except _LOADING_FAILURES as error:
        reason = " ".join(str(error).split())[:400]
        raise CaptureError(f"model.source: '{source}' cannot be loaded: {reason}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise CaptureError(
            f"model.source: '{source}' lacks {len(missing)} of the model's weights, such as "
            f"'{missing[0]}'; training would begin from random values"
        )
    return LoadedModel(model=model, tokenizer=tokenizer, hf_dir=folder)


def _check_folder(folder: Path, source: str) -> None:
    """Refuse what is no Hugging Face folder with safetensors weights."""
    if not folder.is_dir():
        raise CaptureError(
            f"model.source: '{source}' is not a folder; expected a local Hugging Face folder, "
            "hf://name@revision or module.py:function",
            remedy="a path is relative to the job file",
            exit_code=2,
        )
    if not (folder / "config.json").is_file():
        raise CaptureError(f"model.source: '{source}' has no config.json", exit_code=2)
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(path.name for kind in ("*.bin", "*.pt", "*.pth") for path in folder.glob(kind))
    if pickled:
        raise CaptureError(
            f"model.source: '{source}' has its weights as a pickle ({pickled[0]}), which runs code "
            "when it is loaded; expected *.safetensors",
            remedy="convert it with save_pretrained on a machine that may run its code",
            exit_code=2,
        )
    raise CaptureError(f"model.source: '{source}' has no *.safetensors file", exit_code=2)


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    return transformers.AutoTokenizer.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True
    )


def _downloaded(name: str, revision: str | None) -> Path:
    """Give the local folder of a hub's model, downloaded where it is not there yet."""
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub import errors as hub_errors

    name, _, pinned = name.partition("@")
    wanted = pinned or revision
    shown = f"hf://{name}" + (f"@{wanted}" if wanted else "")
    failures = (OSError, ValueError, RuntimeError, hub_errors.HfHubHTTPError)
    try:
        found = huggingface_hub.snapshot_download(
            name, revision=wanted, allow_patterns=list(_FILES)
        )
    except failures as error:
        offline = isinstance(error, (hub_errors.LocalEntryNotFoundError, ConnectionError))
        if offline or constants.HF_HUB_OFFLINE:
            raise CaptureError(
                f"model.source: '{shown}' is not in the local cache, and the model hub cannot be "
                "reached from here",
                remedy="run once with a network, or give a local Hugging Face folder",
            ) from error
        reason = " ".join(str(error).split())[:300]
        raise CaptureError(f"model.source: '{shown}' cannot be downloaded: {reason}") from error
    return Path(found)
