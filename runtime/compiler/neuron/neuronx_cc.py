"""The call of `neuronx-cc`: an HLO module in, a NEFF out, and its failures as our errors.

Written by the vendor's command line reference, and never run on Neuron's compiler: the tests put a
program of that name in its place. Every flag that decides the result is given, also where it is the
default, because defaults change between releases.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from runtime.artifact.neff import read_header
from runtime.compiler.neuron.codes import compiler_error
from runtime.spec import ArtifactError, CompileError

__all__ = [
    "COMPILER",
    "TIMEOUT_S",
    "arguments",
    "compile_module",
    "compiler_path",
    "compiler_version",
]

COMPILER = "neuronx-cc"
TIMEOUT_S = 4 * 3600.0
"""A large training step can take hours; one that takes longer hangs."""

_HELP_TIMEOUT_S = 120.0
_MAX_VERSION = 200
_LOGICAL_CORES = {"trn1": 1, "inf2": 1, "trn2": 2, "trn3": 2}
"""Physical cores of a logical one: one on the first generation, where the flag allows nothing else
(NCC_EARG001); two on trn2, the documented default; trn3 as trn2 [memory, check]."""

_UNDOCUMENTED_TARGETS = frozenset({"trn3"})
"""Targets that the reference does not list: the compiler's own help must."""

_INTEGER_FLAGS = {"--native-int64": "disabled", "--implicit-integer-downcast": "none"}
"""New in the compiler of SDK 2.32. Programs have no 64-bit integers, and `rules` refuses the sums of
integers that an older compiler would take to float32 without a word: it can do without them."""


def compiler_path() -> str | None:
    """Give where the compiler is, or None.

    PyPI's package `neuronx-cc` is an empty placeholder: only the program itself counts.
    """
    return shutil.which(COMPILER)


def compiler_version() -> str:
    """Give what the compiler says of its version, "" where it is not there or says nothing."""
    compiler = compiler_path()
    if compiler is None:
        return ""
    with tempfile.TemporaryDirectory(prefix="luma-neuron-") as folder:
        code, printed = _run([compiler, "--version"], Path(folder), _HELP_TIMEOUT_S)
    return " ".join(printed.split())[:_MAX_VERSION] if code == 0 else ""


def arguments(module: Path, output: Path, log: Path, *, target: str, help_text: str) -> list[str]:
    """Give the compiler's arguments.

    Args:
        module: the HLO module's file.
        output: where the NEFF goes.
        log: where the compiler's log goes.
        target: "trn1", "trn2", "trn3" or "inf2".
        help_text: what `neuronx-cc compile --help` prints: says which flags there are.
    """
    flags = {
        "--framework": "XLA",
        "--target": target,
        "--model-type": "generic",
        "--auto-cast": "none",
        **{flag: value for flag, value in _INTEGER_FLAGS.items() if flag in help_text},
        "-O": "2",
        "-lnc": str(_LOGICAL_CORES[target]),
        "--logfile": str(log),
        "--output": str(output),
    }
    return ["compile", str(module), *(word for pair in flags.items() for word in pair)]


def compile_module(
    module: bytes, *, program: str, target: str, folder: Path, timeout_s: float = TIMEOUT_S
) -> bytes:
    """Compile an HLO module.

    Args:
        module: a serialized HloModuleProto whose ids fit 32 bits.
        program: its name in messages, such as "grad".
        target: "trn1", "trn2", "trn3" or "inf2".
        folder: an empty folder for the compiler's files.
        timeout_s: after which the compiler, and all that it started, is killed.

    Returns:
        The NEFF.

    Raises:
        CompileError: the compiler is not there, refused the module, hung, or wrote no NEFF.
    """
    compiler = compiler_path()
    if compiler is None:
        raise CompileError(f"target '{target}': its compiler '{COMPILER}' is not installed")
    source, output, log = folder / "module.hlo.pb", folder / "module.neff", folder / "log.txt"
    source.write_bytes(module)
    help_text = _run([compiler, "compile", "--help"], folder, _HELP_TIMEOUT_S)[1]
    if target in _UNDOCUMENTED_TARGETS and target not in help_text:
        message = (
            f"target '{target}': this neuronx-cc does not know it; its help names no '{target}'"
        )
        raise CompileError(message, remedy="install requirements/neuron-gen3.txt")
    words = arguments(source, output, log, target=target, help_text=help_text)
    code, printed = _run([compiler, *words], folder, timeout_s)
    if code is None:
        message = (
            f"program '{program}', target '{target}': neuronx-cc did not end in {timeout_s:g} s"
        )
        raise CompileError(f"{message} and was killed", remedy="use a smaller train.micro_batch")
    if code != 0:
        raise compiler_error(program, target, code, printed + "\n" + _text(log))
    return _neff(output, program, target)


def _neff(output: Path, program: str, target: str) -> bytes:
    """Give the written NEFF, after reading its header."""
    where = f"program '{program}', target '{target}'"
    if not output.is_file():
        raise CompileError(f"{where}: neuronx-cc ended well and wrote no NEFF")
    data = output.read_bytes()
    try:
        read_header(data)
    except ArtifactError as error:
        message = f"{where}: neuronx-cc wrote no whole NEFF: {error.message}"
        raise CompileError(message) from error
    return data


def _run(words: list[str], folder: Path, timeout_s: float) -> tuple[int | None, str]:
    """Run a command; give its exit code, or None where it was killed for its time, and its text."""
    try:
        child = subprocess.Popen(
            words,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise CompileError(f"{COMPILER} cannot start: {error.strerror}") from error
    try:
        printed, _ = child.communicate(timeout=timeout_s)
        return child.returncode, printed.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the compiler with everything that it started, and wait for it."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


def _text(path: Path) -> str:
    """Give a log's text, "" where there is none."""
    return path.read_text("utf-8", "replace") if path.is_file() else ""
