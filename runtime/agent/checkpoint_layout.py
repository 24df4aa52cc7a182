"""How a checkpoint looks to transformers, peft and vLLM: file names, keys and the config.

A whole model is a Hugging Face folder: `config.json`, the tokenizer's files, `model.safetensors`
(or numbered parts with an index). A LoRA job writes a peft adapter: `adapter_config.json` and
`adapter_model.safetensors`, with the adapter's name left out of the keys as peft does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from runtime.agent.checkpoint_files import FileRecord, write_bytes, write_tensor_set
from runtime.spec import CheckpointError

ADAPTER_CONFIG = "adapter_config.json"
CONFIG = "config.json"
LUMA_FOLDER = "luma"
_ADAPTER_NAME = "default"
_PEFT_PREFIX = "base_model.model."
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
_INDEX_SUFFIX = ".index.json"


def is_adapter(model_files: Path | None) -> bool:
    """Tell whether a model's folder asks for the adapter format."""
    return model_files is not None and (model_files / ADAPTER_CONFIG).is_file()


def file_keys(params: Mapping[str, np.ndarray], *, adapter: bool) -> dict[str, str]:
    """Map parameter names to their keys in the weight file.

    Args:
        params: trained parameters by name.
        adapter: whether the weight file is a peft adapter.

    Raises:
        CheckpointError: two parameters would have one key.
    """
    keys = {name: peft_key(name) if adapter else name for name in params}
    if len(set(keys.values())) != len(keys):
        doubled = sorted({key for key in keys.values() if list(keys.values()).count(key) > 1})
        msg = f"several parameters have the adapter key {doubled[0]!r}"
        raise CheckpointError(msg)
    return keys


def peft_key(name: str) -> str:
    """Give the key under which peft stores a parameter of its model.

    Args:
        name: as in `PeftModel.named_parameters()`, with or without the `base_model.model.` prefix.
    """
    name = name if name.startswith(_PEFT_PREFIX) else _PEFT_PREFIX + name
    name = name.replace(f".modules_to_save.{_ADAPTER_NAME}.", ".")
    if name.endswith(f".{_ADAPTER_NAME}"):
        return name.removesuffix(f".{_ADAPTER_NAME}")
    # peft leaves out the suffix of the magnitude vectors, which it once stored as plain parameters.
    if name.endswith(f".lora_magnitude_vector.{_ADAPTER_NAME}.weight"):
        return name.removesuffix(f".{_ADAPTER_NAME}.weight")
    head, _, tail = name.rpartition(".")
    return f"{head.removesuffix('.' + _ADAPTER_NAME)}.{tail}"


def state_dtype(folder: Path, dtype: str) -> None:
    """Say in a model folder's config in which dtype its weights are loaded.

    Weight files hold what a job trains, float32. Transformers and vLLM load them in the config's
    dtype unless they are told another: what the job computes in, so that nothing is rounded that
    the training did not round.

    Args:
        folder: holds `config.json`; one without (an adapter, a model of plain torch) says nothing.
        dtype: "float32" or "bfloat16".

    Raises:
        CheckpointError: the config cannot be read or written.
    """
    path = folder / CONFIG
    if not path.exists():
        return
    try:
        config = json.loads(path.read_bytes())
        _set_dtype(config, dtype)
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    except (OSError, ValueError) as error:
        msg = f"{path}: its dtype cannot be set ({error})"
        raise CheckpointError(msg) from error


def write_model_files(
    folder: Path,
    params: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray],
    *,
    model_files: Path | None,
    max_file_bytes: int,
    durable: bool,
) -> dict[str, FileRecord]:
    """Write everything that others read: config, tokenizer, weights.

    Args:
        folder: the checkpoint's folder, without these files.
        params: trained parameters by name.
        constants: arrays that belong to the weight file without being trained; an adapter has none.
        model_files: folder of config and tokenizer files, or None for a model without.
        max_file_bytes: a weight file's limit; an adapter is always one file.
        durable: whether to fsync the files.

    Returns:
        The record of each file by its path in the checkpoint.

    Raises:
        CheckpointError: a file of `model_files` cannot be read, or a dtype cannot be stored.
        OSError: the disk refused a write.
    """
    adapter = is_adapter(model_files)
    records = _copy(model_files, folder, durable=durable) if model_files is not None else {}
    keys = file_keys(params, adapter=adapter)
    tensors = {keys[name]: array for name, array in params.items()}
    if not adapter:
        tensors = {**constants, **tensors}
    limit = max_file_bytes
    if adapter:
        limit = sum(array.nbytes for array in tensors.values()) + 1
    stem = "adapter_model" if adapter else "model"
    records.update(write_tensor_set(folder, stem, tensors, max_file_bytes=limit, durable=durable))
    return records


def _copy(source: Path, folder: Path, *, durable: bool) -> dict[str, FileRecord]:
    records = {}
    for path in _files_to_copy(source):
        relative = PurePosixPath(path.relative_to(source).as_posix())
        try:
            data = path.read_bytes()
        except OSError as error:
            msg = f"{path}: cannot be read ({error.strerror})"
            raise CheckpointError(msg) from error
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        records[str(relative)] = write_bytes(target, data, durable=durable)
    return records


def _files_to_copy(source: Path) -> Iterator[Path]:
    for path in sorted(source.rglob("*")):
        parts = path.relative_to(source).parts
        hidden = any(part.startswith(".") for part in parts)
        weights = path.name.endswith((*_WEIGHT_SUFFIXES, _INDEX_SUFFIX))
        if path.is_file() and not hidden and not weights and parts[0] != LUMA_FOLDER:
            yield path


def _set_dtype(config: dict, dtype: str) -> None:
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    for key, value in config.items():
        if isinstance(value, dict) and key.endswith("_config") and "model_type" in value:
            _set_dtype(value, dtype)
