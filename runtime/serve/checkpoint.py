"""Which folder is served: the newest whole checkpoint of a run, and whether it can be served at all.

Read before any engine starts, so that a wrong folder is a clear message and not a child's traceback.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.serve.whole import MANIFEST, why_not_whole
from runtime.spec import CheckpointError, ServeError

_STEP = re.compile(r"step-(\d+)")


def find_checkpoint(run_dir: Path) -> Path:
    """Give a run's newest whole checkpoint folder, or a model folder as it is.

    A checkpoint is whole when every file has the size and the hash that its manifest says; a newer
    one that is torn or changed is passed over.

    Args:
        run_dir: a run's folder, with `checkpoints/step-*` in it; or a checkpoint or other model
            folder in HF format.

    Raises:
        CheckpointError: if there is no whole checkpoint.
    """
    if any((run_dir / name).is_file() for name in ("config.json", "adapter_config.json")):
        return run_dir
    root = run_dir / "checkpoints"
    steps = [
        (int(match.group(1)), path)
        for path in (root.iterdir() if root.is_dir() else ())
        if (match := _STEP.fullmatch(path.name))
    ]
    reasons = []
    for _, path in sorted(steps, reverse=True):
        reason = why_not_whole(path)
        if reason is None:
            return path
        reasons.append(f"\n  {path.name}: {reason}")
    message = f"{run_dir}: no whole checkpoint; expected checkpoints/step-*/{MANIFEST}"
    raise CheckpointError(
        message + "".join(reasons), remedy="wait for the run's first checkpoint, or launch it"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Servable:
    """A checkpoint folder that an engine can load, and what the gateway needs to know of it.

    Attributes:
        path: the folder, absolute.
        has_chat_template: whether its tokenizer can render a conversation.
        temperature: the model's own default where it has one, else 1.0, OpenAI's.
        top_p: likewise.
        top_k: likewise; 0 keeps all.
    """

    path: Path
    has_chat_template: bool
    temperature: float
    top_p: float
    top_k: int


def read_servable(folder: Path) -> Servable:
    """Check that a folder is a whole HF checkpoint with a tokenizer, and read its defaults.

    Raises:
        ServeError: with exit code 2 and every missing part, if it is not.
    """
    if not folder.is_dir():
        raise _refusal(folder, "is not a folder", "name a checkpoint folder, or a run's folder")
    if (folder / "adapter_config.json").is_file():
        raise _refusal(
            folder,
            "holds a LoRA adapter alone; the transformers back end needs whole weights",
            "merge it first: PeftModel.from_pretrained(base, folder).merge_and_unload(), then"
            " save_pretrained of model and tokenizer into a new folder",
        )
    missing = [
        what
        for what, present in (
            ("config.json", (folder / "config.json").is_file()),
            ("*.safetensors", any(folder.glob("*.safetensors"))),
            ("tokenizer.json", (folder / "tokenizer.json").is_file()),
        )
        if not present
    ]
    if missing:
        raise _refusal(
            folder,
            f"cannot be served: {', '.join(missing)} missing",
            "serve a checkpoint in HF format that has its tokenizer beside the weights",
        )
    return _servable(folder)


def _servable(folder: Path) -> Servable:
    _read_json(folder / "config.json")
    tokenizer = _read_json(folder / "tokenizer_config.json")
    generation = _read_json(folder / "generation_config.json")
    template = (folder / "chat_template.jinja").is_file() or bool(tokenizer.get("chat_template"))
    return Servable(
        path=folder.resolve(),
        has_chat_template=template,
        temperature=float(generation.get("temperature") or 1.0),
        top_p=float(generation.get("top_p") or 1.0),
        # transformers' own default of 50 is not in the file: absent means that nobody chose one.
        top_k=int(generation.get("top_k") or 0),
    )


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; an absent file is an empty one."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _refusal(path, f"is not JSON: {error}", "write the checkpoint again") from error
    if not isinstance(content, dict):
        raise _refusal(path, "is not a JSON object", "write the checkpoint again")
    return content


def _refusal(path: Path, what: str, remedy: str) -> ServeError:
    return ServeError(f"{path}: {what}", remedy=remedy, exit_code=2)
