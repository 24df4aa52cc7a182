"""One program: rewritten as its target's form allows, then judged by the leak scan."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from runtime.artifact.leaks import SCRUBBED_KINDS, leaks_in_executable
from runtime.compiler.scrub.cpu import scrub_cpu_executable
from runtime.compiler.scrub.cuda import scrub_cuda_executable
from runtime.spec import CompileError

if TYPE_CHECKING:
    from runtime.artifact.program import Program

__all__ = ["scrub_program"]

_REWRITES = {"cpu": scrub_cpu_executable, "cuda": scrub_cuda_executable}


def scrub_program(program: Program, family: str) -> tuple[Program, bool]:
    """Give the program with its executable scrubbed, and whether the scan finds it clean.

    Args:
        program: a compiled program.
        family: the family of targets that it was compiled for.

    Returns:
        The program as it came, and False, where its family has no rewriter ("cpu" and "cuda" have)
        or the rewriter does not know its form: it can be used, and the manifest says what it is.
    """
    rewrite = _REWRITES.get(family)
    if rewrite is None:
        return program, False
    try:
        executable = rewrite(program.executable)
    except CompileError:
        return program, False
    found = leaks_in_executable(executable)
    clean = not any(kind in found for kind in SCRUBBED_KINDS)
    return dataclasses.replace(program, executable=executable), clean
