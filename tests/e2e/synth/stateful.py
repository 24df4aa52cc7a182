"""Data outlives its stack, and nothing of the account shows in a template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.e2e.synth.findings import Finding

STATEFUL = (
    "AWS::S3::Bucket",
    "AWS::DynamoDB::Table",
    "AWS::DynamoDB::GlobalTable",
    "AWS::KMS::Key",
)
"""Types that hold what cannot be computed again."""

_PARTITION = re.compile(r"arn:aws(?:-cn|-us-gov)?:")
_SECRET = re.compile(
    r"AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY-----|aws_secret_access_key", re.ASCII
)


def retention_findings(template: Mapping[str, Any]) -> list[Finding]:
    """Data that would go with the stack, or as it is replaced."""
    return [
        Finding("retain", name, f"{policy} is {resource.get(policy, 'Delete')!r}",
                "use RemovalPolicy.RETAIN")
        for name, resource in template["Resources"].items()
        if resource["Type"] in STATEFUL
        for policy in ("DeletionPolicy", "UpdateReplacePolicy")
        if resource.get(policy) != "Retain"
    ]  # fmt: skip


def custom_resource_findings(template: Mapping[str, Any]) -> list[Finding]:
    """Custom resources: code that runs at deployment, and breaks upgrades."""
    return [
        Finding("custom resources", name, f"is a {resource['Type']}", "use a resource of AWS's")
        for name, resource in template["Resources"].items()
        if resource["Type"].startswith(("Custom::", "AWS::CloudFormation::CustomResource"))
    ]


def literal_findings(template: Mapping[str, Any]) -> list[Finding]:
    """A partition's name in an ARN, and what looks like a secret."""
    found = []
    for name, resource in template["Resources"].items():
        source = json.dumps(resource)
        if partition := _PARTITION.search(source):
            found.append(Finding("partition", name, f"holds the literal {partition[0]!r}",
                                 "use format_arn or Aws.PARTITION"))  # fmt: skip
        if secret := _SECRET.search(source):
            found.append(Finding("secrets", name, f"holds {secret[0][:8]}…", "remove it"))
    return found
