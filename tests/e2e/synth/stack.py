"""The stack that the static checks look at: app.py's, with everything that it can have."""

from __future__ import annotations

import aws_cdk as cdk

from luma_constructs._app_stack import AppStack
from luma_constructs._context import AppContext

EVERYTHING = {"budget": "500/month,40/h", "failover": ["eu-west-1"], "email": "team@example.com"}
"""Context parameters that add a construct."""


def default_stack(app: cdk.App) -> cdk.Stack:
    """Add the stack to an app."""
    return AppStack(app, AppContext.read(EVERYTHING))
