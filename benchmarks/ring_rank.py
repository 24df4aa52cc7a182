"""A child that is one rank of an all-reduce, by our ring or by gloo."""

from __future__ import annotations

import os
import time

import numpy as np

from benchmarks.children import serve

_TOKEN = "benchmark"  # noqa: S105 - ranks of one machine, nothing to protect


class Rank:
    """One rank with its data."""

    def open(self, rank: int, size: int, meeting: str, size_bytes: int) -> int:
        """Meet the other ranks.

        Args:
            rank: this rank.
            size: how many there are.
            meeting: a file that does not exist yet, for gloo.
            size_bytes: bytes of the array to be reduced.

        Returns:
            The port that our ring listens on.
        """
        import torch
        import torch.distributed as dist

        from runtime.agent.peers import PeerServer

        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
        self._rank, self._size = rank, size
        self._source = np.arange(size_bytes // 4, dtype=np.int32) + rank
        self._array = np.empty_like(self._source)
        self._server = PeerServer(_TOKEN)
        return self._server.port

    def reduce(self, side: str, ports: list[int], number: int) -> float:
        """All-reduce once by one side; give the seconds from a common start.

        Raises:
            ValueError: the sum is wrong.
        """
        import torch.distributed as dist

        np.copyto(self._array, self._source)
        dist.barrier()
        started = time.perf_counter()
        if side == "luma":
            self._ring(ports, number)
        else:
            self._gloo()
        seconds = time.perf_counter() - started
        offset = self._size * (self._size - 1) // 2
        expected = (self._source - self._rank) * self._size + offset
        if not np.array_equal(self._array, expected):
            raise ValueError(f"{side}: the sum of {self._size} ranks is wrong")
        return seconds

    def _ring(self, ports: list[int], number: int) -> None:
        from runtime.agent.ring import Ring, RingTag

        ring = Ring(
            RingTag(epoch=1, step=number, attempt=0),
            me=str(self._rank),
            members=[(str(rank), "127.0.0.1", port) for rank, port in enumerate(ports)],
            server=self._server,
            token=_TOKEN,
        )
        ring.connect()
        try:
            ring.all_reduce(self._array, "sum")
        finally:
            ring.close()

    def _gloo(self) -> None:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.from_numpy(self._array))


if __name__ == "__main__":
    member = Rank()
    serve({"open": member.open, "reduce": member.reduce})
