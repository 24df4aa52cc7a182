"""Build hook of `luma-constructs`: bundles the runtime into the wheel.

A wheel is built in a checkout of Luma, where the runtime lies beside this folder. The bundle goes
from a temporary file straight into the wheel: the checkout stays as it is, so that synth in it never
finds an old bundle.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RuntimeBundle(BuildHookInterface):
    """Adds `_assets/runtime.zip`."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the bundle; an editable install needs none, its folder lies in the checkout."""
        if version == "editable":
            return
        package = Path(self.root)
        bundler = _load(package / "_bundle.py")
        root = bundler.repository_of(package)
        if root is None:
            raise bundler.RuntimeSourceError(
                f"{package.parent}: no checkout of Luma; build luma-constructs inside of one"
            )
        self._folder = tempfile.TemporaryDirectory(prefix="luma-bundle-")
        made = Path(self._folder.name, "runtime.zip")
        made.write_bytes(bundler.bundle(root, package))
        build_data["force_include"][str(made)] = bundler.BUNDLED  # the prefix comes from `sources`

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the temporary file."""
        if version != "editable":
            self._folder.cleanup()


def _load(path: Path) -> ModuleType:
    """Load the bundler alone: the package needs aws-cdk-lib, which a build does not."""
    spec = importlib.util.spec_from_file_location("_luma_bundle", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
