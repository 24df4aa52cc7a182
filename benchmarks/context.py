"""What one invocation of the benchmarks shares: where it works, how large, on how many threads."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.children import Child
from benchmarks.machine import compute_environment


@dataclass(kw_only=True, slots=True)
class Context:
    """One invocation.

    Attributes:
        work: folder for programs, runs and logs.
        quick: small sizes and few repetitions: to see that everything works, not to judge.
        threads: compute threads of each side.
        memo: what one benchmark measured on the way and another one reports.
    """

    work: Path
    quick: bool
    threads: int = field(default_factory=lambda: min(2, len(os.sched_getaffinity(0))))
    memo: dict[str, Any] = field(default_factory=dict)

    def pick(self, full: Any, quick: Any) -> Any:
        """Give `full`, or `quick` in a quick invocation."""
        return quick if self.quick else full

    def child(
        self,
        module: str,
        *,
        threads: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a side's process with its log in the work folder.

        Args:
            module: see `Child`.
            threads: compute threads. Default: the invocation's.
            environment: variables of this side alone.
        """
        everything = compute_environment(threads or self.threads) | dict(environment or {})
        return Child(module, everything, self.work / f"{module.rpartition('.')[2]}.log")

    def say(self, text: str) -> None:
        """Tell the reader on standard error what happens now."""
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)
