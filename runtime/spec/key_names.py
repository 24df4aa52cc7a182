"""The names that a customer's key goes by: the ARN of a KMS key, and the customer's own name.

Job files, artifacts and their readers take the same ones.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["CUSTOMER", "KEY_ARN", "check_customer", "check_key_arn"]

KEY_ARN: Final = re.compile(
    r"arn:aws(?:-[a-z]{1,8}){0,3}:kms:([a-z0-9-]{4,32}):[0-9]{12}:key/[A-Za-z0-9-]{1,64}", re.ASCII
)
"""The ARN of a KMS key; its group is the region. No alias: it can be pointed at another key."""

CUSTOMER: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?", re.ASCII)
"""A customer's name. It stands in manifests, which anyone can read."""


def check_key_arn(value: str) -> str:
    """Give the ARN of a KMS key as it is.

    Raises:
        ValueError: it has another form.
    """
    if KEY_ARN.fullmatch(value):
        return value
    what = "an alias, which can be pointed at another key" if ":alias/" in value else "no KMS key"
    msg = f"{value!r} is {what}; expected arn:aws:kms:REGION:ACCOUNT:key/ID"
    raise ValueError(msg)


def check_customer(value: str) -> str:
    """Give a customer's name as it is.

    Raises:
        ValueError: it has another form.
    """
    if CUSTOMER.fullmatch(value):
        return value
    msg = f"{value!r} is no customer's name; expected 1 to 63 of a-z, 0-9, '.', '_' and '-'"
    raise ValueError(msg)
