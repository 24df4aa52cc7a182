"""The run store: what moto drops or does not enforce is asserted on the template."""

from __future__ import annotations

from fnmatch import fnmatchcase

import aws_cdk as cdk
import pytest
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_s3 as s3

from luma_constructs import PropError, RunStore
from tests.support.cdk import synthesized
from tests.unit.constructs.compute import stacks
from tests.unit.constructs.compute.policies import listed, statements_of


@pytest.fixture(scope="module")
def plain():
    return synthesized(stacks.fleets)


@pytest.fixture(scope="module")
def own():
    return synthesized(stacks.own_everything)


def only(assembly, kind):
    (resource,) = assembly.of_type(kind).values()
    return resource


def test_the_bucket_is_private_versioned_encrypted_and_kept(plain):
    bucket = only(plain, "AWS::S3::Bucket")
    assert bucket["DeletionPolicy"] == bucket["UpdateReplacePolicy"] == "Retain"
    properties = bucket["Properties"]
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
    assert properties["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]
    (rule,) = properties["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    assert "BucketName" not in properties


def test_nothing_in_the_bucket_expires_but_old_versions_and_unfinished_uploads(plain):
    (rule,) = only(plain, "AWS::S3::Bucket")["Properties"]["LifecycleConfiguration"]["Rules"]
    assert rule.pop("Id")
    assert rule == {
        "Status": "Enabled",
        "NoncurrentVersionExpiration": {"NoncurrentDays": 7},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
        "ExpiredObjectDeleteMarker": True,
    }


def test_the_bucket_refuses_plain_http_and_old_tls(plain):
    document = only(plain, "AWS::S3::BucketPolicy")["Properties"]["PolicyDocument"]
    denied = [s["Condition"] for s in document["Statement"] if s["Effect"] == "Deny"]
    assert {"Bool": {"aws:SecureTransport": "false"}} in denied
    assert {"NumericLessThan": {"s3:TlsVersion": 1.2}} in denied


def test_the_table_has_the_contract_s_keys_recovery_expiry_and_is_kept(plain):
    table = only(plain, "AWS::DynamoDB::Table")
    assert table["DeletionPolicy"] == table["UpdateReplacePolicy"] == "Retain"
    properties = table["Properties"]
    assert properties["KeySchema"] == [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ]
    assert {a["AttributeType"] for a in properties["AttributeDefinitions"]} == {"S"}
    assert properties["BillingMode"] == "PAY_PER_REQUEST"
    assert properties["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] is True
    assert properties["TimeToLiveSpecification"] == {
        "AttributeName": "expires_at",
        "Enabled": True,
    }
    assert properties["SSESpecification"]["SSEEnabled"] is True
    assert properties["DeletionProtectionEnabled"] is True
    assert "TableName" not in properties


def test_logical_ids_of_data_never_change(plain):
    assert list(plain.of_type("AWS::S3::Bucket")) == ["StoreBucket4FBDE984"]
    assert list(plain.of_type("AWS::DynamoDB::Table")) == ["StoreTable0CCFA19B"]


def test_the_customer_s_key_encrypts_bucket_table_and_queues(own):
    (rule,) = only(own, "AWS::S3::Bucket")["Properties"]["BucketEncryption"][
        "ServerSideEncryptionConfiguration"
    ]
    assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "aws:kms"
    assert rule["BucketKeyEnabled"] is True
    key = rule["ServerSideEncryptionByDefault"]["KMSMasterKeyID"]
    assert only(own, "AWS::DynamoDB::Table")["Properties"]["SSESpecification"] == {
        "SSEEnabled": True,
        "SSEType": "KMS",
        "KMSMasterKeyId": key,
    }
    queues = own.of_type("AWS::SQS::Queue").values()
    assert {str(q["Properties"]["KmsMasterKeyId"]) for q in queues} == {str(key)}


def test_who_uses_the_customer_s_key_may_open_and_no_more_than_make_data_keys(own):
    actions = [
        action
        for statement in statements_of(own, "Role")
        for action in statement["Action"]
        if action.startswith("kms:")
    ]
    assert set(actions) == {"kms:Decrypt", "kms:GenerateDataKey"}


def test_a_node_deletes_nothing_but_checkpoints(plain):
    deletes = [s for s in statements_of(plain, "SpotRole") if "s3:DeleteObject" in s["Action"]]
    (statement,) = deletes
    assert "/runs/*/checkpoints/*" in str(statement["Resource"])


def readable(assembly, role):
    """Patterns of objects that a role reads, without the bucket."""
    return {
        str(resource).rpartition("'/")[2].rstrip("]}'")
        for statement in statements_of(assembly, role)
        if "s3:GetObject" in statement["Action"]
        for resource in listed(statement["Resource"])
        if "StoreBucket" in str(resource)
    }


def test_keys_of_connections_weights_and_data_are_for_nodes_alone(plain):
    assert readable(plain, "SpotRole") == {"runs/*"}
    for role in ("Machine", "Engineer"):
        patterns = readable(plain, role)
        assert "runs/*/certificate.json" in patterns
        for key in ("runs/a/tls/key.pem", "runs/a/data/0.bin", "runs/a/model/model.safetensors"):
            assert not [p for p in patterns if fnmatchcase(key, p)]


@pytest.mark.parametrize(
    ("role", "writes", "keys"),
    [
        ("SpotRole", True, ["RUN#*", "NODE#*"]),
        ("Machine", False, ["RUN#*", "NODE#*", "EVENT#*", "FLEET#*"]),
        ("Engineer", True, ["RUN#*"]),
    ],
)
def test_items_are_limited_by_their_partition_key(plain, role, writes, keys):
    found = [
        s
        for s in statements_of(plain, role)
        if any(a.startswith("dynamodb:") for a in s["Action"])
        and any(a in s["Action"] for a in ("dynamodb:PutItem",)) is writes
    ]
    assert found
    condition = {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": keys}}
    assert [s["Condition"] for s in found] == [condition] * len(found)


def test_readers_of_runs_cannot_read_the_data_keys_of_runs(plain):
    text = str([s for s in statements_of(plain, "Machine") if "ssm:GetParameter" in s["Action"]])
    assert ":parameter/luma/Luma/*" in text
    assert "luma-keys" not in text
    for role in ("SpotRole", "Engineer"):
        assert ":parameter/luma-keys/Luma/*" in str(statements_of(plain, role))


@pytest.mark.parametrize("name", ["", "1abc", "a b", "a/b", "x" * 129])
def test_a_deployment_s_name_has_a_form(name):
    stack = cdk.Stack(cdk.App(), "Luma")
    if name == "":
        assert RunStore(stack, "S", deployment_name=name).deployment_name == "Luma"
        return
    with pytest.raises(PropError, match=r"RunStore 'Luma/S': deployment_name: .*; expected 1 to"):
        RunStore(stack, "S", deployment_name=name)


def test_a_name_that_is_not_known_at_synth_is_refused():
    stack = cdk.Stack(cdk.App(), "Luma")
    with pytest.raises(PropError, match="give deployment_name where the stack's name is a token"):
        RunStore(stack, "S", deployment_name=cdk.Aws.STACK_NAME)


def test_access_logs_belong_to_the_new_bucket():
    stack = cdk.Stack(cdk.App(), "Luma")
    logs = s3.Bucket(stack, "Logs")
    made = RunStore(stack, "New", access_logs_bucket=logs)
    assert isinstance(made.bucket, s3.Bucket)
    with pytest.raises(PropError, match=r"access_logs_bucket: .*set access logs on that bucket"):
        RunStore(stack, "Old", bucket=logs, access_logs_bucket=logs)


def test_data_that_may_go_is_not_protected():
    stack = cdk.Stack(cdk.App(), "Luma")
    RunStore(stack, "S", removal_policy=cdk.RemovalPolicy.DESTROY)
    table = stack.node.find_child("S").table.node.default_child
    assert table.deletion_protection_enabled is False
    assert table.cfn_options.deletion_policy == cdk.CfnDeletionPolicy.DELETE


def test_an_imported_store_makes_no_resource():
    stack = cdk.Stack(cdk.App(), "Luma")
    store = RunStore.from_run_store_attributes(
        stack, "S",
        bucket=s3.Bucket.from_bucket_name(stack, "B", "runs-of-old"),
        table=dynamodb.Table.from_table_name(stack, "T", "runs-of-old"),
        deployment_name="Old",
    )  # fmt: skip
    assert store.deployment_name == "Old"
    assert not [c for c in stack.node.find_all() if isinstance(c, cdk.CfnResource)]
