"""The compiling process: one package in, one target's payload out, nothing on disk.

    python -m runtime.compiler.worker --target cpu --micro-shards 4 --result-fd 5 --parent $$ < package

The package comes on standard input; progress and errors go to standard output, one JSON object a
line; the payload goes to the file descriptor `--result-fd`. The process ends when `--parent` is no
longer its parent, who sets the environment, since XLA reads its flags when it is first used (see
`runtime.compiler.targets`). Exit code 0 means that the payload was written whole; anything else
means that it must not be used.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from runtime.spec import LumaError

if TYPE_CHECKING:
    from runtime.artifact.program import Program, TargetPayload
    from runtime.compiler.graph import GraphPackage
    from runtime.compiler.programs import FlatProgram

Emit = Callable[[dict[str, object]], None]

_PARENT_POLL_S = 0.5
_STDOUT = threading.Lock()


def main(arguments: list[str] | None = None) -> int:
    """Run the worker; give its exit code."""
    options = _options(arguments)
    gc.disable()  # graphs and traces are large and live to the end; looking for cycles takes a tenth
    threading.Thread(target=_end_with, args=(options.parent,), daemon=True).start()
    try:
        payload = _work(sys.stdin.buffer.read(), options.target, options.micro_shards, _emit)
        with os.fdopen(options.result_fd, "wb") as result:
            result.write(payload)
    except LumaError as error:
        _emit(
            {
                "stage": "error",
                "kind": type(error).__name__,
                "message": error.message,
                "remedy": error.remedy,
            }
        )
        return error.exit_code
    return 0


def compile_payload(
    package: GraphPackage, *, target: str, micro_shards: int, emit: Emit
) -> TargetPayload:
    """Compile all programs of a package in this process.

    Args:
        package: the captured graphs.
        target: the target's name; the environment must already be the target's.
        micro_shards: M of the job.
        emit: takes progress: {"stage", "program", "seconds"}.

    Raises:
        CompileError: the package or a program cannot be compiled.
        LoweringError: an op has no lowering for the target.
    """
    # Imports of jax stay in here: whoever only reads the worker's options pays nothing.
    from runtime.artifact.cpu_class import CpuClass, cpu_class
    from runtime.artifact.program import TargetPayload
    from runtime.compiler.plain_forms import plain_forms
    from runtime.compiler.programs import block_table, build_programs
    from runtime.compiler.targets import back_end, find_target

    chosen = find_target(target)
    compiler = back_end(chosen)

    def compiled(flat: FlatProgram) -> tuple[Program, bool]:
        def report(stage: str, seconds: float) -> None:
            emit({"stage": stage, "program": flat.name, "seconds": round(seconds, 3)})

        return compiler.scrub(compiler.compile(flat, chosen, report))

    flats = build_programs(package, target=chosen.lowering, micro_shards=micro_shards)
    # At the same time: a compiler's work is mostly outside Python's lock, and partly on one core.
    with ThreadPoolExecutor(max_workers=len(flats)) as pool:
        done = dict(zip((flat.name for flat in flats), pool.map(compiled, flats), strict=True))
    programs: dict[str, Program] = {name: program for name, (program, _) in done.items()}
    clean = all(scrubbed for _, scrubbed in done.values())
    cpu = CpuClass(name="", features=())
    if chosen.family == "cpu":
        cpu = cpu_class(programs["grad"].executable)
    return TargetPayload(
        target=target,
        programs=programs,
        blocks=block_table(package),
        cpu_name=cpu.name,
        cpu_features=cpu.features,
        scrubbed=clean,
        plain_forms=plain_forms(package, chosen),
    )


def _work(data: bytes, target: str, micro_shards: int, emit: Emit) -> bytes:
    """Read the package, compile it, give the payload's bytes."""
    from runtime.compiler.graph import GraphPackage

    package = GraphPackage.from_bytes(data)
    payload = compile_payload(package, target=target, micro_shards=micro_shards, emit=emit)
    return payload.to_bytes()


def _end_with(parent: int) -> None:
    """End this process when its parent has gone: nobody is left to take the payload."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)


def _emit(event: dict[str, object]) -> None:
    """Write one event line, in one piece: programs report from threads of their own."""
    with _STDOUT:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def _options(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="runtime.compiler.worker", description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--micro-shards", required=True, type=int)
    parser.add_argument("--result-fd", required=True, type=int)
    parser.add_argument("--parent", required=True, type=int)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
