"""What class of CPU a serialized CPU executable was compiled for, read from its own bytes.

XLA writes the CPU's name and its whole feature list (LLVM's names, `+` for one that the code may
use, `-` for one that it may not) into a CPU payload. Both belong to the manifest: a host that
lacks a feature would die of an illegal instruction, and another class gives other bits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runtime.spec.errors import ArtifactError

__all__ = ["XLA_ISA_FLAG", "CpuClass", "cpu_class", "missing_features", "xla_cpu_flags"]

XLA_ISA_FLAG = "--xla_cpu_max_isa=AVX2"
"""Pins the instruction set of CPU programs, when they are compiled and when they run: every x86
server of the last ten years has AVX2."""

_PATIENCE_S = 3600

_FEATURES = re.compile(rb"[+-][a-z0-9][a-z0-9._-]*(?:,[+-][a-z0-9][a-z0-9._-]*){7,}")
_NAME_BEFORE = re.compile(rb"([a-z][a-z0-9._-]{2,31})[^a-z0-9._-]{1,8}$")
_SEARCH_BACK = 64  # the name is the string field just before the feature list

_NOT_IN_CODE = frozenset(
    {
        # Instructions of operating systems, random numbers and caches: code that XLA generates
        # never holds them, and hosts of one class differ in them (a hypervisor hides some).
        "clflushopt", "clwb", "clzero", "cldemote", "fsgsbase", "fxsr", "invpcid", "mwaitx",
        "pku", "prfchw", "ptwrite", "rdpid", "rdpru", "rdrnd", "rdseed", "serialize", "sgx",
        "shstk", "tsxldtrk", "uintr", "waitpkg", "wbnoinvd", "xsave", "xsavec", "xsaveopt",
        "xsaves", "hreset", "rtm",
    }
)  # fmt: skip

_TUNING = "prefer-"  # how LLVM should choose among instructions, not what a CPU can do


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuClass:
    """A CPU that code was compiled for.

    Attributes:
        name: LLVM's name of the CPU, such as "haswell" or "znver3".
        features: LLVM's names of the features that the code may use, sorted.
    """

    name: str
    features: tuple[str, ...]


def xla_cpu_flags(chips: int) -> str:
    """Give XLA_FLAGS of a process that compiles or runs CPU programs.

    Args:
        chips: host devices that it has; they stand for the chips of an island.
    """
    if chips == 1:
        return XLA_ISA_FLAG
    # Host devices live and die together, so a late one is only slow: on a busy host, or stopped
    # with its whole process. By default XLA ends the process after 40 s of waiting.
    patience = f"--xla_cpu_collective_call_terminate_timeout_seconds={_PATIENCE_S}"
    return f"{XLA_ISA_FLAG} --xla_force_host_platform_device_count={chips} {patience}"


def cpu_class(executable: bytes) -> CpuClass:
    """Read the CPU's name and features out of a serialized CPU executable.

    Raises:
        ArtifactError: the bytes name no CPU, or several that differ.
    """
    found = set()
    for match in _FEATURES.finditer(executable):
        head = executable[max(0, match.start() - _SEARCH_BACK) : match.start()]
        name = _NAME_BEFORE.search(head)
        items = match.group().decode("ascii").split(",")
        used = tuple(sorted(item[1:] for item in items if item[0] == "+"))
        found.add(CpuClass(name=name[1].decode("ascii") if name else "", features=used))
    if len(found) != 1:
        message = f"cpu executable: its bytes name {len(found)} CPU classes; expected exactly one"
        raise ArtifactError(message, remedy="compile it again with `luma compile`")
    return found.pop()


def missing_features(needed: tuple[str, ...], host: tuple[str, ...]) -> tuple[str, ...]:
    """Give the needed features that a host lacks, sorted, leaving out those that no code uses."""
    lacking = set(needed) - set(host) - _NOT_IN_CODE
    return tuple(sorted(name for name in lacking if not name.startswith(_TUNING)))
