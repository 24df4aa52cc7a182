"""The option `--target`, which several commands have."""

from __future__ import annotations

from typing import Any

from runtime.spec.errors import CompileError, SpecError


def target_overrides(target: list[str] | None) -> dict[str, Any]:
    """Give the override for `--target`, "all" and commas resolved; {} where it is not given.

    Raises:
        SpecError: a target is unknown.
    """
    from runtime.compiler.targets import expand

    if target is None:
        return {}
    names = [name.strip() for text in target for name in text.split(",") if name.strip()]
    try:
        return {"compile.targets": list(expand(names))}
    except CompileError as error:
        raise SpecError(f"--target: {error.message}", remedy=error.remedy) from error
