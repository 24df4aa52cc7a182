"""An emulated table in this process, for tests of what lies in it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import boto3
from moto import mock_aws

TABLE = "luma-runs"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
_numbers = itertools.count()


@contextmanager
def emulated_table() -> Iterator[None]:
    """Have every client of this process talk to an account with one empty table."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with patch.dict(os.environ, kept | ENVIRONMENT, clear=True), mock_aws():
        boto3.client("dynamodb").create_table(
            TableName=TABLE,
            KeySchema=[
                {"AttributeName": "pk", "KeyType": "HASH"},
                {"AttributeName": "sk", "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[
                {"AttributeName": "pk", "AttributeType": "S"},
                {"AttributeName": "sk", "AttributeType": "S"},
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        yield


def new_run() -> str:
    """Give the name of a run that nothing is in the table of yet."""
    return f"run-{next(_numbers)}"
