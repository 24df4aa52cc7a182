"""A LoRA run's checkpoint with the adapter merged into the model, for engines that need that.

Runs as a stage of its own (`python -m runtime.run.merge`), which imports torch. The weights are the
run's own: the frozen ones from `constants.safetensors`, the adapter's from the checkpoint, each
verified; of the job's model only the architecture is used. The merged folder stands in the run's
`merged/`, appears whole or not at all, and is named after the checkpoint's manifest, so that it is
made once a checkpoint.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from runtime.run.files import disk_errors
from runtime.run.folder import RunFolder
from runtime.run.stage import Progress, run_stage, serve_stage
from runtime.spec import JobSpec, RunError

MERGED = "merged"
ADAPTER_CONFIG = "adapter_config.json"


def merged_checkpoint(folder: RunFolder, checkpoint: Path, progress: Progress) -> Path:
    """Give a Hugging Face folder of whole weights for a run's checkpoint.

    Args:
        folder: the run.
        checkpoint: one of its whole checkpoints.
        progress: called with lines of progress.

    Returns:
        `checkpoint` itself where it holds no adapter, else the merged folder.

    Raises:
        LumaError: the checkpoint or the run's constants are damaged, the model's source is gone or
            is another model now, or the disk is full.
    """
    from runtime.agent.checkpoint_manifest import read_manifest

    if not (checkpoint / ADAPTER_CONFIG).is_file():
        return checkpoint
    _, digest = read_manifest(checkpoint)
    target = folder.path / MERGED / f"{checkpoint.name}-{digest[:16]}"
    if target.is_dir():
        return target
    progress("merging the adapter into the model, once for this checkpoint")
    with disk_errors(target):
        target.parent.mkdir(exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        request = {
            "folder": str(folder.path),
            "checkpoint": str(checkpoint),
            "target": str(temporary),
            "job_file": folder.record()["job_file"],
        }
        try:
            run_stage(
                "runtime.run.merge", request, log=folder.path / "merge.log", progress=progress
            )
            _put_in_place(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


def _put_in_place(temporary: Path, target: Path) -> None:
    try:
        temporary.rename(target)
    except OSError:
        if not target.is_dir():  # else another process has just made the same one
            raise


def _work(request: dict[str, Any], progress: Progress) -> dict[str, Any]:
    from runtime.compiler.capture import load_model
    from runtime.run.model_files import save_model_files

    spec = _spec(request)
    progress(f"loading {spec.model.source}")
    loaded = load_model(
        spec.model.source,
        spec.base_dir,
        revision=spec.model.revision,
        dtype="fp32",  # a sum of base and adapter is not rounded, whatever the job computed in
        seed=spec.train.seed,
        adapter=spec.adapter,
    )
    model: Any = loaded.model
    _fill(model, _arrays(Path(request["folder"]), Path(request["checkpoint"])))
    merged = model.merge_and_unload()
    target = Path(request["target"])
    save_model_files(merged, loaded.tokenizer, target)
    merged.save_pretrained(target)
    return {}


def _spec(request: dict[str, Any]) -> JobSpec:
    """Read the job where its paths mean what they meant at the launch.

    Raises:
        RunError: the job file has gone.
    """
    job_file = Path(request["job_file"])
    if not job_file.is_file():
        raise RunError(
            f"the run's job file '{job_file}' has gone, and with it the place of its model",
            remedy="put the job and its model back, or merge the adapter with peft yourself:"
            " PeftModel.from_pretrained(base, checkpoint).merge_and_unload()",
        )
    return JobSpec.from_yaml(job_file)


def _arrays(folder: Path, checkpoint: Path) -> dict[str, Any]:
    """Give the run's tensors by name, all verified: adapter, frozen weights, buffers."""
    from runtime.agent.checkpoint import load_checkpoint, read_constants
    from runtime.agent.checkpoint_manifest import verify
    from runtime.coordinator.plan import RunPlan

    plan = RunPlan.read(folder)
    constants = read_constants(folder / "constants.safetensors", plan.constants_digest)
    return {**constants, **load_checkpoint(verify(checkpoint, plan.job_digest)).params}


def _fill(model: Any, arrays: dict[str, Any]) -> None:
    """Put the run's values into the model's tensors.

    A graph holds no buffer that it does not use: such a one stays as the model made it. A constant
    that only the graph holds has no place in the model.

    Raises:
        RunError: the model is another one: it has other parameters, or of another shape.
    """
    from runtime.compiler.capture import model_arrays
    from runtime.run.capture_cache import CONSTANT

    places = model_arrays(model)  # they share the model's memory
    buffers = {name.removeprefix("base_model.model.") for name, _ in model.named_buffers()}
    kept = {name: array for name, array in arrays.items() if not name.startswith(CONSTANT)}
    wrong = [
        *(name for name in kept if name not in places),
        *(name for name in places if name not in kept and name not in buffers),
        *(name for name in kept if name in places and not _fits(kept[name], places[name])),
    ]
    if wrong:
        raise RunError(
            f"the job's model is not the one that was trained: '{wrong[0]}' differs",
            remedy="put the model's source back as it was at the launch",
        )
    for name, value in kept.items():
        places[name][...] = value


def _fits(value: Any, place: Any) -> bool:
    widened = (value.dtype.name, place.dtype.name) == ("bfloat16", "float32")
    return value.shape == place.shape and (value.dtype == place.dtype or widened)


if __name__ == "__main__":
    serve_stage(_work)
