"""An acknowledgement covers what it stands at, and nothing else: the pack's earlier fault stays away."""

from __future__ import annotations

import aws_cdk as cdk
import pytest
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3

from luma_constructs.acknowledgements import WILDCARDS, acknowledge
from tests.e2e.synth.nag import acknowledgement_findings, nag_findings
from tests.support.cdk import Assembly, assembled

pytestmark = pytest.mark.timeout(600)  # a busy machine synthesizes slowly


def two_buckets(app: cdk.App) -> cdk.Stack:
    stack = cdk.Stack(app, "S")
    for name in ("Ours", "Theirs"):
        s3.Bucket(stack, name, enforce_ssl=True)
    acknowledge(stack.node.find_child("Ours"))
    return stack


def policies(app: cdk.App) -> cdk.Stack:
    """A role with a limited wildcard, one without a limit, and one of a kind nobody knows."""
    stack = cdk.Stack(app, "S")
    condition = {"StringEquals": {"aws:RequestedRegion": cdk.Aws.REGION}}
    for name, resource, conditions in (
        ("Limited", "*", condition),
        ("Unlimited", "*", None),
        ("Unknown", "arn:aws:glue:eu-west-1:111122223333:table/*", condition),
    ):
        role = iam.Role(stack, name, assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"))
        role.add_to_policy(
            iam.PolicyStatement(
                actions=["glue:GetTable"], resources=[resource], conditions=conditions
            )
        )
    acknowledge(stack)
    return stack


@pytest.fixture(scope="module")
def buckets(tmp_path_factory) -> Assembly:
    return assembled(two_buckets, tmp_path_factory.mktemp("buckets") / "out", nag=True)


@pytest.fixture(scope="module")
def roles(tmp_path_factory) -> Assembly:
    return assembled(policies, tmp_path_factory.mktemp("roles") / "out", nag=True)


def test_of_two_buckets_the_other_one_is_still_found(buckets):
    (found,) = nag_findings(buckets)
    assert found.where == "S/Theirs/Resource"
    assert "AwsSolutions-S1" in found.what
    assert acknowledgement_findings(buckets) == []


def test_only_a_wildcard_with_a_limit_is_acknowledged(roles):
    found = {finding.where: finding.what for finding in nag_findings(roles)}
    assert sorted(found) == [
        "S/Unknown/DefaultPolicy/Resource",
        "S/Unlimited/DefaultPolicy/Resource",
    ]
    assert all("AwsSolutions-IAM5[Resource::" in what for what in found.values())
    assert acknowledgement_findings(roles) == []


def test_one_unlimited_statement_takes_the_acknowledgement_from_its_neighbours(tmp_path):
    def build(app: cdk.App) -> cdk.Stack:
        stack = policies(app)
        limited = stack.node.find_child("Limited")
        assert isinstance(limited, iam.Role)
        limited.add_to_policy(iam.PolicyStatement(actions=["glue:GetTables"], resources=["*"]))
        return stack

    found = {
        finding.where for finding in nag_findings(assembled(build, tmp_path / "out", nag=True))
    }
    assert "S/Limited/DefaultPolicy/Resource" in found


def test_every_pattern_is_used(tmp_path):
    """A pattern that no policy of ours has would only wait for something to hide."""
    from tests.e2e.synth.stack import default_stack
    from tests.support.cdk import synthesized

    given = {reason for _, _, reason in synthesized(default_stack, nag=True).acknowledgements()}
    unused = [wildcard.pattern for wildcard in WILDCARDS if wildcard.reason not in given]
    assert unused == [], unused
