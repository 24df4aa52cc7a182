"""Each static check finds what it is there for: planted defects, one at a time."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from tests.e2e.synth import idle, lint, machines, nag, permissions, stateful
from tests.e2e.synth.intrinsics import plain, text
from tests.e2e.synth.statements import statements
from tests.support.cdk import Assembly

pytestmark = pytest.mark.timeout(600)  # a busy machine synthesizes slowly

MACHINE = {
    "StartAt": "Read",
    "States": {
        "Read": {
            "Type": "Task",
            "Resource": "arn:aws:states:::dynamodb:getItem",
            "Parameters": {"TableName": "t"},
            "Next": "Known?",
            "Catch": [{"ErrorEquals": ["States.ALL"], "Next": "Failed"}],
        },
        "Known?": {
            "Type": "Choice",
            "Choices": [{"Variable": "$.a", "IsPresent": True, "Next": "Give work"}],
            "Default": "Failed",
        },
        "Give work": {
            "Type": "Task",
            "Resource": "arn:aws:states:::sqs:sendMessage.waitForTaskToken",
            "HeartbeatSeconds": 90,
            "Parameters": {"QueueUrl": "q", "MessageBody": {"token.$": "$$.Task.Token"}},
            "End": True,
        },
        "Failed": {"Type": "Fail", "Error": "E", "Cause": "c"},
    },
}


def planted(change) -> dict:
    machine = copy.deepcopy(MACHINE)
    change(machine["States"])
    return machine


def as_template(definition: dict) -> dict:
    """A template as CDK writes it: the definition is a Fn::Join with references."""
    head, tail = json.dumps(definition).split('"TableName": "t"')
    joined = ["", [head, '"TableName": "', {"Ref": "Table"}, '"', tail]]
    return {
        "Resources": {
            "Machine": {
                "Type": machines.MACHINE,
                "Properties": {"DefinitionString": {"Fn::Join": joined}},
            }
        }
    }


def test_a_sound_machine_has_no_finding():
    assert machines.graph_findings("M", MACHINE) == []
    assert machines.task_findings("M", MACHINE) == []
    assert lint.definition_findings(as_template(MACHINE)) == []


def test_a_definition_is_read_through_its_references():
    found = machines.definitions(as_template(MACHINE))
    assert found["Machine"]["States"]["Read"]["Parameters"] == {"TableName": "<Table>"}


def test_a_definition_that_is_elsewhere_cannot_be_passed_over():
    template = as_template(MACHINE)
    template["Resources"]["Machine"]["Properties"] = {"DefinitionS3Location": {"Bucket": "b"}}
    with pytest.raises(ValueError, match="not in the template"):
        machines.definitions(template)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s["Read"].update(Next="Nope"), "goes to 'Nope', which is no state here"),
        (lambda s: s["Known?"].update(Default="Nope"), "goes to 'Nope'"),
        (lambda s: s["Known?"]["Choices"][0].update(Next="Nope"), "goes to 'Nope'"),
        (lambda s: s["Read"]["Catch"][0].update(Next="Nope"), "goes to 'Nope'"),
        (lambda s: s.update(Lost={"Type": "Succeed"}), "is never reached"),
        (lambda s: (s["Give work"].pop("End"), s["Give work"].update(Next="Give work")),
         "leads to no end"),
    ],
)  # fmt: skip
def test_a_graph_that_cannot_run_is_found(change, said):
    assert said in "\n".join(map(str, machines.graph_findings("M", planted(change))))


def test_graphs_inside_a_map_and_a_parallel_are_looked_into():
    inner = planted(lambda s: s["Read"].update(Next="Nope"))
    for state in (
        {"Type": "Map", "ItemProcessor": inner, "End": True},
        {"Type": "Parallel", "Branches": [MACHINE, inner], "End": True},
    ):
        found = machines.graph_findings("M", {"StartAt": "Outer", "States": {"Outer": state}})
        assert "M/Outer[" in str(found[0])


def test_a_wait_without_a_limit_is_found():
    found = machines.task_findings("M", planted(lambda s: s["Give work"].pop("HeartbeatSeconds")))
    assert "waits for a task token without any limit" in str(found[0])


def test_cfn_lint_holds_a_definition_to_its_schema():
    found = lint.definition_findings(as_template(planted(lambda s: s["Read"].update(Timeout=3))))
    assert "E3601" in str(found[0])


def test_cfn_lint_reads_the_template():
    bucket = {"Type": "AWS::S3::Bucket", "Properties": {"BucketNam": "b"}}
    found = lint.lint_findings({"Resources": {"B": bucket}}, ("us-east-1",))
    assert any("BucketNam" in str(finding) for finding in found)


def role_policy(**statement) -> dict:
    entry = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:x", **statement}
    document = {"Version": "2012-10-17", "Statement": [entry]}
    policy = {"PolicyDocument": document, "PolicyName": "p", "Roles": [{"Ref": "Role"}]}
    return {"Resources": {"Policy": {"Type": "AWS::IAM::Policy", "Properties": policy}}}


OWN = {"Fn::Join": ["", [{"Fn::GetAtt": ["Bucket", "Arn"]}, "/runs/*"]]}
MACHINES = "arn:aws:ec2:eu-west-1:111122223333:instance/*"
OWN_ACCOUNT = {
    "Fn::Join": ["", ["arn:aws:ec2:eu-west-1:", {"Ref": "AWS::AccountId"}, ":instance/*"]]
}
TAGGED = {"StringEquals": {"aws:ResourceTag/luma:fleet": "l4"}}


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ({"Action": "s3:*"}, "allows s3:*"),
        ({"Action": ["s3:GetObject", "s3:Get*"]}, "allows s3:Get*"),
        ({"Action": "*"}, "allows *"),
        ({"Action": [], "NotAction": "iam:PassRole"}, "allows not iam:PassRole"),
        ({"Resource": "*"}, "on * without a condition"),
        ({"Resource": MACHINES}, "without a condition"),
        ({"Resource": OWN_ACCOUNT}, "without a condition"),
        ({"Resource": "arn:aws:ssm:*:111122223333:parameter/luma/Luma/x"}, "without a condition"),
        ({"Resource": [], "NotResource": "arn:x"}, "on not arn:x"),
    ],
)
def test_a_permission_without_a_limit_is_found(statement, said):
    found = permissions.permission_findings(role_policy(**statement))
    assert said in "\n".join(map(str, found))


@pytest.mark.parametrize(
    "statement",
    [
        {"Resource": OWN},
        {"Resource": MACHINES, "Condition": TAGGED},
        {"Resource": "*", "Condition": {"StringEquals": {"aws:RequestedRegion": "eu-west-1"}}},
        {"Resource": "arn:aws:ssm:eu-west-1:111122223333:parameter/luma/Luma/*"},
        {"Effect": "Deny", "Action": "*", "Resource": "*"},
    ],
)
def test_a_permission_with_a_limit_is_none(statement):
    assert permissions.permission_findings(role_policy(**statement)) == []


def test_policies_are_found_wherever_they_are():
    wide = {"Statement": {"Effect": "Allow", "Action": "sqs:*", "Principal": "*", "Resource": "*"}}
    template = {
        "Resources": {
            "Role": {
                "Type": "AWS::IAM::Role",
                "Properties": {
                    "AssumeRolePolicyDocument": {
                        "Statement": [
                            {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": "*"}
                        ]
                    },
                    "Policies": [{"PolicyName": "p", "PolicyDocument": wide}],
                },
            },
            "Queue": {"Type": "AWS::SQS::QueuePolicy", "Properties": {"PolicyDocument": wide}},
            "Key": {"Type": "AWS::KMS::Key", "Properties": {"KeyPolicy": wide}},
        }
    }
    assert [(s.owner, s.kind) for s in statements(template)] == [
        ("Role", "trust"),
        ("Role", "identity"),
        ("Queue", "resource"),
        ("Key", "resource"),
    ]
    found = [str(finding) for finding in permissions.permission_findings(template)]
    for owner in ("Role", "Queue", "Key"):
        assert f"permissions: {owner}: trusts everyone without a condition" in " ".join(found)


@pytest.mark.parametrize(
    ("resource", "check", "said"),
    [
        ({"Type": "AWS::S3::Bucket"}, stateful.retention_findings, "DeletionPolicy is 'Delete'"),
        (
            {"Type": "AWS::KMS::Key", "DeletionPolicy": "Retain"},
            stateful.retention_findings,
            "UpdateReplacePolicy is 'Delete'",
        ),
        ({"Type": "Custom::Thing"}, stateful.custom_resource_findings, "is a Custom::Thing"),
        ({"Type": "AWS::MSK::Cluster"}, idle.idle_findings, "nobody said what it costs"),
        (
            {"Type": "AWS::AutoScaling::AutoScalingGroup", "Properties": {"MinSize": "1"}},
            idle.idle_findings,
            "starts with instances",
        ),
        (
            {"Type": "AWS::SNS::Topic", "Properties": {"X": "arn:aws:sns:a:b:c"}},
            stateful.literal_findings,
            "holds the literal 'arn:aws:'",
        ),
        (
            {"Type": "AWS::SNS::Topic", "Properties": {"X": "AKIA" + "A" * 16}},
            stateful.literal_findings,
            "holds AKIA",
        ),
    ],
)
def test_what_must_not_be_in_a_template_is_found(resource, check, said):
    assert said in str(check({"Resources": {"R": resource}})[0])


def nag_assembly(folder: Path, reason: str, *, used: bool) -> Assembly:
    entry = {
        "ruleName": "AwsSolutions-S1",
        "description": "d",
        "violatingConstructs": [{"constructPath": "S/B/Resource"}],
    }
    rule = "AwsSolutions::AwsSolutions-S1"
    known = [{**entry, "acknowledgedId": rule, "acknowledgedAt": "S/B", "reason": reason}]
    plugin = {"pluginName": "AwsSolutions", "suppressedViolations": known if used else []}
    report = {"pluginReports": [{**plugin, "violations": [] if used else [entry]}]}
    (folder / "validation-report.json").write_text(json.dumps(report))
    metadata = {"/S/B": [{"type": "aws:cdk:acknowledged-rules", "data": {rule: reason}}]}
    (folder / "S.metadata.json").write_text(json.dumps(metadata))
    return Assembly(folder, "S")


SENTENCE = "Access logs of this bucket would be longer than its objects."


def test_an_acknowledgement_with_a_reason_is_enough(tmp_path):
    assembly = nag_assembly(tmp_path, SENTENCE, used=True)
    assert nag.nag_findings(assembly) == nag.acknowledgement_findings(assembly) == []


@pytest.mark.parametrize("reason", ["", "x", "because", "no full stop at the end of this sentence"])
def test_a_reason_is_a_sentence(tmp_path, reason):
    found = nag.acknowledgement_findings(nag_assembly(tmp_path, reason, used=True))
    assert "is no sentence" in str(found[0])


def test_a_stale_acknowledgement_is_found(tmp_path):
    assembly = nag_assembly(tmp_path, SENTENCE, used=False)
    assert "nothing breaks the acknowledged" in str(nag.acknowledgement_findings(assembly)[0])
    assert "AwsSolutions-S1" in str(nag.nag_findings(assembly)[0])


def test_a_pack_that_did_not_run_is_no_pass(tmp_path):
    with pytest.raises(ValueError, match="left no report"):
        nag.nag_findings(Assembly(tmp_path, "S"))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"Ref": "A"}, "<A>"),
        ({"Fn::GetAtt": ["A", "Arn"]}, "<A.Arn>"),
        ({"Fn::Sub": "x${A.Arn}/${!literal}"}, "x<A.Arn>/${literal}"),
        ({"Fn::Join": ["-", ["a", {"Ref": "B"}, 1]]}, "a-<B>-1"),
        ({"Fn::Select": [0, {"Fn::GetAZs": ""}]}, "<select 0 of <GetAZs >>"),
    ],
)
def test_functions_as_text(value, said):
    assert text(value) == said
    assert plain({"k": [value]}) == {"k": [said]}
