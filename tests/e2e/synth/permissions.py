"""No permission without a limit: a walk over every statement of a template.

- No action has a wildcard, and nothing is allowed by what it is not (NotAction, NotResource).
- `Resource: "*"` in a role's policy, or a wildcard for every region, account or name of a kind,
  has a condition. That it also has a reason is cdk-nag's rule IAM5 (`nag.py`).
- Nobody is trusted without being named: `Principal: "*"` is allowed only under a condition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.e2e.synth.findings import Finding
from tests.e2e.synth.statements import Statement, statements

CHECK = "permissions"

_WHOLE_KIND = re.compile(r"(?:[^/:]+[/:])?\*")
_OWN = re.compile(r"<(?!AWS::)[^>]+>")


def permission_findings(template: Mapping[str, Any]) -> list[Finding]:
    """What is too wide in a template's policies."""
    found = []
    for statement in statements(template):
        if statement.effect == "Allow":
            found += _actions(statement) + _resources(statement) + _principals(statement)
    return found


def _actions(statement: Statement) -> list[Finding]:
    found = [
        Finding(CHECK, statement.owner, f"allows {action}", "name the actions")
        for action in statement.actions
        if "*" in action or action.startswith("not ")
    ]
    if statement.kind != "trust" and not statement.actions:
        found.append(Finding(CHECK, statement.owner, "allows no action", "remove the statement"))
    return found


def _resources(statement: Statement) -> list[Finding]:
    if statement.kind != "identity":
        return []
    return [
        Finding(CHECK, statement.owner,
                f"allows {', '.join(statement.actions)} on {resource} without a condition",
                "name the resources, or add a condition such as a tag's")
        for resource in statement.resources
        if resource.startswith("not ") or (too_wide(resource) and not statement.conditions)
    ]  # fmt: skip


def too_wide(resource: str) -> bool:
    """Say whether an ARN pattern is about more than what belongs to this stack.

    Objects of the stack's own bucket, runs of its own machine and parameters below its own name are
    not; every instance of an account is.
    """
    if resource == "*":
        return True
    if "*" not in resource or _OWN.search(resource):
        return False
    parts = resource.replace("<AWS::", "<").split(":", 5)
    return (
        len(parts) < 6 or "*" in ":".join(parts[:5]) or _WHOLE_KIND.fullmatch(parts[5]) is not None
    )


def _principals(statement: Statement) -> list[Finding]:
    principal = statement.principal
    named = principal.values() if isinstance(principal, dict) else [principal]
    flat = [item for value in named for item in (value if isinstance(value, list) else [value])]
    if "*" in flat and not statement.conditions:
        return [Finding(CHECK, statement.owner, "trusts everyone without a condition",
                        "name the principal")]  # fmt: skip
    return []
