"""Run `iree-compile`: a StableHLO module goes in by a pipe, a VM module and its statistics come out.

The tool runs as a process of its own, so that a crash of its code generator is an error with a
name. Its linker needs files for a moment: they lie in a private folder, in memory where the host
has one, and are gone when it ends. Nothing that it could embed for debugging is asked for.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.spec import CompileError

__all__ = ["CompiledModule", "command_line", "iree_compile", "refusal"]

_MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 (a private folder is made in it)
_STATISTICS = "statistics.json"

_COMMON_FLAGS = (
    "--iree-input-type=stablehlo",
    "--iree-vm-bytecode-module-strip-source-map=true",
    "--iree-scheduling-dump-statistics-format=json",
)

# "loc: error: text"; locations are all unknown, since debug information is stripped before.
_ERROR = re.compile(r"^.*?\berror: (?P<text>.+)$", re.MULTILINE)
# The op that a message quotes, such as 'stablehlo.fft' or "chlo.lgamma".
_OP = re.compile(r"""['"](?P<op>(?:stablehlo|chlo|vhlo|iree_linalg_ext|linalg|sdy)\.[\w.]+)['"]""")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledModule:
    """What `iree-compile` gave.

    Attributes:
        data: the VM module ("vmfb").
        transient_bytes: what it allocates on the device in one call, results included; not what it
            allocates in a loop's turns, whose sizes it does not state.
        constant_bytes: constants that it holds on the device.
    """

    data: bytes
    transient_bytes: int
    constant_bytes: int


def iree_compile(module: bytes, device_flags: Sequence[str], *, what: str) -> CompiledModule:
    """Compile a StableHLO module.

    Args:
        module: MLIR, as text, bytecode or a portable artifact.
        device_flags: which device, and which chip, code is generated for.
        what: whose module it is, for errors, such as "program 'grad'".

    Raises:
        CompileError: the tool refused the module, crashed, or is not installed.
    """
    memory = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="luma-iree-", dir=memory) as name:
        folder = Path(name)
        try:
            done = subprocess.run(
                command_line(_tool(), device_flags, folder),
                input=module,
                capture_output=True,
                check=False,
                env={**os.environ, "TMPDIR": name},
            )
        except OSError as error:
            message = f"{what}: iree-compile cannot start: {error.strerror}"
            raise CompileError(message) from error
        if done.returncode != 0 or not done.stdout:
            raise refusal(what, done.returncode, done.stderr.decode("utf-8", "replace"))
        statistics = json.loads((folder / _STATISTICS).read_text(encoding="utf-8"))
    return _compiled(done.stdout, statistics)


def command_line(tool: str, device_flags: Sequence[str], folder: Path) -> list[str]:
    """Give the command: the module on standard input, the result on standard output.

    Args:
        tool: the path of `iree-compile`.
        device_flags: as for `iree_compile`.
        folder: where the statistics go.
    """
    statistics = f"--iree-scheduling-dump-statistics-file={folder / _STATISTICS}"
    return [tool, "-", "-o", "-", *_COMMON_FLAGS, statistics, *device_flags]


def refusal(what: str, code: int, log: str) -> CompileError:
    """Word a failed run of `iree-compile`.

    Args:
        what: as for `iree_compile`.
        code: its exit code, below 0 for a signal.
        log: what it wrote to standard error.
    """
    if code < 0:
        return CompileError(f"{what}: iree-compile was killed by signal {-code}")
    errors = [match["text"].strip() for match in _ERROR.finditer(log)]
    op = _OP.search(log)
    reason = errors[0][:300] if errors else f"it ended with exit code {code} and no message"
    if op is None:
        return CompileError(f"{what}: iree-compile failed: {reason}")
    message = f"{what}: iree-compile does not compile op '{op['op']}': {reason}"
    remedy = "give the op that it came from a lowering for target 'rocm' (docs/how-to/add-an-op.md)"
    return CompileError(message, remedy=remedy)


def _tool() -> str:
    """Find the tool in IREE's Python package."""
    binaries = importlib.import_module("iree.compiler.tools.binaries")
    return str(binaries.find_tool("iree-compile"))


def _compiled(
    data: bytes, statistics: Mapping[str, Mapping[str, Mapping[str, int]]]
) -> CompiledModule:
    """Take from the statistics what a plan needs."""
    whole = statistics["stream-aggregate"]
    return CompiledModule(
        data=data,
        transient_bytes=whole["execution"]["transient-memory-size"],
        constant_bytes=whole["global"]["constant-size"],
    )
