"""What a deployment costs while nothing runs, from its template.

Every type of resource has a price here, most of them nothing: a type that is not listed is a finding,
so that nobody adds a cost without saying so. List prices of us-east-1 in 2026, without free tiers and
without the data that buckets, tables and logs hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.e2e.synth.findings import Finding

CHECK = "idle cost"
HOURS = 730
"""Hours of a month, as AWS's calculator counts them."""

USD_PER_HOUR = {
    "AWS::EC2::NatGateway": 0.045,
    "AWS::EC2::EIP": 0.005,
    "AWS::ElasticLoadBalancingV2::LoadBalancer": 0.0225,
}
"""Types that cost by the hour, whether they are used or not."""

USD_PER_MONTH = {
    "AWS::CloudWatch::Dashboard": 3.0,
    "AWS::CloudWatch::Alarm": 0.10,  # for each metric that it reads
    "AWS::KMS::Key": 1.0,
    "AWS::SecretsManager::Secret": 0.40,
}
"""Types that cost by the month."""

NOTHING = {
    # groups have no instance, and their metrics are free
    "AWS::AutoScaling::AutoScalingGroup", "AWS::AutoScaling::LifecycleHook",
    "AWS::AutoScaling::ScalingPolicy", "AWS::EC2::LaunchTemplate", "AWS::EC2::PlacementGroup",
    # a budget without actions
    "AWS::Budgets::Budget",
    # for what they hold, and for requests
    "AWS::DynamoDB::Table", "AWS::S3::Bucket", "AWS::S3::BucketPolicy", "AWS::Logs::LogGroup",
    "AWS::SQS::Queue", "AWS::SQS::QueuePolicy", "AWS::SNS::Topic", "AWS::SNS::TopicPolicy",
    "AWS::SNS::Subscription", "AWS::StepFunctions::StateMachine", "AWS::Events::Rule",
    # standard parameters, documents
    "AWS::SSM::Parameter", "AWS::SSM::Document",
    "AWS::IAM::InstanceProfile", "AWS::IAM::Policy", "AWS::IAM::Role",
    "AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::EC2::RouteTable", "AWS::EC2::Route",
    "AWS::EC2::SubnetRouteTableAssociation", "AWS::EC2::InternetGateway",
    "AWS::EC2::VPCGatewayAttachment", "AWS::EC2::SecurityGroup",
    "AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress",
    "AWS::EC2::FlowLog", "AWS::ElasticLoadBalancingV2::Listener",
    "AWS::ElasticLoadBalancingV2::TargetGroup", "AWS::CDK::Metadata",
}  # fmt: skip
"""Types that cost nothing idle."""


def costs(template: Mapping[str, Any]) -> dict[str, float]:
    """Give USD a month by type of resource, for the types that cost something."""
    found: dict[str, float] = {}
    for resource in template["Resources"].values():
        price = _price(resource)
        if price:
            found[resource["Type"]] = found.get(resource["Type"], 0.0) + price
    return found


def idle_findings(template: Mapping[str, Any]) -> list[Finding]:
    """Types whose idle cost nobody has said, and groups that start with instances."""
    known = NOTHING | set(USD_PER_HOUR) | set(USD_PER_MONTH) | {"AWS::EC2::VPCEndpoint"}
    found = [
        Finding(CHECK, name, f"is a {resource['Type']}, of which nobody said what it costs",
                "add the type to idle.py, and to docs/how-to/deploy.md where it costs something")
        for name, resource in template["Resources"].items()
        if resource["Type"] not in known
    ]  # fmt: skip
    for name, resource in template["Resources"].items():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::AutoScaling::AutoScalingGroup" and (
            properties.get("MinSize") != "0" or properties.get("DesiredCapacity", "0") != "0"
        ):
            found.append(Finding(CHECK, name, "starts with instances", "let it start with none"))
    return found


def _price(resource: Mapping[str, Any]) -> float:
    kind, properties = resource["Type"], resource.get("Properties", {})
    if kind == "AWS::EC2::VPCEndpoint" and properties.get("VpcEndpointType") != "Gateway":
        return 0.01 * HOURS * max(1, len(properties.get("SubnetIds", [])))
    if kind == "AWS::CloudWatch::Alarm":
        read = [metric for metric in properties.get("Metrics", []) if "MetricStat" in metric]
        return USD_PER_MONTH[kind] * max(1, len(read))
    return USD_PER_MONTH.get(kind, USD_PER_HOUR.get(kind, 0.0) * HOURS)
