"""Roles and principals as the interfaces that CDK's own functions ask for.

CDK's Python classes name some parameters of a method `_statement` where the interface has
`statement`, so type checkers take `Role` for no `IRole` (aws-cdk issue 15651). The casts stand here
alone.
"""

from __future__ import annotations

from typing import cast

from aws_cdk import aws_iam as iam
from constructs import Construct

__all__ = ["new_role", "principal"]


def principal(one: object) -> iam.IPrincipal:
    """Give a principal, such as `iam.ServicePrincipal(...)`, as the interface."""
    return cast("iam.IPrincipal", one)


def new_role(scope: Construct, id: str, *, assumed_by: object, description: str) -> iam.IRole:
    """Make a role without any policy.

    Args:
        scope: the construct that it belongs to.
        id: of the role.
        assumed_by: the principal that may take it.
        description: what it is for.
    """
    role = iam.Role(scope, id, assumed_by=principal(assumed_by), description=description)
    return cast("iam.IRole", role)
