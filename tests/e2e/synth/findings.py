"""What a static check found: which check, where, what, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that is wrong with a template.

    Attributes:
        check: the check's name, as the summary prints it.
        where: the construct's path or the logical id.
        what: what is wrong there.
        remedy: what to change.
    """

    check: str
    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.what}; {self.remedy}"
