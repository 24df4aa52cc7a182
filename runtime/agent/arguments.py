"""What every loader asks of a program and of a call's arguments, whatever its own form is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.artifact.program import Program, ProgramForm
from runtime.spec import ArtifactError


def check_form(program: Program, form: ProgramForm) -> None:
    """Refuse a program of another loader.

    Raises:
        ArtifactError: its bytes have another form.
    """
    if program.form != form:
        message = f"program '{program.name}' has the form '{program.form}'; expected '{form}'"
        raise ArtifactError(message, remedy="load it with the loader of its form")


def check_arguments(program: Program, flat: Sequence[Any]) -> None:
    """Compare arguments with a program's signature.

    Args:
        program: its `inputs` say what is expected.
        flat: arrays of numpy or of a device; only `shape` and `dtype` are read.

    Raises:
        ArtifactError: their number, a shape or a dtype differs.
    """
    if len(flat) != len(program.inputs):
        message = f"program '{program.name}' takes {len(program.inputs)} arrays and got {len(flat)}"
        raise ArtifactError(message)
    for index, (spec, item) in enumerate(zip(program.inputs, flat, strict=True)):
        dtype = np.dtype(item.dtype)
        if tuple(item.shape) != spec.shape or dtype.name != spec.dtype:
            name = f"{spec.role} '{spec.name}'" if spec.name else spec.role
            message = (
                f"program '{program.name}': argument {index} ({name}) is "
                f"{dtype}{list(item.shape)}; expected {spec.dtype}{list(spec.shape)}"
            )
            raise ArtifactError(message)
