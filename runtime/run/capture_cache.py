"""Capture with a cache, on the customer's side: a second launch of a job traces nothing.

An entry holds the graph package, the lifted constants (small tensors of the graph, no weights) and
the record of the gradient check that the capture passed. Its key covers all that a graph depends
on: the model's files, or the function and the Python modules that define it with the configuration,
tensors and plain attributes of what it gave; the adapter, the shapes, the versions of torch and
transformers, and the capture code itself. Weights are part of the key only because they are part
of the model's files: the graph has none.

An entry that cannot be read, or does not fit the model that was loaded, is captured anew.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

import runtime.compiler
import runtime.kernels
from runtime.artifact import default_home, private_folder
from runtime.compiler.graph import GraphPackage
from runtime.run.stage import Progress
from runtime.spec import ArtifactError, CheckpointError, CompileError, JobSpec

if TYPE_CHECKING:
    from runtime.compiler.capture import LoadedModel

CONSTANT = "constant."
"""Prefix of the names that capture gives to lifted constants."""

_KEPT_ENTRIES = 32


@dataclass(slots=True)
class Captured:
    """A captured job.

    Attributes:
        package: the graphs.
        arrays: params (float32 masters, whatever the graph computes in), frozen and buffers, by
            target.
        weight_names: names that belong into a checkpoint's weight file.
        model: the loaded torch model.
        tokenizer: its tokenizer or None.
        report: plain values for the launcher.
    """

    package: GraphPackage
    arrays: dict[str, np.ndarray]
    weight_names: set[str]
    model: Any
    tokenizer: Any | None
    report: dict[str, Any]


def capture_job(spec: JobSpec, progress: Progress) -> Captured:
    """Load a job's model and capture it, or take its graph from the cache.

    Raises:
        CaptureError: the model cannot be loaded or captured.
    """
    from runtime.compiler.capture import load_model

    loaded = load_model(
        spec.model.source,
        spec.base_dir,
        revision=spec.model.revision,
        dtype=spec.model.dtype,
        seed=spec.train.seed,
        adapter=spec.adapter,
    )
    entry = _cache_dir() / _key(spec, loaded)
    captured = _from_cache(spec, entry, loaded)
    if captured is None:
        progress("capturing the training step, and checking its gradients against eager")
        captured = _capture(spec, loaded, entry)
    captured.report["text"] = _text(captured.report)
    progress(captured.report["text"])
    return captured


def _capture(spec: JobSpec, loaded: LoadedModel, entry: Path) -> Captured:
    from runtime.compiler.capture import capture

    result = capture(
        loaded.model,
        micro_batch=spec.train.micro_batch,
        seq_len=spec.train.seq_len,
        packing=spec.data.packing,
        seed=spec.train.seed,
    )
    check = {"attention": result.attention, **asdict(result.check)}
    constants = {k: v for k, v in result.arrays.items() if k.startswith(CONSTANT)}
    _store(entry, result.package, constants, check)
    return _captured(spec, result.package, result.arrays, loaded, check, cached=False)


def _captured(
    spec: JobSpec,
    package: GraphPackage,
    arrays: dict[str, np.ndarray],
    loaded: LoadedModel,
    check: dict[str, Any],
    *,
    cached: bool,
) -> Captured:
    # What the compiler is to do with a graph is no part of what is captured.
    package = replace(package, checkpointing=spec.train.checkpointing)
    grad = package.graphs["grad"]
    ops = Counter(node.op for node in grad.nodes)
    params = [item for item in grad.inputs if item.role == "param"]
    report = {
        "cached": cached,
        "nodes": len(grad.nodes),
        "ops": len(ops),
        "parameters": int(sum(np.prod(item.type.shape) for item in params)),
        "gradient_error": check["worst_relative_gradient_error"],
        "attention": check["attention"],
        "package_digest": package.digest(),
    }
    names = set() if hasattr(loaded.model, "peft_config") else set(loaded.model.state_dict())
    arrays = {**arrays, **loaded.masters}
    return Captured(package, arrays, names, loaded.model, loaded.tokenizer, report)


def _text(report: dict[str, Any]) -> str:
    how = "from the cache, captured before" if report["cached"] else "captured"
    return (
        f"graph {how}: {report['nodes']:,} nodes, {report['ops']} distinct ops; run by torch on a"
        f" random batch, its gradients are within {report['gradient_error']:.1e} of eager's"
    )


def _from_cache(spec: JobSpec, entry: Path, loaded: LoadedModel) -> Captured | None:
    from runtime.agent.checkpoint import read_constants
    from runtime.compiler.capture import model_arrays

    try:
        package = GraphPackage.from_bytes((entry / "model.graph").read_bytes())
        constants = read_constants(entry / "constants.safetensors")
        check = json.loads((entry / "check.json").read_text())
        arrays = model_arrays(loaded.model) | constants
        for item in package.graphs["grad"].inputs:
            if item.role in {"param", "frozen", "buffer"}:
                array = arrays[item.target]
                if (array.shape, array.dtype.name) != (item.type.shape, item.type.dtype):
                    return None
        return _captured(spec, package, arrays, loaded, check, cached=True)
    except (OSError, ValueError, KeyError, TypeError, CompileError, CheckpointError):
        return None


def _store(
    entry: Path, package: GraphPackage, constants: dict[str, np.ndarray], check: dict[str, Any]
) -> None:
    """Write an entry under a hidden name and rename it; a cache that cannot be written is skipped.

    Another launch may have been first: its entry is as good, and ours goes.
    """
    from runtime.agent.checkpoint import write_constants

    temporary = entry.with_name(f".{entry.name}.{os.getpid()}")
    try:
        private_folder(entry.parent)
        temporary.mkdir()
        (temporary / "model.graph").write_bytes(package.to_bytes())
        write_constants(temporary / "constants.safetensors", constants)
        (temporary / "check.json").write_text(json.dumps(check))
        if entry.exists():
            shutil.rmtree(entry)
        temporary.rename(entry)
        _prune(entry.parent)
    except (OSError, ArtifactError, CheckpointError):
        shutil.rmtree(temporary, ignore_errors=True)


def _prune(folder: Path) -> None:
    entries = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for old in entries[:-_KEPT_ENTRIES]:
        shutil.rmtree(old, ignore_errors=True)


def _cache_dir() -> Path:
    return default_home() / "cache" / "capture"


def _key(spec: JobSpec, loaded: LoadedModel) -> str:
    facts = {
        "adapter": None if spec.adapter is None else spec.adapter.model_dump(mode="json"),
        "dtype": spec.model.dtype,
        "micro_batch": spec.train.micro_batch,
        "seq_len": spec.train.seq_len,
        "packing": spec.data.packing,
        "seed": spec.train.seed if loaded.hf_dir is None else None,
        "versions": [version(name) for name in ("torch", "transformers", "peft")],
        "python": sys.version,
        "model": _model_files(spec, loaded),
        "built": None if loaded.hf_dir is not None else _built(spec.model.source, loaded.model),
        "capture": [_file_digest(path) for path in _capture_sources()],
    }
    return blake3(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _model_files(spec: JobSpec, loaded: LoadedModel) -> list[tuple[str, str]]:
    """Give (name, digest) of what defines the model: its folder, or its Python modules."""
    if loaded.hf_dir is not None:
        root = Path(loaded.hf_dir)
        paths = [path for path in sorted(root.rglob("*")) if path.is_file()]
        return [(str(path.relative_to(root)), _file_digest(path)) for path in paths]
    root = spec.base_dir.resolve()
    loaded_files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    paths = [spec.resolve(spec.model.source.rpartition(":")[0])]
    paths += [Path(file) for file in loaded_files if file and Path(file).is_relative_to(root)]
    own = (path for path in paths if path.suffix == ".py" and "site-packages" not in path.parts)
    unique = sorted({path.resolve() for path in own})
    return [(path.name, _file_digest(path)) for path in unique]


def _built(source: str, model: Any) -> dict[str, Any]:
    """Give what a function's model is beside its weights.

    Its file may define several models, and the function may read files or variables that nobody
    knows of: two models that differ in a size, a constant or in what is frozen are never one.
    """
    config = getattr(model, "config", None)
    settings = config.to_dict() if hasattr(config, "to_dict") else None
    return {
        "function": source.rpartition(":")[2],
        "config": json.dumps(settings, sort_keys=True, default=str),
        "modules": [
            (name, type(module).__qualname__, module.extra_repr(), _plain_attributes(module))
            for name, module in model.named_modules()
        ],
        "tensors": [
            (name, str(tensor.dtype), list(tensor.shape), tensor.requires_grad)
            for named in (model.named_parameters(), model.named_buffers())
            for name, tensor in named
        ],
        "saved": sorted(model.state_dict()),
    }


def _plain_attributes(module: Any) -> dict[str, Any]:
    plain = (bool, int, float, str, type(None))
    return {
        name: repr(value)
        for name, value in sorted(vars(module).items())
        if isinstance(value, plain) and not name.startswith("_")
    }


def _capture_sources() -> list[Path]:
    """Give the files whose change may change a graph."""
    compiler = Path(runtime.compiler.__file__).parent
    kernels = Path(runtime.kernels.__file__).parent
    return [
        *sorted((compiler / "capture").glob("*.py")),
        compiler / "graph.py",
        *sorted(kernels.glob("*/reference.py")),
        *sorted(kernels.glob("*/contract.py")),
    ]


def _file_digest(path: Path) -> str:
    hasher = blake3(max_threads=blake3.AUTO)
    hasher.update_mmap(path)
    return hasher.hexdigest()
