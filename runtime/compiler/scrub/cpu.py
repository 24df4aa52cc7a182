"""CPU executables.

XLA writes the optimised HLO module into a CPU executable, because loading builds some steps from
it: with each instruction's metadata (the op's name, the module's path in the model), the source
files and stack frames of the trace, the traced function's name, and compile options that hold local
paths. Nothing of that is read at load. It is dropped or renamed by rewriting the protocol buffers
around it; all other bytes stay as they are.
"""

from __future__ import annotations

from runtime.artifact.protobuf import NotAMessageError
from runtime.artifact.xla_forms import (
    COMPUTATION,
    EXECUTABLE,
    MODULE,
    MODULE_WITH_CONFIG,
    divide,
    field_value,
    unite,
)
from runtime.artifact.xla_schema import rewrite
from runtime.compiler.scrub.changes import Scrubber
from runtime.spec import CompileError

__all__ = ["scrub_cpu_executable"]


def scrub_cpu_executable(executable: bytes) -> bytes:
    """Drop metadata, stack frames and local paths from a CPU executable, and rename what is named.

    Raises:
        CompileError: the bytes have another form than jaxlib 0.10.2's.
    """
    try:
        header, body = divide(executable)
        field_value(body, EXECUTABLE, MODULE_WITH_CONFIG, MODULE, COMPUTATION)
        change = Scrubber()
        return unite(
            rewrite(header, "IfrtHeader", change), rewrite(body, "ExecutableAndOptions", change)
        )
    except NotAMessageError as error:
        raise CompileError(
            f"the executable cannot be scrubbed: {error}; its form is not jaxlib 0.10.2's"
        ) from error
