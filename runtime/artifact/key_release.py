"""What a KMS key's policy makes sure of: read from its JSON, and never more than its Denies say.

Only a Deny makes sure of anything: another statement, a grant or an IAM policy may allow what this
policy does not, but nothing lifts an explicit Deny (AWS, "Policy evaluation logic"). So this module
collects the Denies that

- are for everyone (`"Principal": "*"`) and everything (`"Resource": "*"`),
- cover an action,
- and have exactly one condition, of one key: two conditions must both be met, so that a request
  which meets one of them is not denied.

`StringNotEqualsIgnoreCase {kms:RecipientAttestation:NitroTPMPCR4: [...]}` on `kms:Decrypt` then says:
nothing is opened but by a machine that measured one of these values; an absent register counts as
different. Whatever this module does not understand makes sure of nothing. `luma_constructs.key_policy`
makes such policies.

A policy names no key, and administrators can replace it: that the file is the policy of the key that
an artifact names, and still is, is the caller's to know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.artifact._fields import fail
from runtime.artifact._plain_json import read_json
from runtime.artifact.accepted import AcceptedMeasurements

__all__ = ["KeyPolicy"]

OPENING = ("kms:Decrypt", "kms:ReEncryptFrom")
"""The actions that open a wrapped key, or put it under another key."""
SEALING = "kms:GenerateDataKey"

_ATTESTED = "kms:recipientattestation:"
_CUSTOMER_KEY = "kms:encryptioncontext:luma:customer"
_MACHINE = re.compile(re.escape(_ATTESTED) + r"nitrotpmpcr([0-9]|[12][0-9]|3[01])", re.ASCII)
_ENCLAVE = re.compile(
    re.escape(_ATTESTED) + r"(imagesha384|pcr(?:[0-9]|[12][0-9]|3[01]))", re.ASCII
)
_VALUE = re.compile(r"[0-9a-f]{96}", re.ASCII)
_DIFFERENT = frozenset({"StringNotEquals", "StringNotEqualsIgnoreCase"})
_PARTS = frozenset({"Sid", "Effect", "Principal", "Action", "Resource", "Condition"})
_MAX_STATEMENTS = 256
_MAX_COMBINATIONS = 4096
_MAX_TEXT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _Denial:
    """A Deny for everyone, unless one condition key has one of some values.

    Attributes:
        sid: its name.
        actions: patterns of actions.
        key: the condition key, in lower case.
        values: what lifts it.
    """

    sid: str
    actions: tuple[str, ...]
    key: str
    values: frozenset[str]

    def covers(self, action: str) -> bool:
        """Tell whether it denies an action."""
        return any(_matches(pattern, action) for pattern in self.actions)


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """A key policy.

    Attributes:
        denials: the Denies that make sure of something.
    """

    denials: tuple[_Denial, ...]

    @classmethod
    def from_file(cls, path: Path) -> KeyPolicy:
        """Read a policy as `aws kms get-key-policy --query Policy --output text` prints it.

        Raises:
            ArtifactError: it cannot be read, or as `from_json`.
        """
        return cls.from_json(read_json(path, "key policy"))

    @classmethod
    def from_json(cls, document: Any) -> KeyPolicy:
        """Read the parsed JSON of a policy.

        Raises:
            ArtifactError: no policy of version 2012-10-17.
        """
        if not isinstance(document, dict) or document.get("Version") != "2012-10-17":
            found = document.get("Version") if isinstance(document, dict) else document
            raise fail("key policy.Version", found, "'2012-10-17'")
        statements = document.get("Statement")
        if isinstance(statements, dict):
            statements = [statements]
        if not isinstance(statements, list) or len(statements) > _MAX_STATEMENTS:
            raise fail("key policy.Statement", statements, f"at most {_MAX_STATEMENTS} statements")
        return cls(tuple(_denials(statements)))

    def machines(self, action: str) -> Mapping[int, frozenset[bytes]]:
        """Give, by NitroTPM register, the values that every request for an action must measure.

        A register is absent where the policy asks nothing of it. Several Denies of one register
        leave what all of them let through.
        """
        found: dict[int, frozenset[bytes]] = {}
        for denial in self._of(action):
            match = _MACHINE.fullmatch(denial.key)
            if match is None or not all(map(_VALUE.fullmatch, denial.values)):
                continue
            register = int(match[1])
            values = frozenset(map(bytes.fromhex, denial.values))
            found[register] = found.get(register, values) & values
        return found

    def opens_only_for(self, accepted: AcceptedMeasurements) -> bool:
        """Tell whether it makes sure that only listed AMIs open what the key sealed."""
        for action in OPENING:
            pinned = self.machines(action)
            combinations = 1
            for values in pinned.values():
                combinations *= len(values)
            if combinations > _MAX_COMBINATIONS or not accepted.admits_only_amis(pinned):
                return False
        return True

    def is_of(self, customer: str) -> bool:
        """Tell whether it makes sure that every opening names this customer and no other."""
        return all(
            any(
                denial.key == _CUSTOMER_KEY and denial.values == {customer}
                for denial in self._of(action)
            )
            for action in OPENING
        )

    def told(self) -> dict[str, tuple[str, ...]]:
        """Give the statements that matter, for people: what opening and sealing ask of a request."""
        opening = [text for text in (_told(d, _MACHINE) for d in self._of(OPENING[0])) if text]
        sealing = [text for text in (_told(d, _ENCLAVE) for d in self._of(SEALING)) if text]
        nothing = ("no attestation is asked for",)
        return {"opening": tuple(opening) or nothing, "sealing": tuple(sealing) or nothing}

    def _of(self, action: str) -> Iterator[_Denial]:
        """Give the Denies that cover an action."""
        return (denial for denial in self.denials if denial.covers(action))


def _told(denial: _Denial, key: re.Pattern[str]) -> str | None:
    """Tell one Deny, where its condition key is of a kind."""
    match = key.fullmatch(denial.key)
    if match is None:
        return None
    # ImageSha384 is another name of an enclave's PCR0.
    register = "PCR" + match[1].removeprefix("pcr").replace("imagesha384", "0")
    return f"{denial.sid}: {register} must be one of {', '.join(sorted(denial.values))}"


def _denials(statements: list[Any]) -> Iterator[_Denial]:
    """Give what is understood of the statements; the rest makes sure of nothing."""
    for statement in statements:
        if not isinstance(statement, dict) or not statement.keys() <= _PARTS:
            continue
        effect = tuple(statement.get(name) for name in ("Effect", "Principal"))
        if effect != ("Deny", "*") or statement.get("Resource") not in ("*", ["*"]):
            continue
        actions = _texts(statement.get("Action"))
        condition = _only_condition(statement.get("Condition"))
        if actions is None or condition is None:
            continue
        key, values = condition
        yield _Denial(
            sid=str(statement.get("Sid", "a statement without a name"))[:64],
            actions=actions,
            key=key,
            values=values,
        )


def _only_condition(condition: object) -> tuple[str, frozenset[str]] | None:
    """Give (key, values) of a condition that is met exactly where a key has none of the values."""
    if not isinstance(condition, dict) or len(condition) != 1:
        return None
    [(operator, wanted)] = condition.items()
    if operator not in _DIFFERENT or not isinstance(wanted, dict) or len(wanted) != 1:
        return None
    [(key, values)] = wanted.items()
    texts = _texts(values)
    if texts is None:
        return None
    name = key.lower()  # names of condition keys are not case sensitive
    # Hex digits are compared without their case; a customer's name is in lower case anyway.
    return name, frozenset(text.lower() if name.startswith(_ATTESTED) else text for text in texts)


def _texts(value: object) -> tuple[str, ...] | None:
    """Give a text or a list of texts as a tuple; None for anything else, and for very long ones."""
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(isinstance(item, str) and len(item) <= _MAX_TEXT for item in listed):
        return None
    return tuple(listed)


def _matches(pattern: str, action: str) -> bool:
    """Match an action as IAM does: `*` and `?`, in any case."""
    # Stars in a row mean one, and would take a backtracking matcher long.
    form = re.escape(re.sub(r"\*+", "*", pattern.lower()))
    form = form.replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(form, action.lower()) is not None
