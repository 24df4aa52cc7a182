"""A child that computes loss and gradients of a Hugging Face model in torch: eager or compiled."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.children import serve
from benchmarks.shapes import IGNORE, SEED, SHAPES, random_batch


class TorchStep:
    """A model with its batch, eager or behind `torch.compile`."""

    def load(self, shape_name: str, threads: int, *, compiled: bool) -> dict[str, float]:
        """Build the model and run it once.

        Returns:
            `seconds` of the first call (with `compiled` that is a cold compile, if the cache's
            folder is empty), and the `loss` of the batch.
        """
        import torch

        from benchmarks import models

        torch.set_num_threads(threads)
        torch.manual_seed(SEED)
        shape = SHAPES[shape_name]
        self._model = getattr(models, shape.builder)(**shape.arguments).train()
        self._model.config.use_cache = False
        self._batch = {
            name: torch.from_numpy(array).long() for name, array in random_batch(shape).items()
        }
        self._loss: Any = torch.compile(self._eager_loss) if compiled else self._eager_loss
        started = time.perf_counter()
        loss = self._step()
        return {"seconds": time.perf_counter() - started, "loss": loss / self._tokens()}

    def _eager_loss(self, input_ids: Any, labels: Any, position_ids: Any) -> Any:
        from torch.nn.functional import cross_entropy

        logits = self._model(input_ids=input_ids, position_ids=position_ids).logits
        return cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum"
        )

    def _step(self) -> float:
        self._model.zero_grad(set_to_none=True)
        loss = self._loss(**self._batch)
        loss.backward()
        return float(loss.detach())

    def _tokens(self) -> int:
        return int((self._batch["labels"] != IGNORE).sum())

    def run(self, count: int) -> list[float]:
        """Compute some steps; give the seconds of each."""
        times = []
        for _ in range(count):
            started = time.perf_counter()
            self._step()
            times.append(time.perf_counter() - started)
        return times


if __name__ == "__main__":
    step = TorchStep()
    serve({"load": step.load, "run": step.run, "processor_s": time.process_time})
