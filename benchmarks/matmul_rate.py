"""A child that measures how many float32 operations a second this machine's matmul does."""

from __future__ import annotations

import time

from benchmarks.children import serve

_SIZE = 1536
_RUNS = 9


def measure(threads: int) -> float:
    """Give floating-point operations a second of torch's float32 product, the best of some runs.

    Args:
        threads: compute threads.
    """
    import torch

    torch.set_num_threads(threads)
    left, right = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
    out = torch.empty(_SIZE, _SIZE)
    times = []
    for _ in range(_RUNS):
        started = time.perf_counter()
        torch.mm(left, right, out=out)
        times.append(time.perf_counter() - started)
    return 2 * _SIZE**3 / min(times)


if __name__ == "__main__":
    serve({"measure": measure})
