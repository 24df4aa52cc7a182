"""IAM policies of a synthesized stack, by the role that they are attached to."""

from __future__ import annotations

from typing import Any

from tests.support.cdk import Assembly


def statements_of(assembly: Assembly, role: str) -> list[dict[str, Any]]:
    """The statements of the policies of roles whose logical id starts so, actions as lists."""
    found = []
    for policy in assembly.of_type("AWS::IAM::Policy").values():
        properties = policy["Properties"]
        if any(str(name.get("Ref", "")).startswith(role) for name in properties["Roles"]):
            found += properties["PolicyDocument"]["Statement"]
    assert found, f"no policy of a role {role}..."
    return [statement | {"Action": listed(statement["Action"])} for statement in found]


def all_statements(assembly: Assembly) -> list[dict[str, Any]]:
    """Every statement of every IAM policy, actions and resources as lists."""
    found = [
        statement
        for policy in assembly.of_type("AWS::IAM::Policy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
    ]
    return [s | {"Action": listed(s["Action"]), "Resource": listed(s["Resource"])} for s in found]


def listed(value: Any) -> list[Any]:
    """Give one value or several as a list."""
    return value if isinstance(value, list) else [value]
