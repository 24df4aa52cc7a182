"""The environment that an island's process must be started with, so that its programs run right.

XLA reads its platform, its pool's size and its flags once, when the process first uses it; setting
them later has no effect. So this module must not import jax.
"""

from __future__ import annotations

from runtime.artifact.cpu_class import xla_cpu_flags
from runtime.spec import RunError
from runtime.spec.target_name import TargetName

ALLOCATOR = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.arena_max=1"
    ":glibc.malloc.trim_threshold=0x7fffffffffffffff:glibc.malloc.hugetlb=1"
}
"""Variables that a process must be *started* with, so that its memory is kept between programs.

A program's temporary buffer is one allocation of hundreds of megabytes, made and freed at each run.
By default glibc gives such a buffer back to the system, which has to clear each page anew: 8 to 10 %
of a step at 135M (measured). Here the heap keeps it, in huge pages where the system grants them.
Another C library ignores these.
"""


_PLATFORMS = {"cuda": "cuda", "tpu": "tpu"}
"""What jax calls the chips of a family; all others leave jax to the host's CPU."""


def island_environment(threads: int, target: str = "cpu") -> dict[str, str]:
    """Give the variables that make a process run a target's programs with this many threads.

    The thread count changes how fast a program runs, never its bits (tested).

    Args:
        threads: compute threads of the island, at least 1.
        target: the target's name; an island of several CPU chips gets as many host devices.

    Raises:
        RunError: `threads` is below 1, or `target` is no target's name.
    """
    if threads < 1:
        raise RunError(
            f"resources.threads_per_island: {threads} is not allowed; expected 1 or more"
        )
    try:
        name = TargetName.parse(target)
    except ValueError as error:
        raise RunError(f"the run's target: {error}") from None
    count = str(threads)
    return {
        "NPROC": count,  # the PJRT CPU client's pools
        "PJRT_NPROC": count,
        "OMP_NUM_THREADS": count,  # numpy's BLAS, if some code uses it
        "OPENBLAS_NUM_THREADS": count,
        "JAX_PLATFORMS": _PLATFORMS.get(name.family, "cpu"),
        "XLA_FLAGS": xla_cpu_flags(name.chips if name.family == "cpu" else 1),
        "TF_CPP_MIN_LOG_LEVEL": "2",  # no banner about CPU features per process
    }
