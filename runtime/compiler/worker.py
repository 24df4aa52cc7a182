"""The compiling process: one package in, one target's payload out, nothing on disk.

    python -m runtime.compiler.worker --target cpu --micro-shards 16 --result-fd 5 < package

The package comes on standard input; progress and errors go to standard output, one JSON object a
line; the payload goes to the file descriptor `--result-fd`. The parent sets the environment, since
XLA reads its flags when it is first used (see `runtime.compiler.targets`). Exit code 0 means that
the payload was written whole; anything else means that it must not be used.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from runtime.spec import LumaError

if TYPE_CHECKING:
    from runtime.artifact.program import TargetPayload
    from runtime.compiler.graph import GraphPackage

Emit = Callable[[dict[str, object]], None]

_PARENT_POLL_S = 0.5


def main(arguments: list[str] | None = None) -> int:
    """Run the worker; give its exit code."""
    options = _options(arguments)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
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
    programs, clean = {}, True
    for flat in build_programs(package, target=chosen.lowering, micro_shards=micro_shards):
        compiled = compiler.compile(
            flat,
            chosen,
            lambda stage, seconds, name=flat.name: emit(
                {"stage": stage, "program": name, "seconds": round(seconds, 3)}
            ),
        )
        programs[flat.name], scrubbed = compiler.scrub(compiled)
        clean = clean and scrubbed
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
    """Write one event line."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _options(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="runtime.compiler.worker", description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--micro-shards", required=True, type=int)
    parser.add_argument("--result-fd", required=True, type=int)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
