"""A child that captures and compiles a shape's programs, as `luma compile` does, and times both."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

from benchmarks.children import serve
from benchmarks.shapes import SEED, SHAPES

MICRO_SHARDS = 16
PAYLOAD_FILE = "payload.cbor"
ARRAYS_FILE = "arrays.safetensors"


def build(shape_name: str, folder: str, cache_dir: str) -> dict[str, float]:
    """Write the payload and the model's arrays of a shape into a folder.

    Args:
        shape_name: one of `SHAPES`.
        folder: gets the payload and the arrays.
        cache_dir: the compile cache; an empty one makes the compile a cold one.

    Returns:
        Seconds of `capture` (gradient check included) and of `compile` (the compiler's process
        and its imports included); loading torch and building the model are not in them. The
        compiler's `compile_peak_bytes` (resident), and the step's `matmul_flops`.
    """
    model = shape_model(shape_name)
    shape = SHAPES[shape_name]
    from safetensors.numpy import save_file

    from runtime.compiler import compile_package
    from runtime.compiler.arithmetic import matmul_flops
    from runtime.compiler.capture import capture

    started = time.perf_counter()
    captured = capture(model, micro_batch=shape.micro_batch, seq_len=shape.seq_len)
    capture_s = time.perf_counter() - started
    started = time.perf_counter()
    result = compile_package(
        captured.package, target="cpu", micro_shards=MICRO_SHARDS, cache_dir=Path(cache_dir)
    )
    compile_s = time.perf_counter() - started
    place = Path(folder)
    save_file(captured.arrays, place / ARRAYS_FILE)
    (place / PAYLOAD_FILE).write_bytes(result.payload.to_bytes())
    return {
        "capture": capture_s,
        "compile": compile_s,
        "compile_peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "matmul_flops": matmul_flops(captured.package.graphs["grad"]),
    }


def shape_model(shape_name: str) -> Any:
    """Give a shape's model with random weights, the same each time."""
    import torch

    from benchmarks import models

    torch.manual_seed(SEED)
    shape = SHAPES[shape_name]
    return getattr(models, shape.builder)(**shape.arguments)


if __name__ == "__main__":
    serve({"build": build})
