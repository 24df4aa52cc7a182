"""Chips that are not here: a compiler's own description of them, as jax's devices."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import jax
from jax.experimental import topologies

__all__ = ["described_devices"]

# Programs are compiled in threads at the same time, and jax 0.10.2 loads a platform's plug-in
# without a lock: the second of two threads fails with "PJRT_Api already exists".
_LOADING = threading.Lock()


def described_devices(platform: str, name: str, /, **options: str) -> Sequence[jax.Device]:
    """Give the devices of a topology that exists as a description only.

    Args:
        platform: jax's name of the plug-in that compiles, such as "tpu".
        name: the plug-in's name of a topology; "" where `options` say it all.
        options: what else the plug-in takes.
    """
    with _LOADING:
        return topologies.get_topology_desc(name, platform, **options).devices
