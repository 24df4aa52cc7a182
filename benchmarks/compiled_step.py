"""A child that runs the compiled `grad` program the way an island does: loss, gradients, encoding."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.build_program import ARRAYS_FILE, MICRO_SHARDS, PAYLOAD_FILE
from benchmarks.children import serve
from benchmarks.shapes import SEED, SHAPES, random_batch
from benchmarks.units import device_units

if TYPE_CHECKING:
    from runtime.agent.executable import LoadedProgram

_HEADROOM = 3


class CompiledStep:
    """One loaded `grad` program with its arguments."""

    def load(self, shape_name: str, folder: str) -> dict[str, float]:
        """Load program and weights, and find the fixed-point scale as a fresh job does.

        Returns:
            `seconds` of loading the program, and the `loss` of the batch.
        """
        from safetensors.numpy import load_file

        from runtime.agent.executable import device_array, load_program
        from runtime.artifact.program import TargetPayload

        self._payload = TargetPayload.from_bytes((Path(folder) / PAYLOAD_FILE).read_bytes())
        started = time.perf_counter()
        self._program = load_program(self._payload.programs["grad"])
        seconds = time.perf_counter() - started
        arrays = load_file(Path(folder) / ARRAYS_FILE)
        batch = random_batch(SHAPES[shape_name])
        inputs = self._program.program.inputs
        fixed = {"param", "frozen", "buffer"}
        self._fixed = [device_array(arrays[spec.name]) for spec in inputs if spec.role in fixed]
        self._batch = [batch[spec.name] for spec in inputs if spec.role == "batch"]
        rows, size = self._payload.blocks.rows, self._payload.blocks.block_size
        self._zeros = [device_array(np.zeros((count, size), np.int32)) for *_, count in rows]
        loss = self._find_scale()
        return {"seconds": seconds, "loss": loss}

    def _find_scale(self) -> float:
        from runtime.agent import scaling
        from runtime.agent.executable import device_array, host_view
        from runtime.artifact.program import EMPTY

        blocks = self._payload.blocks
        self._empty = device_array(np.full(blocks.n_blocks, EMPTY, np.int32))
        self._units: list[Any] = device_units(np.zeros(blocks.n_blocks, np.int32), blocks)
        self._reset()
        maxima, loss, tokens = self._run()[len(blocks.rows) :][:3]
        largest = scaling.first_exponents(np.array(host_view(maxima)), blocks.rows)
        units = scaling.unit_exponents(largest, micro_shards=MICRO_SHARDS, headroom=_HEADROOM)
        self._units = device_units(units, blocks)
        self._reset()
        return float(host_view(loss)) / int(host_view(tokens))

    def run(self, count: int) -> list[float]:
        """Compute some micro-shards one on top of the other; give the seconds of each."""
        times = []
        for _ in range(count):
            if self._shards == MICRO_SHARDS:
                self._reset()
            started = time.perf_counter()
            self._run()
            times.append(time.perf_counter() - started)
        return times

    def _reset(self) -> None:
        self._shards, self._sums, self._maxima = 0, self._zeros, self._empty

    def _run(self) -> list[Any]:
        program: LoadedProgram = self._program
        key = np.array([SEED, self._shards], np.int32)
        outputs = program.run(
            [*self._fixed, *self._batch, key, *self._units, *self._sums, self._maxima]
        )
        count = len(self._payload.blocks.rows)
        self._sums, self._maxima = outputs[:count], outputs[count]
        self._shards += 1
        return outputs


if __name__ == "__main__":
    step = CompiledStep()
    serve({"load": step.load, "run": step.run, "processor_s": time.process_time})
