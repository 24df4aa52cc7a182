"""How props are refused: everything that is wrong at once, in one error.

    problems = Problems("AcceleratorFleet", self)
    problems.check(0 < count, "max_capacity", count, "a whole number from 1 to 1000", "raise it")
    problems.raise_all()

jsii checks arguments to `aws_cdk`, never those of a Python construct, so each construct checks its
own, before it makes its first resource.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from aws_cdk import Token
from constructs import IConstruct

__all__ = ["Problems", "PropError", "is_known"]


class PropError(ValueError):
    """Props that cannot be deployed; the message names each, its value, what is allowed, a remedy.

    Attributes:
        problems: one line for each prop.
    """

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        lines = "; ".join(self.problems) if len(self.problems) == 1 else _listed(self.problems)
        super().__init__(f"{where}: {lines}")


def _listed(problems: Sequence[str]) -> str:
    """Give several problems, a line each."""
    return f"{len(problems)} problems" + "".join(f"\n  {problem}" for problem in problems)


@dataclass(slots=True)
class Problems:
    """Collects what is wrong with a construct's props.

    Attributes:
        kind: the construct's class, such as "AcceleratorFleet".
        construct: the construct, whose path the error names.
    """

    kind: str
    construct: IConstruct
    _found: list[str] = field(default_factory=list)

    def add(self, prop: str, value: object, allowed: str, remedy: str = "") -> None:
        """Note a wrong prop.

        Args:
            prop: its name, as the caller wrote it.
            value: what was given.
            allowed: what is allowed instead, behind "expected".
            remedy: what to do, where `allowed` does not say it.
        """
        line = f"{prop}: {value!r}; expected {allowed}"
        self._found.append(f"{line}; {remedy}" if remedy else line)

    def check(self, holds: bool, prop: str, value: object, allowed: str, remedy: str = "") -> bool:  # noqa: FBT001
        """Note a wrong prop unless `holds`; give `holds`."""
        if not holds:
            self.add(prop, value, allowed, remedy)
        return holds

    def whole(self, prop: str, value: object, low: int, high: int) -> bool:
        """Check a whole number from `low` to `high`; a token, known at deployment only, passes."""
        if not is_known(value):
            return True
        number = isinstance(value, int) and not isinstance(value, bool)
        allowed = f"a whole number from {low} to {high}"
        return self.check(number and low <= value <= high, prop, value, allowed)

    def raise_all(self) -> None:
        """Raise what was found.

        Raises:
            PropError: at least one prop is wrong.
        """
        if self._found:
            self.fail()

    def fail(self) -> NoReturn:
        """Raise what was found, where nothing more can be checked.

        Raises:
            PropError: always.
        """
        raise PropError(f"{self.kind} '{self.construct.node.path}'", self._found)


def is_known(value: object) -> bool:
    """Tell whether a value is known at synth, rather than a token of the deployment."""
    return not Token.is_unresolved(value)
