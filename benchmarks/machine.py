"""What a figure was measured on: processor, cores, memory, load and versions."""

from __future__ import annotations

import datetime as dt
import os
from importlib.metadata import version
from typing import Any

import psutil

from runtime.run.machine import machine_description, software_versions

BLAS_OVERRIDES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Some hosts set these for old BLAS builds; they slow a current numpy and are taken away here."""


def describe() -> dict[str, Any]:
    """Give the `machine`, `versions` and `date` that every entry carries."""
    return {
        "machine": {
            **machine_description(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "load_at_start": [round(value, 2) for value in os.getloadavg()],
        },
        "versions": {**software_versions(), "blake3": version("blake3")},
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def compute_environment(threads: int) -> dict[str, str]:
    """Give a child's whole environment: ours, one thread count for every library, no overrides.

    Args:
        threads: compute threads of the child.
    """
    inherited = {name: text for name, text in os.environ.items() if name not in BLAS_OVERRIDES}
    inherited.pop("XLA_FLAGS", None)
    count = str(threads)
    return inherited | {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
