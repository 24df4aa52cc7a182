"""A child that runs the run's own executables with nothing around them: `grad` M times, `apply`.

No coordinator, reduction, hash, log or checkpoint. Batches are read beforehand.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.children import serve
from benchmarks.units import device_units

if TYPE_CHECKING:
    from runtime.agent.executable import LoadedProgram
    from runtime.coordinator.plan import RunPlan


class BareLoop:
    """The programs of a prepared run and their arguments."""

    def load(self, run: str) -> dict[str, int]:
        """Open a run's artifact, data and first checkpoint.

        Returns:
            The number of `parameters`.
        """
        from runtime.agent.checkpoint import latest_checkpoint, load_checkpoint, read_constants
        from runtime.agent.executable import device_array, load_program
        from runtime.agent.samples import SampleFile
        from runtime.artifact import load_data_key, load_public_key, open_artifact
        from runtime.coordinator.plan import RunPlan

        folder = Path(run)
        self._plan: RunPlan = RunPlan.read(folder)
        artifact = open_artifact(
            folder / self._plan.artifact,
            trusted_signer=load_public_key(folder / self._plan.signer_file),
            key=load_data_key(Path(self._plan.key_file or "")),
        )
        payload = artifact.target_payload(self._plan.target)
        self._blocks = payload.blocks
        self._grad: LoadedProgram = load_program(payload.programs["grad"])
        self._apply: LoadedProgram = load_program(payload.programs["apply"])
        constants = read_constants(folder / "constants.safetensors")
        self._constants = [
            device_array(constants[spec.name])
            for spec in payload.programs["grad"].inputs
            if spec.role in {"frozen", "buffer"}
        ]
        self._batches = self._read_batches(SampleFile.open(folder / "data"))
        info = latest_checkpoint(folder / "checkpoints", self._plan.job_digest)
        if info is None:
            raise FileNotFoundError(f"{run}: no checkpoint")
        state = load_checkpoint(info)
        names = [name for name, *_ in self._blocks.rows]
        groups = (state.params, state.moment1, state.moment2)
        self._state = [device_array(group[name]) for group in groups for name in names]
        self._prepare_scale()
        return {"parameters": sum(array.size for array in state.params.values())}

    def _read_batches(self, samples: Any) -> list[list[np.ndarray]]:
        from runtime.agent.sampler import sample_indices, shard_key

        keys = [spec.name for spec in self._grad.program.inputs if spec.role == "batch"]
        batches = []
        for shard in range(self._plan.micro_shards):
            indices = sample_indices(
                seed=self._plan.seed,
                count=samples.count,
                step=0,
                shard=shard,
                micro_shards=self._plan.micro_shards,
                micro_batch=self._plan.micro_batch,
            )
            batch = samples.batch(indices)
            key = shard_key(self._plan.seed, 0, shard)
            batches.append([*(batch[name] for name in keys), key])
        return batches

    def _prepare_scale(self) -> None:
        from runtime.agent import scaling
        from runtime.agent.executable import device_array, host_view
        from runtime.artifact.program import EMPTY

        blocks = self._blocks
        size, count = blocks.block_size, len(blocks.rows)
        self._zeros = [device_array(np.zeros((n, size), np.int32)) for *_, n in blocks.rows]
        self._empty = device_array(np.full(blocks.n_blocks, EMPTY, np.int32))
        self._units: list[Any] = device_units(np.zeros(blocks.n_blocks, np.int32), blocks)
        maxima = np.array(host_view(self._shard(0, self._zeros, self._empty)[count]))
        units = scaling.unit_exponents(
            scaling.first_exponents(maxima, blocks.rows),
            micro_shards=self._plan.micro_shards,
            headroom=self._plan.headroom,
        )
        self._units = device_units(units, blocks)

    def _shard(self, shard: int, sums: list[Any], maxima: Any) -> list[Any]:
        count = len(self._blocks.rows)
        return self._grad.run(
            [
                *self._state[:count],
                *self._constants,
                *self._batches[shard],
                *self._units,
                *sums,
                maxima,
            ]
        )

    def run(self, steps: int) -> list[float]:
        """Compute some steps; give the seconds of each."""
        return [self._step() for _ in range(steps)]

    def _step(self) -> float:
        from runtime.agent.executable import host_view
        from runtime.agent.schedule import step_scalars

        started = time.perf_counter()
        count = len(self._blocks.rows)
        sums, maxima, tokens = self._zeros, self._empty, 0
        for shard in range(self._plan.micro_shards):
            outputs = self._shard(shard, sums, maxima)
            sums, maxima = outputs[:count], outputs[count]
            tokens += int(host_view(outputs[count + 2]))
        scalars = step_scalars(self._plan, 0)
        outputs = self._apply.run(
            [*self._state, *sums, *self._units, scalars, np.asarray(tokens, np.int32)]
        )
        self._state = outputs[: 3 * count]
        return time.perf_counter() - started


if __name__ == "__main__":
    loop = BareLoop()
    serve({"load": loop.load, "run": loop.run})
