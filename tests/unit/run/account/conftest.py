"""A stack's stores and groups in moto, in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from moto import mock_aws

from runtime.run.account.stack import Stack, open_stack

REGION = "us-east-1"


@dataclass
class Cloud:
    """The emulated account of one test."""

    group: str = "group-a"
    image: str = "ami-12c6146b"

    def client(self, service: str) -> Any:
        return boto3.client(service, region_name=REGION)

    def stack(self) -> Stack:
        return open_stack("Luma", region=REGION)

    def instance(self, **tags: str) -> str:
        answer = self.client("ec2").run_instances(
            ImageId=self.image,
            InstanceType="c7i.large",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[
                {
                    "ResourceType": "instance",
                    "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
                }
            ],
        )
        return answer["Instances"][0]["InstanceId"]

    def desired(self) -> int:
        answer = self.client("autoscaling").describe_auto_scaling_groups(
            AutoScalingGroupNames=[self.group]
        )
        return answer["AutoScalingGroups"][0]["DesiredCapacity"]


@pytest.fixture
def cloud(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        made = Cloud()
        made.client("s3").create_bucket(Bucket="runs")
        made.client("dynamodb").create_table(
            TableName="runs",
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
        _group(made)
        _parameters(made)
        yield made


def _group(cloud: Cloud) -> None:
    scaling = cloud.client("autoscaling")
    scaling.create_launch_configuration(
        LaunchConfigurationName="hosts", ImageId=cloud.image, InstanceType="c7i.large"
    )
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=cloud.group,
        LaunchConfigurationName="hosts",
        MinSize=0,
        MaxSize=4,
        DesiredCapacity=0,
        AvailabilityZones=[f"{REGION}a"],
        Tags=[
            {
                "ResourceId": cloud.group,
                "Key": key,
                "Value": value,
                "PropagateAtLaunch": True,
                "ResourceType": "auto-scaling-group",
            }
            for key, value in (("luma:deployment", "Luma"), ("luma:fleet", "a"))
        ],
    )


def _parameters(cloud: Cloud) -> None:
    config = {
        "schema": "luma/account/1",
        "stack": "Luma",
        "region": REGION,
        "bucket": "runs",
        "table": "runs",
        "jobs_machine": "arn:aws:states:us-east-1:123456789012:stateMachine:jobs",
        "failover_machine": None,
        "topic": None,
        "coordinator_fleet": "coordinator",
        "compiler_queue": None,
        "compiler_fleet": None,
    }
    fleet = {
        "fleet": "a",
        "target": "cpu",
        "chips": 1,
        "queue": "https://queue",
        "asg": cloud.group,
        "purchase": "spot",
        "instance_types": ["c7i.large"],
        "order": 0,
        "usd_per_hour": 0.5,
    }
    ssm = cloud.client("ssm")
    for name, value in (("config", config), ("fleets/a", fleet)):
        ssm.put_parameter(Name=f"/luma/Luma/{name}", Value=json.dumps(value), Type="String")
