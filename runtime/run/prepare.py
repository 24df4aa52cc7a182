"""The prepare stage, on the customer's side: model and data become what a run needs.

Runs as a stage of its own (`python -m runtime.run.prepare`), the only process of a launch that
imports torch. Into the run folder it writes `model.graph`, `model/` (config and tokenizer),
`data/`, `constants.safetensors` and `checkpoints/step-000000`. Nothing of that leaves the machine
but the graph package, which the compiler gets.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.run.folder import RunFolder
from runtime.run.stage import Progress, run_stage, serve_stage
from runtime.spec import DataError, JobSpec

if TYPE_CHECKING:
    from runtime.run.capture_cache import Captured

_TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def prepare(
    job_file: Path,
    overrides: dict[str, Any],
    folder: RunFolder,
    *,
    capture_only: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Prepare a job into a folder, in a child process.

    Args:
        job_file: the job file.
        overrides: dotted fields that replace the file's.
        folder: gets the files; exists already.
        capture_only: stop after `model.graph`, for `luma compile` and `luma check`.
        progress: called with lines of progress.

    Returns:
        `capture`: {cached, seconds, gradient_error, nodes, ops, parameters}; and unless
        `capture_only`, `data`: {count, seq_len, digest, supervised_tokens}, `state_hash` of
        the initial state, and `constants`: {digest, stored}, the digest of their file and the
        names of those that belong into every checkpoint's weight file.

    Raises:
        LumaError: the job, the model or the data is wrong.
    """
    request = {
        "job_file": str(job_file.resolve()),
        "overrides": overrides,
        "folder": str(folder.path),
        "capture_only": capture_only,
    }
    log = folder.path / "prepare.log"
    return run_stage("runtime.run.prepare", request, log=log, progress=progress)


def _work(request: dict[str, Any], progress: Progress) -> dict[str, Any]:
    spec = JobSpec.from_yaml(request["job_file"]).with_overrides(request["overrides"])
    folder = RunFolder(Path(request["folder"]))
    captured = _capture(spec, folder, progress)
    result: dict[str, Any] = {"capture": captured.report}
    if not request["capture_only"]:
        result |= _prepare_training(spec, captured, folder, progress)
    return result


def _capture(spec: JobSpec, folder: RunFolder, progress: Progress) -> Captured:
    from runtime.run.capture_cache import capture_job

    progress(f"loading {spec.model.source}")
    started = time.monotonic()
    captured = capture_job(spec, progress)
    folder.graph_file.write_bytes(captured.package.to_bytes())
    captured.report["seconds"] = round(time.monotonic() - started, 2)
    return captured


def _prepare_training(
    spec: JobSpec, captured: Captured, folder: RunFolder, progress: Progress
) -> dict[str, Any]:
    from runtime.agent.checkpoint_layout import state_dtype
    from runtime.run.data import prepare_data
    from runtime.run.model_files import save_model_files

    save_model_files(captured.model, captured.tokenizer, folder.model_dir)
    state_dtype(folder.model_dir, _TORCH_DTYPES[spec.model.dtype])
    progress("tokenising the data")
    data = prepare_data(spec, captured.tokenizer, folder.data_dir, progress)
    progress(f"data: {data.count:,} samples of {data.seq_len} tokens")
    _check_vocabulary(captured.model, data.largest_token)
    state_hash, constants = _write_initial_state(spec, captured, folder)
    return {
        "data": {
            "count": data.count,
            "seq_len": data.seq_len,
            "digest": data.digest,
            "supervised_tokens": data.supervised_tokens,
        },
        "state_hash": state_hash,
        "constants": constants,
    }


def _check_vocabulary(model: Any, largest_token: int) -> None:
    """Refuse tokens that the model has no embedding for: a compiled look-up would clamp them.

    Raises:
        DataError: the data holds a token id outside the model's vocabulary.
    """
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    rows = getattr(getattr(embeddings, "weight", None), "shape", (None,))[0]
    if rows is not None and largest_token >= rows:
        raise DataError(
            f"data.source: holds token {largest_token}, the model knows tokens 0 to {rows - 1}",
            remedy="use the model's own tokenizer, or a model with a larger vocabulary (a model"
            " without a tokenizer is trained on bytes and needs 257)",
        )


def _write_initial_state(
    spec: JobSpec, captured: Captured, folder: RunFolder
) -> tuple[str, dict[str, Any]]:
    """Write the state before step 0: the loaded weights, zero moments, no block seen yet.

    Returns:
        The state's hash; and of the constants, their file's digest and the names of those that
        every checkpoint's weight file holds.
    """
    from runtime.agent.checkpoint import write_checkpoint, write_constants
    from runtime.agent.state import initial_state
    from runtime.compiler.fixed_point import n_blocks

    inputs = captured.package.graphs["grad"].inputs
    by_role: dict[str, dict[str, Any]] = {"param": {}, "frozen": {}, "buffer": {}}
    for item in inputs:
        if item.role in by_role:
            by_role[item.role][item.target] = captured.arrays[item.target]
    params = by_role["param"]
    constants = by_role["frozen"] | by_role["buffer"]
    record = write_constants(folder.path / "constants.safetensors", constants)
    stored = {name: array for name, array in constants.items() if name in captured.weight_names}
    blocks = sum(n_blocks(array.size) for array in params.values())
    info = write_checkpoint(
        folder.checkpoints_dir,
        initial_state(params, n_blocks=blocks),
        job_digest=spec.digest(),
        model_files=folder.model_dir,
        constants=stored,
        threads=0,
    )
    return info.state_hash, {"digest": record.blake3, "stored": sorted(stored)}


if __name__ == "__main__":
    serve_stage(_work)
