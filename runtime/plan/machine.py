"""What this machine offers: cores, free memory, and a quick measurement of its arithmetic."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

_MATMUL_SIZE = 512
_COPY_BYTES = 64 << 20
_REPEATS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The host, as a plan sees it.

    Attributes:
        cpu: the processor's name.
        cores: cores that this process may use.
        memory_available_bytes: memory that can be taken now, a container's limit included.
        flops_per_core: fp32 matrix-product rate of one core, floating-point operations a second.
        bytes_per_second: rate of copying memory, bytes read and written a second.
    """

    cpu: str
    cores: int
    memory_available_bytes: int
    flops_per_core: float
    bytes_per_second: float


def measure_machine() -> Machine:
    """Look at this host; takes about 0.1 s."""
    return Machine(
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_available_bytes=available_memory(),
        flops_per_core=_matmul_rate(),
        bytes_per_second=_copy_rate(),
    )


def cpu_name() -> str:
    """Give the processor's name as the kernel states it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def available_memory() -> int:
    """Give the bytes of memory that can be taken now: the host's, or the container's rest."""
    available = psutil.virtual_memory().available
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        statistics = Path("/sys/fs/cgroup/memory.stat").read_text()
    except (OSError, ValueError):
        return available
    if limit == "max":
        return available
    # The page cache counts as used in a cgroup, and is given back under pressure.
    cache = sum(
        int(line.split()[1])
        for line in statistics.splitlines()
        if line.startswith(("inactive_file ", "active_file "))
    )
    return max(0, min(available, int(limit) - used + cache))


def _matmul_rate() -> float:
    """Measure one core: numpy's threads are counted by the processor time that they used."""
    left = np.ones((_MATMUL_SIZE, _MATMUL_SIZE), np.float32)
    right = np.ones((_MATMUL_SIZE, _MATMUL_SIZE), np.float32)
    left @ right
    rates = []
    for _ in range(_REPEATS):
        used = time.process_time()
        for _ in range(4):
            left @ right
        used = max(time.process_time() - used, 1e-6)
        rates.append(4 * 2.0 * _MATMUL_SIZE**3 / used)
    return max(rates)


def _copy_rate() -> float:
    source = np.ones(_COPY_BYTES // 4, np.float32)
    target = np.zeros_like(source)
    rates = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        np.copyto(target, source)
        rates.append(2.0 * _COPY_BYTES / max(time.perf_counter() - started, 1e-6))
    return max(rates)
