"""A node finds out where it belongs, or says what is missing."""

from __future__ import annotations

import json

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from runtime.agent.node import records
from runtime.agent.node.imds import Imds
from runtime.agent.node.place import find_place
from runtime.spec.aws import AwsError
from runtime.spec.errors import LumaError, RunError, SpecError
from tests.emulator.imds import FakeImds, Metadata

REGION = "us-east-1"
CONFIG = {
    "schema": "luma/account/1",
    "stack": "Luma",
    "region": REGION,
    "bucket": "b",
    "table": "t",
    "jobs_machine": "m",
    "failover_machine": None,
    "topic": None,
    "coordinator_fleet": "coordinator",
    "compiler_queue": "https://compiler-queue",
    "compiler_fleet": "compiler",
    "compiler_asg": "compiler-group",
}
FLEET = {
    "fleet": "spot",
    "target": "cpu",
    "chips": 1,
    "queue": "https://spot-queue",
    "asg": "no-such-group",
    "purchase": "spot",
    "instance_types": ["c7i.large"],
    "order": 0,
    "usd_per_hour": 0.25,
}


@pytest.fixture
def imds():
    metadata = Metadata(instance_id="i-1", instance_type="c7i.large", region=REGION, zone="z")
    with FakeImds(metadata) as service:
        yield Imds(service.endpoint)


@pytest.fixture
def node(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    for name, value in (("LUMA_STACK", "Luma"), ("LUMA_FLEET", "spot"), ("AWS_REGION", REGION)):
        monkeypatch.setenv(name, value)
    with mock_aws():
        ssm = boto3.client("ssm", region_name=REGION)
        for name, value in (("config", CONFIG), ("fleets/spot", FLEET)):
            ssm.put_parameter(Name=f"/luma/Luma/{name}", Value=json.dumps(value), Type="String")
        yield monkeypatch


def test_a_fleets_node_finds_its_queue_and_target(node, imds, tmp_path):
    place = find_place(imds, tmp_path)
    assert (place.queue, place.target, place.usd_per_hour) == ("https://spot-queue", "cpu", 0.25)
    assert (place.identity.instance, place.table.name, place.bucket.name) == ("i-1", "t", "b")


@pytest.mark.parametrize(
    ("code", "raised"), [(None, False), ("ValidationError", False), ("AccessDenied", True)]
)
def test_the_group_is_told_that_the_node_has_left(node, imds, tmp_path, code, raised):
    place, asked = find_place(imds, tmp_path), []

    class Groups:
        def complete_lifecycle_action(self, **fields):
            asked.append(fields)
            if code is not None:
                answer = {"Error": {"Code": code, "Message": "no one waits"}}
                raise ClientError(answer, "CompleteLifecycleAction")

    node.setattr(records, "aws_client", lambda service, region: Groups())
    if raised:
        with pytest.raises(AwsError, match="denied"):
            records.complete_lifecycle(place)
    else:  # a group that waits for nobody answers with a ValidationError
        records.complete_lifecycle(place)
    assert asked == [
        {
            "LifecycleHookName": "luma-drain",
            "AutoScalingGroupName": "no-such-group",
            "LifecycleActionResult": "CONTINUE",
            "InstanceId": "i-1",
        }
    ]


def test_the_compilers_host_finds_its_queue_in_the_configuration(node, imds, tmp_path):
    node.setenv("LUMA_FLEET", "compiler")
    place = find_place(imds, tmp_path)
    assert (place.queue, place.target) == ("https://compiler-queue", None)
    assert place.asg == "compiler-group"


@pytest.mark.parametrize(
    ("variable", "value", "kind", "said"),
    [
        ("LUMA_STACK", "", SpecError, "LUMA_STACK is not set"),
        ("LUMA_FLEET", "", SpecError, "LUMA_FLEET is not set"),
        ("LUMA_STACK", "a/b", SpecError, "no stack's name"),
        ("LUMA_STACK", "Other", AwsError, "/luma/Other/config"),
        ("LUMA_FLEET", "other", AwsError, "/luma/Luma/fleets/other"),
        ("AWS_REGION", "eu-west-1", RunError, "this instance is in us-east-1"),
    ],
)
def test_what_is_missing_is_named(node, imds, tmp_path, variable, value, kind, said):
    node.setenv(variable, value)
    with pytest.raises(kind, match=said) as refused:
        find_place(imds, tmp_path)
    assert isinstance(refused.value, LumaError)
