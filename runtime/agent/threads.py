"""The environment that an island's process must be started with, so that its programs run right.

XLA reads its pool's size and flags once, when the process first uses it, so a launcher passes
them to the child process; setting them later has no effect. So this
module must not import jax.
"""

from __future__ import annotations

from runtime.artifact.cpu_class import XLA_ISA_FLAG
from runtime.spec import RunError

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


def island_environment(threads: int) -> dict[str, str]:
    """Give the variables that make a process compute with this many threads.

    The thread count changes how fast a program runs, never its bits (tested).

    Args:
        threads: compute threads of the island, at least 1.

    Raises:
        RunError: `threads` is below 1.
    """
    if threads < 1:
        raise RunError(
            f"resources.threads_per_island: {threads} is not allowed; expected 1 or more"
        )
    count = str(threads)
    return {
        "NPROC": count,  # the PJRT CPU client's pools
        "PJRT_NPROC": count,
        "OMP_NUM_THREADS": count,  # numpy's BLAS, if some code uses it
        "OPENBLAS_NUM_THREADS": count,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": XLA_ISA_FLAG,
        "TF_CPP_MIN_LOG_LEVEL": "2",  # no banner about CPU features per process
    }
