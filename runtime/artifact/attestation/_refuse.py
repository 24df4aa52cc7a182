"""The refusals of attestation: one form of message, always with the name of the rule."""

from __future__ import annotations

from runtime.artifact._fields import fail
from runtime.artifact.attestation.rules import Rule
from runtime.spec.errors import AttestationError


def refusal(
    rule: Rule, field: str, value: object, allowed: str, *, remedy: str | None = None
) -> AttestationError:
    """Give the error for a field: its name, the value (bytes as their count) and what is allowed."""
    return AttestationError(fail(field, value, allowed).message, rule=rule, remedy=remedy)
