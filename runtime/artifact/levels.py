"""Seal levels: what each one rests on, and which one a set of evidence reaches.

A level is a promise (DESIGN.md, section 3), and each rests on all that the one below rests on:

| level | promise | and rests on |
|---|---|---|
| L0 | integrity and origin | `signature`, `signer` |
| L1 | encrypted under the customer's key | `seal` |
| L2 | compiled by an image that nobody can look into | `attestation`, `image` |
| L3 | the key is released only to an attested machine image | `key-policy` |

An artifact *claims* a level, in its signed manifest; a verifier *reaches* one, from evidence that it
saw hold. The claim bounds how it was made: an image that claims L1 does not promise L2, whatever
document it carries. It does not bound who may open it: of the key's policy an image knows nothing,
so an artifact that claims L2 can reach L3. Taking evidence away never raises a level.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

__all__ = [
    "EVIDENCE",
    "LEVELS",
    "Evidence",
    "EvidenceName",
    "EvidenceState",
    "Facts",
    "Level",
    "ReachedLevel",
    "allows",
    "needs",
    "reached_level",
    "reaches",
]

Level = Literal["L0", "L1", "L2", "L3"]
"""A seal level as an artifact claims it."""

ReachedLevel = Literal["none", "L0", "L1", "L2", "L3"]
"""A seal level as a verifier tells it; "none" where not even the origin is known."""

EvidenceName = Literal["signature", "signer", "seal", "attestation", "image", "key-policy"]
"""A link of the chain."""

EvidenceState = Literal["holds", "does not hold", "not given"]
"""What a verifier saw of a link; "not given": it could not be judged."""

Facts = Mapping[str, str | tuple[str, ...]]
"""What a link says, by label."""

_NO_FACTS: Final[Facts] = MappingProxyType({})
_ADDED: Final[Mapping[Level, tuple[EvidenceName, ...]]] = MappingProxyType(
    {
        "L0": ("signature", "signer"),
        "L1": ("seal",),
        "L2": ("attestation", "image"),
        "L3": ("key-policy",),
    }
)
_AT_MOST: Final[Mapping[Level, Level]] = MappingProxyType(
    {"L0": "L0", "L1": "L1", "L2": "L3", "L3": "L3"}
)
LEVELS: Final[tuple[Level, ...]] = tuple(_ADDED)
"""All levels, lowest first."""

EVIDENCE: Final[tuple[EvidenceName, ...]] = tuple(
    name for names in _ADDED.values() for name in names
)
"""All evidence, in the order of the chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One thing that a level rests on, as a verifier saw it.

    Attributes:
        name: which link of the chain.
        state: whether it was seen to hold.
        detail: what was seen, for people.
        needed: where it does not hold, what would be needed; else None.
        facts: what the link says, by label: public values, whole.
    """

    name: EvidenceName
    state: EvidenceState
    detail: str
    needed: str | None = None
    facts: Facts = field(default_factory=lambda: _NO_FACTS)

    @classmethod
    def held(cls, name: EvidenceName, detail: str, facts: Facts = _NO_FACTS) -> Evidence:
        """Give evidence that was seen to hold."""
        return cls(name=name, state="holds", detail=detail, facts=facts)

    @classmethod
    def refused(
        cls, name: EvidenceName, detail: str, *, needed: str, facts: Facts = _NO_FACTS
    ) -> Evidence:
        """Give evidence that was judged and does not hold."""
        return cls(name=name, state="does not hold", detail=detail, needed=needed, facts=facts)

    @classmethod
    def missing(
        cls, name: EvidenceName, detail: str, *, needed: str, facts: Facts = _NO_FACTS
    ) -> Evidence:
        """Give evidence that could not be judged."""
        return cls(name=name, state="not given", detail=detail, needed=needed, facts=facts)

    @property
    def holds(self) -> bool:
        """Whether the verifier saw it hold."""
        return self.state == "holds"

    def to_json(self) -> dict[str, object]:
        """Give plain JSON types."""
        return {
            "name": self.name,
            "holds": self.holds,
            "state": self.state,
            "detail": self.detail,
            "needed": self.needed,
            "facts": {
                label: list(value) if isinstance(value, tuple) else value
                for label, value in self.facts.items()
            },
        }


def needs(level: Level) -> tuple[EvidenceName, ...]:
    """Give all that a level rests on, with what those below it rest on."""
    upto = LEVELS[: LEVELS.index(level) + 1]
    return tuple(name for each in upto for name in _ADDED[each])


def allows(claimed: Level, level: Level) -> bool:
    """Tell whether an artifact with this claim can reach a level at all."""
    return LEVELS.index(level) <= LEVELS.index(_AT_MOST[claimed])


def reached_level(holding: Collection[str], claimed: Level) -> ReachedLevel:
    """Give the highest level that the claim allows and of which every part holds.

    Args:
        holding: the names of the evidence that holds.
        claimed: the level that the signed manifest claims.
    """
    reached: ReachedLevel = "none"
    for level in LEVELS:
        if not allows(claimed, level) or not set(_ADDED[level]) <= set(holding):
            break
        reached = level
    return reached


def reaches(reached: ReachedLevel, asked: Level) -> bool:
    """Tell whether a level that was reached is the asked one or a higher one."""
    return reached != "none" and LEVELS.index(reached) >= LEVELS.index(asked)
