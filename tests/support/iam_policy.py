"""Key policies, evaluated as IAM does: an explicit Deny, else an Allow, else no.

From AWS's "Policy evaluation logic" and "IAM JSON policy elements: Condition operators", for the
operators that key policies here use. An element or operator that it does not know raises: a check
that ignored one would prove nothing.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Literal

Decision = Literal["deny", "allow", "none"]

_STATEMENT_PARTS = {"Sid", "Effect", "Principal", "Action", "Resource", "Condition"}


def decide(policy: Mapping, *, principal: str, action: str, keys: Mapping[str, str]) -> Decision:
    """Judge a request.

    Args:
        policy: the key policy.
        principal: ARN of the role that asks.
        action: such as "kms:Decrypt".
        keys: the request's condition keys.
    """
    effects = {
        statement["Effect"]
        for statement in _listed(policy["Statement"])
        if _applies(statement, principal, action, keys)
    }
    if "Deny" in effects:
        return "deny"
    return "allow" if "Allow" in effects else "none"


def _applies(statement: Mapping, principal: str, action: str, keys: Mapping[str, str]) -> bool:
    unknown = set(statement) - _STATEMENT_PARTS
    if unknown or statement["Effect"] not in ("Allow", "Deny") or statement["Resource"] != "*":
        raise NotImplementedError(f"statement {statement}")
    return (
        _names(statement["Principal"], principal)
        and any(
            fnmatch.fnmatchcase(action.lower(), pattern.lower())
            for pattern in _listed(statement["Action"])
        )
        and all(
            _holds(operator, key, _listed(values), keys)
            for operator, wanted in statement.get("Condition", {}).items()
            for key, values in wanted.items()
        )
    )


def _names(element: str | Mapping, principal: str) -> bool:
    """Tell whether a Principal element names the caller; an account's root names all of it."""
    if element == "*":
        return True
    if set(element) != {"AWS"}:
        raise NotImplementedError(f"principal {element}")
    account = principal.split(":")[4]
    root = f"arn:aws:iam::{account}:root"
    return any(name in ("*", principal, root, account) for name in _listed(element["AWS"]))


def _holds(operator: str, key: str, values: list[str], keys: Mapping[str, str]) -> bool:
    """Judge one operator and key: values OR, negated NOR; absent: false, negated true."""
    # The names of condition keys are not case sensitive.
    found = {name.lower(): value for name, value in keys.items()}.get(key.lower())
    match operator:
        case "Null":
            return values == [str(found is None).lower()]
        case "StringEquals":
            return found is not None and found in values
        case "StringNotEquals":
            return found is None or found not in values
        case "StringEqualsIgnoreCase":
            return found is not None and found.lower() in [value.lower() for value in values]
        case "StringNotEqualsIgnoreCase":
            return found is None or found.lower() not in [value.lower() for value in values]
        case _:
            raise NotImplementedError(f"operator {operator}")


def _listed(value):
    return value if isinstance(value, list) else [value]
