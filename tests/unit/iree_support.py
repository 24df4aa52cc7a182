"""What tests of the AMD path share: whether IREE is here, and the flags of its CPU code generator."""

from __future__ import annotations

import importlib.util

import pytest

from runtime.compiler.targets import Target

CPU_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=x86-64-v3",
)
"""In place of a chip's: all else of a compile stays the same."""


def cpu_flags(target: Target) -> tuple[str, ...]:
    """Give the flags of IREE's CPU code generator for a target's programs."""
    return CPU_FLAGS


def _installed(package: str) -> bool:
    """Say whether a package is there; a missing parent package means no."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


needs_compiler = pytest.mark.skipif(
    not _installed("iree.compiler"), reason="the extra 'amd' is absent: no iree-base-compiler"
)
needs_iree = pytest.mark.skipif(
    not (_installed("iree.compiler") and _installed("iree.runtime")),
    reason="the extra 'amd' is absent: no iree-base-compiler and iree-base-runtime",
)
