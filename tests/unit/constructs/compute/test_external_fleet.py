"""Hosts outside EC2: who may take the nodes' role, and with what proof."""

from __future__ import annotations

import subprocess

import aws_cdk as cdk
import pytest

from luma_constructs import (
    ExternalFleet,
    ExternalIdentity,
    PropError,
    RunStore,
    TrustAnchorSource,
)
from runtime.spec.account import Fleet
from tests.support.cdk import synthesized
from tests.unit.constructs.compute import stacks
from tests.unit.constructs.compute.policies import statements_of
from tests.unit.constructs.compute.test_accelerator_fleet import one, text_of

ANCHOR = TrustAnchorSource(certificate_bundle=stacks.PEM)


@pytest.fixture(scope="module")
def external():
    return synthesized(stacks.external)


def trust(assembly, fleet):
    return one(assembly, "AWS::IAM::Role", f"{fleet}Role")["AssumeRolePolicyDocument"]["Statement"]


def test_ssm_takes_the_role_for_this_account_s_nodes_alone(external):
    (statement,) = trust(external, "ssm")
    assert statement["Principal"] == {"Service": "ssm.amazonaws.com"}
    condition = statement["Condition"]
    assert condition["StringEquals"] == {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}
    assert text_of(condition["ArnLike"]["aws:SourceArn"]) == (
        "arn:<AWS::Partition>:ssm:<AWS::Region>:<AWS::AccountId>:*"
    )


def test_a_certificate_needs_the_anchor_and_the_name(external):
    statements = trust(external, "amd")
    actions = {
        a
        for s in statements
        for a in ([s["Action"]] if isinstance(s["Action"], str) else s["Action"])
    }
    assert actions == {"sts:AssumeRole", "sts:TagSession", "sts:SetSourceIdentity"}
    for statement in statements:
        assert statement["Principal"] == {"Service": "rolesanywhere.amazonaws.com"}
        condition = statement["Condition"]
        (anchor,) = external.of_type("AWS::RolesAnywhere::TrustAnchor")
        assert condition["ArnEquals"]["aws:SourceArn"]["Fn::GetAtt"] == [anchor, "TrustAnchorArn"]
        assert condition["StringLike"] == {"aws:PrincipalTag/x509Subject/CN": ["mi-*.lab"]}


def test_the_anchor_holds_certificates_and_the_profile_the_one_role(external):
    anchor = one(external, "AWS::RolesAnywhere::TrustAnchor", "amd")
    assert anchor["Enabled"] is True
    assert anchor["Source"] == {
        "SourceType": "CERTIFICATE_BUNDLE",
        "SourceData": {"X509CertificateData": stacks.PEM},
    }
    profile = one(external, "AWS::RolesAnywhere::Profile", "amd")
    (role,) = profile["RoleArns"]
    assert role["Fn::GetAtt"][0].startswith("amdRole")
    assert profile["DurationSeconds"] == 3600
    assert len(external.of_type("AWS::RolesAnywhere::TrustAnchor")) == 1


def test_google_s_tokens_name_account_and_audience(external):
    (statement,) = trust(external, "tpu")
    assert statement["Action"] == "sts:AssumeRoleWithWebIdentity"
    assert statement["Principal"] == {"Federated": "accounts.google.com"}
    assert statement["Condition"] == {
        "StringEquals": {
            "accounts.google.com:aud": [stacks.GOOGLE_ACCOUNT],
            "accounts.google.com:oaud": "luma",
            "accounts.google.com:sub": [stacks.GOOGLE_ACCOUNT],
        }
    }


def test_other_tokens_name_subject_and_audience(external):
    (statement,) = trust(external, "oidc")
    assert statement["Action"] == "sts:AssumeRoleWithWebIdentity"
    assert statement["Condition"]["StringEquals"] == {
        "id.example.com:aud": "luma",
        "id.example.com:sub": ["node:a", "node:b"],
    }


def test_only_hosts_with_ssm_take_commands(external):
    def has_commands(fleet):
        actions = {a for s in statements_of(external, f"{fleet}Role") for a in s["Action"]}
        return "ssmmessages:OpenDataChannel" in actions

    assert [has_commands(f) for f in ("ssm", "amd", "tpu", "oidc")] == [True, False, False, False]


def test_a_host_works_like_a_node_and_scales_nothing(external):
    assert external.of_type("AWS::AutoScaling::AutoScalingGroup") == {}
    actions = {a for s in statements_of(external, "amdRole") for a in s["Action"]}
    assert {"sqs:ReceiveMessage", "s3:PutObject", "dynamodb:UpdateItem"} <= actions
    assert not [a for a in actions if a.startswith(("autoscaling:", "ec2"))]


def test_the_runtime_reads_the_fleet_s_parameter(external):
    value = text_of(one(external, "AWS::SSM::Parameter", "amdParameter")["Value"])
    fleet = Fleet.from_json(value)
    assert (fleet.name, fleet.target, fleet.asg) == ("amd", "rocm-gfx942", None)
    assert (fleet.purchase, fleet.usd_per_hour) == ("on-demand", 2.5)


def test_the_set_up_script_is_a_script_that_ends_no_machine(external, tmp_path):
    script = text_of(external.template["Outputs"]["amdscript"]["Value"])
    assert "shutdown" not in script
    assert "--fleet amd --family rocm " in script
    assert script.rstrip().endswith("--external rocm-gfx942")
    path = tmp_path / "set-up.sh"
    path.write_text(script.replace("<AWS::Region>", "us-east-1"))
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)


@pytest.fixture
def scope():
    stack = cdk.Stack(cdk.App(), "Luma")
    return stack, RunStore(stack, "Store")


GOOD = {"fleet_name": "amd", "target": "rocm-gfx942", "identity": ExternalIdentity.ssm_activation()}

WRONG = {
    "a name": ({"fleet_name": "A"}, "fleet_name: 'A'"),
    "a target": ({"target": "mi300x"}, "target: 'mi300x'; expected one of rocm-gfx942, .*cpu"),
    "a number": ({"max_capacity": 0}, "max_capacity: 0"),
    "an order": ({"order": -1}, "order: -1"),
    "a price": ({"usd_per_hour": -1.0}, "usd_per_hour: -1.0; expected dollars per hour"),
    "nobody": (
        {"identity": ExternalIdentity.roles_anywhere(ANCHOR, common_names=[])},
        r"identity.names: \(\); expected at least one; without one anybody could join",
    ),
    "everybody": (
        {"identity": ExternalIdentity.roles_anywhere(ANCHOR, common_names=["*"])},
        "identity.names: .*; expected names that are not only '\\*'",
    ),
    "an anchor of nothing": (
        {"identity": ExternalIdentity.roles_anywhere(TrustAnchorSource(), common_names=["a"])},
        "identity.anchor: .*; expected certificate_bundle or private_ca_arn",
    ),
    "an anchor with a key": (
        {
            "identity": ExternalIdentity.roles_anywhere(
                TrustAnchorSource(certificate_bundle=stacks.PEM + "-----BEGIN PRIVATE KEY-----"),
                common_names=["a"],
            )
        },
        r"identity.anchor.certificate_bundle: '\.\.\.'; expected certificates in PEM, no key",
    ),
    "an address of Google's": (
        {"identity": ExternalIdentity.google(service_accounts=["a@b.com"], audience="luma")},
        r"identity.service_accounts: \['a@b.com'\]; expected unique numeric ids, not addresses",
    ),
    "no audience": (
        {
            "identity": ExternalIdentity.google(
                service_accounts=[stacks.GOOGLE_ACCOUNT], audience=""
            )
        },
        "identity.audience: ''",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_props_are_refused_before_any_resource(case, scope):
    stack, store = scope
    wrong, message = WRONG[case]
    with pytest.raises(PropError, match=message):
        ExternalFleet(stack, "Fleet", store=store, **{**GOOD, **wrong})
    left = stack.node.find_child("Fleet").node.find_all()
    assert not [c for c in left if isinstance(c, cdk.CfnResource)]


def test_an_anchor_may_be_an_authority_of_aws(scope):
    stack, store = scope
    arn = "arn:aws:acm-pca:us-east-1:111122223333:certificate-authority/1234"
    identity = ExternalIdentity.roles_anywhere(
        TrustAnchorSource(private_ca_arn=arn), common_names=["a"]
    )
    fleet = ExternalFleet(stack, "Fleet", store=store, **{**GOOD, "identity": identity})
    assert fleet.trust_anchor.source.source_type == "AWS_ACM_PCA"
    assert fleet.trust_anchor.source.source_data.acm_pca_arn == arn
