"""What an island computes: micro-shards, their integer sums, and the optimizer step.

The trainer binds the artifact's programs to arrays by role and name and runs them. It holds the
state on the island's chips, the sums of the step in flight, and the sums before the newest shard,
so that this one shard can be taken out again when another island's result for it counts. It knows
no other island: what is summed over islands goes out and comes back through `Totals`. Nor does it
know the chips: a loader brings arrays there, each as the program needs it, and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from runtime.agent import scaling
from runtime.agent.host_memory import aligned_zeros
from runtime.agent.loaders import DeviceArray, Loaded, Loader
from runtime.agent.sampler import sample_indices, shard_key
from runtime.agent.samples import SampleFile
from runtime.agent.schedule import step_scalars
from runtime.agent.state import Arrays, TrainState, little_endian_bytes
from runtime.agent.transfer import HandedState
from runtime.artifact.program import EMPTY, BlockTable, TargetPayload
from runtime.coordinator.plan import RunPlan
from runtime.coordinator.wire import LOSS_UNIT
from runtime.spec.errors import CheckpointError

COUNTERS = ("loss", "tokens", "overflow", "nonfinite", "vanished")


@dataclass(slots=True)
class Sums:
    """Integer sums over some micro-shards of one step.

    Attributes:
        grads: int32 [blocks, block size] of each parameter, in name order.
        maxima: int32 [n_blocks], the largest exponent of each block.
        counters: int64 [5]: loss (in `LOSS_UNIT`), tokens, overflow, nonfinite, vanished.
    """

    grads: list[DeviceArray]
    maxima: DeviceArray
    counters: NDArray[np.int64]


@dataclass(slots=True)
class Totals:
    """Sums over all islands, on the host.

    Attributes:
        grads: int32 [all blocks * block size], parameters in name order; None on a lone island,
            whose own sums are the totals.
        maxima: int32 [n_blocks].
        counters: as in `Sums`.
    """

    grads: NDArray[np.int32] | None
    maxima: NDArray[np.int32]
    counters: NDArray[np.int64]


class Trainer:
    """The numeric part of an island.

    Args:
        plan: the run's plan.
        payload: the target's payload out of a verified artifact.
        loader: of the payload's form, for this node's chips.
        samples: the prepared data.
        constants: frozen parameters and buffers by name.
        threads: threads for hashing; the programs' own are fixed by the process's environment.

    Raises:
        ArtifactError: the payload's programs do not load on this host.
        CheckpointError: a constant that the program takes is missing.
    """

    def __init__(
        self,
        plan: RunPlan,
        payload: TargetPayload,
        *,
        loader: Loader,
        samples: SampleFile,
        constants: Arrays,
        threads: int,
    ) -> None:
        self._plan = plan
        self._blocks: BlockTable = payload.blocks
        self._samples = samples
        self._threads = threads
        self._loader = loader
        self._grad = loader.load(payload.programs["grad"])
        self._apply = loader.load(payload.programs["apply"])
        self._constants = [
            self._grad.device_array(index, _constant(constants, spec.name))
            for index, spec in enumerate(self._grad.program.inputs)
            if spec.role in {"frozen", "buffer"}
        ]
        self.chip_class = loader.chip_class(payload)
        """What must be equal on two islands for equal bits."""
        self._names = [row[0] for row in payload.blocks.rows]
        self._n_blocks = sum(row[2] for row in payload.blocks.rows)
        self._batch_keys = _names(self._grad, "batch")
        self._zeros = self._zero_sums()
        self._sums = self._zeros
        self._before: Sums | None = None
        self._candidate: Sums | None = None
        self._totals_buffer: NDArray[np.int32] | None = None

    # ------------------------------------------------------------------- state

    def set_state(self, handed: HandedState) -> None:
        """Take a state over, with the scale of the step in flight; sums start at zero."""
        state = handed.state
        self.step = state.step
        self._params = self._to_device("param", state.params)
        self._moment1 = self._to_device("moment1", state.moment1)
        self._moment2 = self._to_device("moment2", state.moment2)
        self._largest = state.block_exponents.astype(np.int32)
        self._step_largest = handed.step_exponents.astype(np.int32)
        self.clear(base=False)

    def load_state(self, state: TrainState) -> None:
        """Take over a state from a checkpoint; a fresh job's first scale is measured here."""
        fresh = not len(state.block_exponents) or (state.block_exponents == EMPTY).all()
        exponents = state.block_exponents if not fresh else np.zeros(self._n_blocks, np.int32)
        self.set_state(HandedState(state=state, attempt=0, step_exponents=exponents))
        self._largest = exponents
        if fresh:
            self._measure_first_scale()

    def _measure_first_scale(self) -> None:
        """Find the first step's scale from its first micro-shard: the same on every island."""
        self.run_shard(0, 0)
        candidate, self._candidate = self._candidate, None
        assert candidate is not None  # noqa: S101 - run_shard has just set it
        maxima = np.array(self._loader.host_view(candidate.maxima))
        self._largest = scaling.first_exponents(maxima, self._blocks.rows)
        self.clear(base=True)

    def state(self) -> TrainState:
        """Give the state as views of device memory; valid until the next `apply`."""
        return TrainState(
            step=self.step,
            params=self._to_host(self._params),
            moment1=self._to_host(self._moment1),
            moment2=self._to_host(self._moment2),
            block_exponents=self._largest,
        )

    def handed_state(self, attempt: int) -> HandedState:
        """Give the state and the scale in force, for an island that joins."""
        return HandedState(state=self.state(), attempt=attempt, step_exponents=self._step_largest)

    # ------------------------------------------------------------------ shards

    def run_shard(self, step: int, shard: int) -> None:
        """Compute one micro-shard on top of the sums; `fold` makes the result count."""
        self._before = None  # its memory is needed for the result
        plan = self._plan
        indices = sample_indices(
            seed=plan.seed,
            count=self._samples.count,
            step=step,
            shard=shard,
            micro_shards=plan.micro_shards,
            micro_batch=plan.micro_batch,
        )
        batch = self._samples.batch(indices)
        outputs = self._grad.run(
            [
                *self._params,
                *self._constants,
                *(batch[key] for key in self._batch_keys),
                shard_key(plan.seed, step, shard),
                *self._units,
                *self._sums.grads,
                self._sums.maxima,
            ]
        )
        self._candidate = self._after(outputs)

    def _after(self, outputs: list[DeviceArray]) -> Sums:
        count = len(self._names)
        loss, tokens, overflow, nonfinite, vanished = (
            float(self._loader.host_view(value)) for value in outputs[count + 1 :]
        )
        finite = np.isfinite(loss)
        one = np.array(
            [round(loss / LOSS_UNIT) if finite else 0, tokens, overflow, nonfinite, vanished],
            np.int64,
        )
        if not finite:
            one[COUNTERS.index("nonfinite")] += 1
        return Sums(outputs[:count], outputs[count], self._sums.counters + one)

    def fold(self) -> None:
        """Let the newest shard's result count."""
        self._before, self._sums = self._sums, _present(self._candidate)
        self._candidate = None

    def discard(self) -> None:
        """Forget the newest shard's result."""
        self._candidate = None

    def drop_last(self) -> None:
        """Take the shard that was folded last out of the sums again."""
        self._sums, self._before = _present(self._before), None

    def clear(self, *, base: bool) -> None:
        """Start the step's sums at zero; with `base`, also go back to the committed scale."""
        if base:
            self._step_largest = self._largest
        units = scaling.unit_exponents(
            self._step_largest,
            micro_shards=self._plan.micro_shards,
            headroom=self._plan.headroom,
        )
        first = _first(self._grad, "exponents")
        self._units = [
            self._grad.device_array(first + i, units[start : start + count])
            for i, (_, start, count) in enumerate(self._blocks.rows)
        ]
        self._sums, self._before, self._candidate = self._zeros, None, None

    # -------------------------------------------------------------- reduction

    def own_totals(self) -> Totals:
        """Give this island's sums as they are, for a lone island."""
        return Totals(
            None, np.array(self._loader.host_view(self._sums.maxima)), self._sums.counters.copy()
        )

    def totals_to_reduce(self) -> Totals:
        """Copy this island's sums into the reused exchange buffer."""
        self._before = None  # which shards count is settled
        if self._totals_buffer is None:
            self._totals_buffer = self._block_buffer()
        for view, source in zip(self._rows(self._totals_buffer), self._sums.grads, strict=True):
            np.copyto(view, self._loader.host_view(source))
        own = self.own_totals()
        return Totals(self._totals_buffer, own.maxima, own.counters)

    def hash_totals(self, totals: Totals) -> str:
        """Give the BLAKE3 of a step's sum: gradients, maxima, counters, little-endian, hex."""
        hasher = blake3(max_threads=self._threads)
        if totals.grads is None:
            for grad in self._sums.grads:
                hasher.update(little_endian_bytes(self._loader.host_view(grad)))
        else:
            hasher.update(little_endian_bytes(totals.grads))
        hasher.update(little_endian_bytes(totals.maxima))
        hasher.update(little_endian_bytes(totals.counters))
        return hasher.hexdigest()

    # ------------------------------------------------------------------- apply

    def apply(self, totals: Totals) -> float:
        """Apply one committed step; give the gradient's norm before clipping."""
        grads: list[DeviceArray] = self._sums.grads
        if totals.grads is not None:
            grads = self._lent(self._apply, totals.grads)
        tokens = np.asarray(totals.counters[COUNTERS.index("tokens")], np.int32)
        outputs = self._apply.run(
            [
                *self._params,
                *self._moment1,
                *self._moment2,
                *grads,
                *self._units,
                step_scalars(self._plan, self.step),
                tokens,
            ]
        )
        count = len(self._names)
        self._params = outputs[:count]
        self._moment1 = outputs[count : 2 * count]
        self._moment2 = outputs[2 * count : 3 * count]
        self._largest = scaling.advance(
            self._step_largest, totals.maxima, self._blocks.rows, step=self.step
        )
        self.step += 1
        self.clear(base=True)
        return float(self._loader.host_view(outputs[3 * count]))

    def raise_scale(self, totals: Totals) -> None:
        """Redo the step with a scale that holds what the step itself showed."""
        self._step_largest = scaling.raise_to(self._step_largest, totals.maxima)
        self.clear(base=False)

    # ----------------------------------------------------------------- helpers

    def _rows(self, flat: NDArray[np.int32]) -> Iterator[NDArray[np.int32]]:
        size = self._blocks.block_size
        for _, first, count in self._blocks.rows:
            yield flat[first * size : (first + count) * size].reshape(count, size)

    def _block_buffer(self) -> NDArray[np.int32]:
        return aligned_zeros(self._n_blocks * self._blocks.block_size, np.int32)

    def _zero_sums(self) -> Sums:
        grads = self._lent(self._grad, self._block_buffer())
        maxima = self._grad.device_array(
            _first(self._grad, "maxima"), np.full(self._n_blocks, EMPTY, np.int32)
        )
        return Sums(grads, maxima, np.zeros(len(COUNTERS), np.int64))

    def _lent(self, program: Loaded, flat: NDArray[np.int32]) -> list[DeviceArray]:
        """Give gradient sums that lie in host memory to a program that reads them."""
        first = _first(program, "grad_sum")
        return [program.lent_array(first + i, view) for i, view in enumerate(self._rows(flat))]

    def _to_device(self, role: str, arrays: Arrays) -> list[DeviceArray]:
        first = _first(self._apply, role)
        return [
            self._apply.device_array(first + i, arrays[name]) for i, name in enumerate(self._names)
        ]

    def _to_host(self, arrays: list[DeviceArray]) -> Arrays:
        return {
            name: self._loader.host_view(a) for name, a in zip(self._names, arrays, strict=True)
        }


def _names(program: Loaded, role: str) -> list[str]:
    return [spec.name for spec in program.program.inputs if spec.role == role]


def _first(program: Loaded, role: str) -> int:
    """Give the first input with a role; those of one role stand together, in name order."""
    return next(i for i, spec in enumerate(program.program.inputs) if spec.role == role)


def _constant(constants: Arrays, name: str) -> np.ndarray:
    try:
        return constants[name]
    except KeyError:
        raise CheckpointError(
            f"constants.safetensors has no array '{name}', which the artifact's program takes"
        ) from None


def _present(sums: Sums | None) -> Sums:
    if sums is None:
        raise RuntimeError("no shard has been computed, or its memory was given back")
    return sums
