"""The versions and the machine that a result belongs to, for the certificate and the captions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_PACKAGES = ("luma", "torch", "transformers", "jax", "jaxlib", "numpy", "safetensors")


def software_versions() -> dict[str, str]:
    """Give the versions of Python and of the packages that have a part in a result."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def machine_description() -> dict[str, Any]:
    """Give processor, cores and system of this machine."""
    from runtime.plan.machine import cpu_name

    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
    }
