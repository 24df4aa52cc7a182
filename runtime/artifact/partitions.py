"""How the arrays of a program lie on the chips of an island: a mesh, and a cut for each array.

The chips form a mesh of one or two named axes: `fsdp`, along which the state is divided and each
part of the batch is computed (fully sharded data parallel), and `tensor`, along which one matrix
product is divided (tensor parallel). Chip i stands at the place that i has in row-major order, so
the chips of one tensor-parallel group are neighbours.

A *cut* says for each axis of the mesh which dimension of an array it divides into equal parts, None
where the chips along that axis hold the same. Both may divide one dimension: `tensor` cuts it, and
`fsdp` cuts each part again, so that gathering along `fsdp` gives a tensor-parallel chip its part in
one piece.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from runtime.artifact._fields import Fields, fail, integer, items, text

__all__ = ["MAX_CHIPS", "MESH_AXES", "Cut", "Partitions"]

MESH_AXES = ("fsdp", "tensor")
"""Names of the axes of a mesh, in their order."""

MAX_CHIPS = 1 << 16
"""Most chips of an island."""

Cut: TypeAlias = tuple[int | None, ...]
"""The dimension that each axis of the mesh divides."""

_MAX_RANK = 32
_MAX_TENSORS = 200_000


class Shaped(Protocol):
    """What has a shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """How the arrays of a program lie on the chips of an island; see the module's text.

    Attributes:
        mesh: (name, size) of each axis, one or both of `MESH_AXES` in that order, sizes from 2.
        inputs: the cut of each input.
        outputs: the cut of each output.
    """

    mesh: tuple[tuple[str, int], ...]
    inputs: tuple[Cut, ...]
    outputs: tuple[Cut, ...]

    @property
    def chips(self) -> int:
        """The chips that one call runs on."""
        return math.prod(size for _, size in self.mesh)

    def part(self, shape: Sequence[int], cut: Cut) -> tuple[int, ...]:
        """Give the shape of what one chip holds of an array."""
        held = list(shape)
        for (_, size), dimension in zip(self.mesh, cut, strict=True):
            if dimension is not None:
                held[dimension] //= size
        return tuple(held)

    def axes_of(self, rank: int, cut: Cut) -> tuple[tuple[str, ...], ...]:
        """Give for each dimension of an array the names of the axes that divide it, outer first."""
        found: list[tuple[str, ...]] = [()] * rank
        for (name, _), dimension in zip(self.mesh, cut, strict=True):
            if dimension is not None:
                found[dimension] = (name, *found[dimension])
        return tuple(found)

    def check(self, where: str, inputs: Sequence[Shaped], outputs: Sequence[Shaped]) -> None:
        """Check against the arrays of the program; `where` names it in errors.

        Raises:
            ArtifactError: the mesh is none, a number is out of bounds, or a dimension cannot be
                divided so.
        """
        names = tuple(name for name, _ in self.mesh)
        if names not in {MESH_AXES, *((name,) for name in MESH_AXES)}:
            raise fail(f"{where}.mesh", names, "fsdp, tensor, or both in this order")
        for name, size in self.mesh:
            integer(size, f"{where}.mesh.{name}", low=2, high=MAX_CHIPS)
        integer(self.chips, f"{where}.mesh", low=2, high=MAX_CHIPS)
        sides = (("inputs", inputs, self.inputs), ("outputs", outputs, self.outputs))
        for side, arrays, cuts in sides:
            if len(cuts) != len(arrays):
                raise fail(f"{where}.{side}", len(cuts), f"{len(arrays)} cuts, one an array")
            for array, cut in zip(arrays, cuts, strict=True):
                self._check_cut(f"{where}.{side}", array.shape, cut)

    def _check_cut(self, where: str, shape: tuple[int, ...], cut: Cut) -> None:
        """Check one array's cut."""
        if len(cut) != len(self.mesh):
            raise fail(where, cut, f"{len(self.mesh)} dimensions, one an axis of the mesh")
        rest = list(shape)
        for (name, size), dimension in zip(self.mesh, cut, strict=True):
            if dimension is None:
                continue
            integer(dimension, where, low=0, high=len(shape) - 1)
            if rest[dimension] % size:
                allowed = f"a dimension of {list(shape)} that the {size} chips of '{name}' divide"
                raise fail(where, dimension, allowed)
            rest[dimension] //= size

    def to_plain(self) -> dict[str, object]:
        """Give the CBOR form."""
        return {
            "mesh": [list(axis) for axis in self.mesh],
            "inputs": [list(cut) for cut in self.inputs],
            "outputs": [list(cut) for cut in self.outputs],
        }

    @classmethod
    def from_plain(cls, value: object, where: str) -> Partitions | None:
        """Read the CBOR form; null is a program of one chip.

        Raises:
            ArtifactError: not of that form.
        """
        if value is None:
            return None
        fields = Fields(value, where)
        partitions = cls(
            mesh=tuple(
                _axis(item, f"{where}.mesh") for item in fields.items("mesh", limit=len(MESH_AXES))
            ),
            inputs=_cuts(fields, "inputs"),
            outputs=_cuts(fields, "outputs"),
        )
        fields.end()
        return partitions


def _axis(value: object, where: str) -> tuple[str, int]:
    """Read one axis of a mesh."""
    parts = items(value, where, limit=2)
    if len(parts) != 2:
        raise fail(where, value, "[name, size]")
    return text(parts[0], where, limit=16), integer(parts[1], where, low=2, high=MAX_CHIPS)


def _cuts(fields: Fields, name: str) -> tuple[Cut, ...]:
    """Read the cuts of a program's inputs or outputs."""
    where = f"{fields.where}.{name}"
    return tuple(
        tuple(
            None if dimension is None else integer(dimension, where, low=0, high=_MAX_RANK - 1)
            for dimension in items(cut, where, limit=len(MESH_AXES))
        )
        for cut in fields.items(name, limit=_MAX_TENSORS)
    )
