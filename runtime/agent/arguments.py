"""What every loader asks of a call's arguments, whatever form its programs have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.artifact.program import Program
from runtime.spec import ArtifactError


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
