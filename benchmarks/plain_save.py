"""A child that saves a whole training state with safetensors, blocking, and nothing more.

No hash, no fsync, no manifest: the fastest that a loop without background writing could do.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.children import serve


class PlainSave:
    """The state of a run's newest checkpoint in memory."""

    def load(self, run: str) -> dict[str, int]:
        """Read the state; give its `bytes`."""
        from runtime.agent.checkpoint import latest_checkpoint, load_checkpoint
        from runtime.coordinator.plan import RunPlan

        folder = Path(run)
        digest = RunPlan.read(folder).job_digest
        info = latest_checkpoint(folder / "checkpoints", digest)
        if info is None:
            raise FileNotFoundError(f"{run}: no checkpoint")
        # The first moments are zeros that take no memory yet; a trained state has real pages.
        self._arrays = {name: np.copy(array) for name, array in load_checkpoint(info).arrays()}
        return {"bytes": sum(array.nbytes for array in self._arrays.values())}

    def run(self, count: int, folder: str) -> list[float]:
        """Save some times; give the seconds of each."""
        from safetensors.numpy import save_file

        path = Path(folder) / "plain.safetensors"
        times = []
        for _ in range(count):
            path.unlink(missing_ok=True)
            started = time.perf_counter()
            save_file(self._arrays, path)
            times.append(time.perf_counter() - started)
        path.unlink()
        return times


if __name__ == "__main__":
    saver = PlainSave()
    serve({"load": saver.load, "run": saver.run})
