"""The unit exponents of a step as the compiled programs take them: an array for each parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from runtime.artifact.program import BlockTable


def device_units(units: np.ndarray, blocks: BlockTable) -> list[Any]:
    """Cut the exponents of all blocks into the parameters' parts, on the device.

    Args:
        units: int32 [n_blocks].
        blocks: which blocks are a parameter's.
    """
    from runtime.agent.executable import device_array

    return [device_array(units[first : first + count]) for _, first, count in blocks.rows]
