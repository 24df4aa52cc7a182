"""What a target is, and what a family of targets must be able to do.

A *target* is what a program is compiled for, such as `cuda-sm90` or `cuda-sm90x8-tp4`: chips of one
kind, N of them joined to an island, in tensor-parallel groups of M. A *back end* is the compiler of one family, in one module of
this package; `runtime.compiler.targets` holds the table of them. Importing a back end's module
loads no compiler: that happens in `compile`, which runs in a process of its own, started with
`Target.environment`, because flags and platform choice are process-wide in XLA.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from runtime.spec import CompileError

if TYPE_CHECKING:
    from runtime.artifact.program import Program
    from runtime.compiler.programs import FlatProgram

Report = Callable[[str, float], None]
"""Takes a finished stage ("lower" or "compile") and its seconds."""

COMMON_ENVIRONMENT: Mapping[str, str] = {
    "JAX_PLATFORMS": "cpu",  # no target needs its device; nothing may look for one
    "JAX_ENABLE_COMPILATION_CACHE": "0",  # jax's own cache would hold unsealed programs
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
"""Variables of every compiling process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing to compile for.

    Attributes:
        name: as written in `compile.targets`, such as "cuda-sm90x8".
        family: the back end that compiles for it: "cpu", "cuda", "tpu", "rocm" or "neuron".
        chip: the name for one chip, such as "cuda-sm90".
        chips: chips of the island that one program covers.
        tensor_parallel: chips of a tensor-parallel group; it divides `chips`.
        environment: variables that the compiling process must be started with.
        topology: the family's name of the chips and how they are joined; "" where it has none.
        description: the family's own description of one chip; "" where it has none.
    """

    name: str
    family: str
    chip: str
    chips: int = 1
    tensor_parallel: int = 1
    environment: Mapping[str, str] = field(default_factory=lambda: dict(COMMON_ENVIRONMENT))
    topology: str = ""
    description: str = ""

    @property
    def lowering(self) -> str:
        """What lowerings are looked up for: the chip, or "FAMILY-CHIP" where its name lacks that.

        `@op(..., target=...)` takes the family or this name.
        """
        known = self.chip == self.family or self.chip.startswith(f"{self.family}-")
        return self.chip if known else f"{self.family}-{self.chip}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What a target's compiler needs and this machine lacks.

    Attributes:
        package: the package or program that is missing.
        remedy: how to install it.
    """

    package: str
    remedy: str

    def error(self, target: Target) -> CompileError:
        """Give the error that says so."""
        message = f"target '{target.name}': its compiler '{self.package}' is not installed"
        return CompileError(message, remedy=f"{self.remedy}, or drop the target")


class BackEnd(Protocol):
    """The compiler of one family of targets.

    Attributes:
        family: its name, which is also the `target=` of lowerings for all of the family.
    """

    @property
    def family(self) -> str:
        """The family's name."""

    def targets(self) -> tuple[Target, ...]:
        """Give the targets of one chip, in the order that messages list them."""

    def island(self, target: Target, chips: int) -> Target:
        """Give the target of several such chips that one program covers.

        Args:
            target: one of `targets`.
            chips: at least 2.

        Raises:
            CompileError: the family cannot join so many; the message says how many it can.
        """

    def missing(self, target: Target) -> Requirement | None:
        """Give what the target's compiler needs and this machine lacks, None where all is there."""

    def versions(self) -> dict[str, str]:
        """Give the installed packages whose versions decide the compiled bytes, "" if absent."""

    def compile(self, flat: FlatProgram, target: Target, report: Report) -> Program:
        """Compile a program, in the process that was started with the target's environment.

        Args:
            flat: the program.
            target: of this family; nothing of its compiler is missing.
            report: called after each stage.

        Raises:
            CompileError: the compiler refused the program.
            LoweringError: an op could not be lowered.
        """

    def scrub(self, program: Program) -> tuple[Program, bool]:
        """Take names, paths and kernel IR out of a program; give it, and whether it is clean."""


def missing_module(module: str, package: str, extra: str) -> Requirement | None:
    """Give the requirement of a compiler that comes as a Python module, None where it is there.

    Args:
        module: the module's full name; it is looked for, not imported.
        package: the distribution that holds it.
        extra: luma's extra that installs it.
    """
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # of a parent package
        found = None
    if found is not None:
        return None
    return Requirement(package=package, remedy=f"install luma's extra: pip install 'luma[{extra}]'")


def versions_of(*packages: str) -> dict[str, str]:
    """Give installed packages' versions, "" for an absent one."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


def no_island(target: Target, chips: int, allowed: str) -> CompileError:
    """Give the error for a number of chips that a family cannot join."""
    message = f"target '{target.name}x{chips}': {chips} chips cannot be joined; allowed: {allowed}"
    return CompileError(message, remedy=f"compile for one of these, or for '{target.name}'")
