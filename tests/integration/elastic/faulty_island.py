"""An island's process as it is, but for one fault at one phase of one step.

    python faulty_island.py --fault kill@apply:5 -- --run DIR --name island-1

The real entry point runs; only the function at the phase is wrapped, so that the fault strikes at
an exact place that no clock could hit. Nothing of this is in the product.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def strike(kind: str) -> None:
    """Let the fault happen to this process, now."""
    os.kill(os.getpid(), FAULTS[kind])


def before(owner: Any, name: str, condition: Callable[..., bool], kind: str) -> None:
    """Wrap a function so that the fault strikes as it is called."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if condition(*args, **kwargs):
            strike(kind)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def after(owner: Any, name: str, condition: Callable[..., bool], kind: str) -> None:
    """Wrap a function so that the fault strikes when it has done its work."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if condition(*args, **kwargs):
            strike(kind)
        return result

    setattr(owner, name, wrapped)


def install(kind: str, phase: str, step: int) -> None:
    """Put the fault in its place."""
    from runtime.agent import checkpoint, process, ring, trainer

    at_step = {
        "before-shard": lambda: before(
            trainer.Trainer, "run_shard", lambda self, s, shard: s == step, kind
        ),
        "in-shard": lambda: _in_shard(kind, step),
        "after-shard": lambda: after(
            trainer.Trainer, "run_shard", lambda self, s, shard: s == step, kind
        ),
        "before-ring": lambda: before(
            process.IslandProcess, "_reduce", lambda self, r, tag, size: tag.step == step, kind
        ),
        "in-ring": lambda: before(
            ring.Ring,
            "_turn",
            lambda self, turn, *rest: self._tag.step == step and turn == 1,
            kind,
        ),
        "after-ring": lambda: after(
            process.IslandProcess, "_reduce", lambda self, r, tag, size: tag.step == step, kind
        ),
        "before-apply": lambda: before(
            trainer.Trainer, "apply", lambda self, totals: self.step == step, kind
        ),
        "after-apply": lambda: after(
            trainer.Trainer, "apply", lambda self, totals: self.step == step + 1, kind
        ),
        "before-checkpoint-rename": lambda: before(
            checkpoint, "_commit", lambda *args, **kwargs: True, kind
        ),
        "after-checkpoint-rename": lambda: after(
            checkpoint, "_commit", lambda *args, **kwargs: True, kind
        ),
    }
    at_step[phase]()


def _in_shard(kind: str, step: int) -> None:
    from runtime.agent import trainer

    original = trainer.Trainer.run_shard

    def wrapped(self: Any, s: int, shard: int) -> None:
        if s == step:
            threading.Timer(0.003, strike, (kind,)).start()
        original(self, s, shard)

    trainer.Trainer.run_shard = wrapped


def hold(step: int, gate: str) -> None:
    """Let no micro-shard of `step` or later begin until the file `gate` exists."""
    from runtime.agent import trainer

    original = trainer.Trainer.run_shard

    def wrapped(self: Any, s: int, shard: int) -> None:
        while s >= step and not Path(gate).exists():
            time.sleep(0.01)
        original(self, s, shard)

    trainer.Trainer.run_shard = wrapped


def slow_down(factor: float) -> None:
    """Make every micro-shard take `factor` times as long."""
    from runtime.agent import trainer

    original = trainer.Trainer.run_shard

    def wrapped(self: Any, step: int, shard: int) -> None:
        begin = time.perf_counter()
        original(self, step, shard)
        time.sleep((factor - 1) * (time.perf_counter() - begin) + 0.02 * factor)

    trainer.Trainer.run_shard = wrapped


def main() -> int:
    """Set the island's environment as its entry point does, add the fault, and start it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault")
    parser.add_argument("--slow", type=float)
    parser.add_argument("--hold", nargs=2, metavar=("STEP", "GATE"))
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    from runtime.agent.threads import island_environment

    os.environ.update(island_environment(1))
    if options.fault:
        kind, _, place = options.fault.partition("@")
        phase, _, step = place.partition(":")
        install(kind, phase, int(step or -1))
    if options.hold:
        hold(int(options.hold[0]), options.hold[1])
    if options.slow:
        slow_down(options.slow)
    sys.argv = ["runtime.agent", *[word for word in options.rest if word != "--"]]
    from runtime.agent import __main__ as entry

    return entry.main()


if __name__ == "__main__":
    code = main()
    os._exit(code)
