"""The names of targets: a chip, how many of them an island joins, and how they share the work.

    CHIP            one chip: cuda-sm90
    CHIPxN          an island of N chips with fully sharded data parallelism: cuda-sm90x8
    CHIPxN-tpM      groups of M of the N chips work on one micro-shard with tensor parallelism,
                    N / M groups with fully sharded data parallelism: cuda-sm90x8-tp4

Which chips there are, and which of them can be joined, only the compiler's back ends know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["CHIP_FORMS", "TargetName"]

CHIP_FORMS: Final = "cpu, cuda-sm90, tpu-v5e, rocm-gfx942, trn2"
"""Examples of one chip a family, for messages."""

_NAME: Final = re.compile(
    r"(?P<chip>cpu|cuda-sm\d{2,3}|tpu-v\d[a-z]{0,2}|rocm-gfx[0-9a-f]{3,4}|trn[1-3]|inf2)"
    r"(?:x(?P<chips>[1-9]\d{0,3})(?:-tp(?P<tensor>[1-9]\d{0,3}))?)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetName:
    """A target's name, taken apart.

    Attributes:
        chip: the kind of chip, such as "cuda-sm90".
        chips: chips of the island.
        tensor_parallel: chips of a tensor-parallel group; 1 where there is none.
    """

    chip: str
    chips: int = 1
    tensor_parallel: int = 1

    @property
    def family(self) -> str:
        """The chip's name up to its generation: "cpu", "cuda", "tpu", "rocm", "trn2", "inf2"."""
        return self.chip.partition("-")[0]

    @property
    def groups(self) -> int:
        """Tensor-parallel groups of the island: the parts that a micro-batch is divided into."""
        return self.chips // self.tensor_parallel

    @classmethod
    def parse(cls, name: object) -> TargetName:
        """Take a name apart.

        Raises:
            ValueError: it has another form, or the groups do not divide the island.
        """
        found = _NAME.fullmatch(name) if isinstance(name, str) else None
        if found is None:
            msg = (
                f"{name!r} is no target; expected one of the forms {CHIP_FORMS}, with xN behind it "
                "for an island of N chips (x8), and -tpM for tensor parallelism (x8-tp4)"
            )
            raise ValueError(msg)
        chips, tensor = int(found["chips"] or 1), int(found["tensor"] or 1)
        if chips % tensor:
            divisors = ", ".join(str(n) for n in range(1, chips + 1) if chips % n == 0)
            msg = f"{name!r}: groups of {tensor} do not divide {chips} chips; allowed: {divisors}"
            raise ValueError(msg)
        return cls(chip=found["chip"], chips=chips, tensor_parallel=tensor)

    def __str__(self) -> str:
        """Give the shortest name of the same target."""
        island = f"x{self.chips}" if self.chips > 1 else ""
        tensor = f"-tp{self.tensor_parallel}" if self.tensor_parallel > 1 else ""
        return f"{self.chip}{island}{tensor}"
