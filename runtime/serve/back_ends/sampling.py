"""Per-request sampling for transformers' continuous batching; imports torch, so only the child does.

transformers 5.24 takes temperature, top-p and greedy-or-not from the *first* request of a process
and applies them to every later one; seeds are process-wide. This module replaces its draw by one
that reads each request's own values, by the Gumbel-max trick: with independent Gumbel noise g,
`argmax(log p + g)` is a draw from p (Gumbel 1954; Maddison et al. 2014, section 2). So the engine
only ever takes an argmax, greedy requests simply get no noise, and the noise is a hash of (seed,
count of draws, token id): a seeded answer does not depend on what else is in the batch.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from typing import TYPE_CHECKING

import torch
from transformers import LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
    ContinuousBatchingTemperatureLogitsWarper,
    ContinuousBatchingTopKLogitsWarper,
    ContinuousBatchingTopPLogitsWarper,
)
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

if TYPE_CHECKING:
    from transformers.generation.continuous_batching.requests import FutureRequestState

KEEP_ALL = 2**31 - 1
"""A top-k that keeps the whole vocabulary."""

_MASK = 0xFFFFFFFF


class Draws:
    """The keys of one request's draws: key i is a hash of (seed, i), never 0.

    Args:
        seed: any integer; None takes a fresh one from the system.
    """

    def __init__(self, seed: int | None) -> None:
        material = os.urandom(16) if seed is None else str(seed).encode()
        self._hash = hashlib.blake2b(material, digest_size=4, person=b"luma-draw")
        self._count = itertools.count()

    def next_key(self) -> int:
        """Give the next draw's key as a signed 32-bit integer; 0 is reserved for greedy rows."""
        h = self._hash.copy()
        h.update(b"/%d" % next(self._count))
        return int.from_bytes(h.digest(), "little", signed=True) or 1


def gumbel_noise(keys: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Give Gumbel(0, 1) noise for each row from its key, the same on every device.

    Args:
        keys: [rows], int32.
        vocab_size: the count of columns.

    Returns:
        [rows, vocab_size], float32. Two rounds of MurmurHash3's 32-bit finalizer over (key, column).
    """
    columns = torch.arange(vocab_size, dtype=torch.int64, device=keys.device)
    x = (keys.to(torch.int64) & _MASK).unsqueeze(-1) ^ (columns * 0x9E3779B1 & _MASK)
    x = _mix(_mix(x) + columns & _MASK)
    uniform = (x.to(torch.float64) + 0.5) / 2.0**32
    return -(-uniform.log()).log().to(torch.float32)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """MurmurHash3's fmix32 on int64 lanes; products wrap, their low 32 bits are right."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)


class _TopK(ContinuousBatchingTopKLogitsWarper):
    """transformers' per-request top-k, without its sort where no row of the batch asks for it."""

    def prepare_tensor_args(
        self, requests_with_new_token: list[FutureRequestState]
    ) -> torch.Tensor:
        args = super().prepare_tensor_args(requests_with_new_token)
        self._idle = bool((args == KEEP_ALL).all())
        return args

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        # Elsewhere the call is captured in a graph, which must not depend on this batch.
        if self._idle and scores.device.type == "cpu":
            return scores
        return super().__call__(scores, tensor_arg)


class _TopP(ContinuousBatchingTopPLogitsWarper):
    """transformers' per-request top-p, without its sort where no row of the batch asks for it."""

    def prepare_tensor_args(
        self, requests_with_new_token: list[FutureRequestState]
    ) -> torch.Tensor:
        args = super().prepare_tensor_args(requests_with_new_token)
        self._idle = bool((args.view(dtype=torch.float32) >= 1.0).all())
        return args

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        if self._idle and scores.device.type == "cpu":
            return scores
        return super().__call__(scores, tensor_arg)


class _GumbelDraw(ContinuousBatchingLogitsProcessor):
    """Adds the noise that turns the engine's argmax into a draw; rows with key 0 stay greedy."""

    # The base class annotates plain instance attributes.
    supported_kwargs: dict[str, type] = {"draws": Draws}  # noqa: RUF012
    ignored_kwargs: tuple[str, ...] = ()

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.fill_(0)

    def prepare_tensor_args(
        self, requests_with_new_token: list[FutureRequestState]
    ) -> torch.Tensor:
        draws = [r.state.logit_processor_kwargs.get("draws") for r in requests_with_new_token]
        keys = [0 if d is None else d.next_key() for d in draws]
        return torch.tensor(keys, dtype=torch.int32, device="cpu")

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        keys = tensor_arg[: scores.size(0)]
        noisy = scores + gumbel_noise(keys, scores.size(-1))
        return torch.where((keys == 0).unsqueeze(-1), scores, noisy)


def per_request_processors() -> ContinuousBatchingLogitsProcessorList:
    """Give the logits processors that read each request's own sampling values."""
    processors = LogitsProcessorList()
    processors.extend(
        [
            ContinuousBatchingTemperatureLogitsWarper(TemperatureLogitsWarper(1.0)),
            _TopK(TopKLogitsWarper(KEEP_ALL)),
            _TopP(TopPLogitsWarper(1.0)),
            _GumbelDraw(),
        ]
    )
    chain = ContinuousBatchingLogitsProcessorList(processors)
    # The engine reserves one row of its argument tensor for each; the constructor counts only
    # those that it converted itself.
    chain.tensors_required = len(processors)
    return chain


def processor_arguments(
    *, temperature: float, top_p: float, top_k: int, seed: int | None
) -> dict[str, float | int | Draws]:
    """Give one request's arguments for `per_request_processors`; temperature 0 is greedy."""
    if temperature == 0:
        return {}
    return {
        "temperature": float(temperature),
        "top_p": float(top_p),
        "top_k": top_k if top_k > 0 else KEEP_ALL,
        "draws": Draws(seed),
    }
