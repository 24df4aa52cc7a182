"""The inference service on the template: load balancer, health, scaling, permissions, refusals."""

from __future__ import annotations

import shlex

import aws_cdk as cdk
import pytest
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_s3 as s3
from aws_cdk.assertions import Match, Template

from luma_constructs import InferenceFront, InferenceService, PropError, Purchase, RunStore
from tests.support.cdk import synthesized
from tests.unit.constructs.compute import stacks
from tests.unit.constructs.compute.policies import all_statements, statements_of
from tests.unit.constructs.compute.test_accelerator_fleet import one, templates, text_of

ELB = "AWS::ElasticLoadBalancingV2::"


@pytest.fixture(scope="module")
def service():
    return synthesized(stacks.inference)


def test_the_load_balancer_is_inside_of_the_vpc(service):
    balancer = one(service, f"{ELB}LoadBalancer", "Chat")
    assert balancer["Scheme"] == "internal"
    assert all("Private" in ref["Ref"] for ref in balancer["Subnets"])


def test_only_whom_the_author_allows_may_connect(service):
    sources = [
        rule.get("CidrIp")
        for group in service.of_type("AWS::EC2::SecurityGroup").values()
        for rule in group["Properties"].get("SecurityGroupIngress", [])
    ]
    assert sources == ["10.0.0.0/16"]
    for rule in service.of_type("AWS::EC2::SecurityGroupIngress").values():
        source = rule["Properties"]["SourceSecurityGroupId"]["Fn::GetAtt"][0]
        assert source.startswith("ChatFrontLoadBalancer")
        assert rule["Properties"]["FromPort"] == rule["Properties"]["ToPort"] == 8000


def test_readiness_is_asked_and_answers_in_flight_get_their_time(service):
    group = one(service, f"{ELB}TargetGroup", "Chat")
    assert (group["HealthCheckPath"], group["Matcher"]) == ("/ready", {"HttpCode": "200"})
    assert (group["HealthCheckIntervalSeconds"], group["UnhealthyThresholdCount"]) == (5, 2)
    attributes = {a["Key"]: a["Value"] for a in group["TargetGroupAttributes"]}
    assert attributes["deregistration_delay.timeout_seconds"] == "90"
    assert attributes["load_balancing.algorithm.type"] == "least_outstanding_requests"


def test_the_group_keeps_its_least_and_follows_requests_in_flight(service):
    group = one(service, "AWS::AutoScaling::AutoScalingGroup", "Chat")
    assert (group["MinSize"], group["MaxSize"]) == ("1", "4")
    assert "DesiredCapacity" not in group
    assert (group["HealthCheckType"], group["HealthCheckGracePeriod"]) == ("ELB", 600)
    assert group["CapacityRebalance"] is True
    policy = one(service, "AWS::AutoScaling::ScalingPolicy", "Chat")
    tracking = policy["TargetTrackingConfiguration"]
    metric = tracking["CustomizedMetricSpecification"]
    assert (metric["Namespace"], metric["MetricName"]) == ("Luma", "InFlight")
    assert (metric["Statistic"], tracking["TargetValue"]) == ("Average", 16)
    (dimension,) = metric["Dimensions"]
    assert f"--service {dimension['Value']} " in script_of(service)


def script_of(service):
    (template,) = templates(service, "ChatTemplate")
    return text_of(template["UserData"])


def test_user_data_serves_the_run_s_export_and_holds_no_secret(service):
    (line,) = [line for line in script_of(service).splitlines() if "serve_host.sh" in line]
    words = shlex.split(line)[2:]
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--model"].endswith(">/runs/tiny/export/")
    assert options["--name"] == "tiny-llama"
    assert options["--port"] == "8000"
    assert options["--secret"].startswith("<ChatApiKey")  # the secret's ARN, not its value
    assert "resolve:secretsmanager" not in script_of(service)


def test_the_role_reads_one_export_and_one_key_and_leaves_one_group(service):
    actions = sorted({a for s in statements_of(service, "ChatRole") for a in s["Action"]})
    assert actions == [
        "cloudwatch:PutMetricData",
        "elasticloadbalancing:DeregisterTargets",
        "s3:GetObject",
        "s3:ListBucket",
        "secretsmanager:GetSecretValue",
    ]
    text = str(statements_of(service, "ChatRole"))
    assert "/runs/tiny/export/*" in text
    assert "/runs/*" not in text
    for statement in all_statements(service):
        assert statement["Resource"] != ["*"] or statement["Condition"]


def test_imdsv2_and_encryption_as_on_nodes(service):
    (template,) = templates(service, "ChatTemplate")
    assert template["MetadataOptions"]["HttpTokens"] == "required"
    assert template["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert template["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True


@pytest.fixture
def scope():
    stack = cdk.Stack(cdk.App(), "Luma")
    return stack, {"vpc": ec2.Vpc(stack, "Vpc"), "store": RunStore(stack, "Store")}


GOOD = {"run": "tiny", "target": "cuda-sm89"}

WRONG = {
    "a run": ({"run": "Tiny"}, "run: 'Tiny'; expected a run's name"),
    "a model": ({"model_name": "a b"}, "model_name: 'a b'; expected 1 to 96"),
    "a target": ({"target": "l4"}, "target: 'l4'; expected one of cpu"),
    "an external target": ({"target": "tpu-v5e"}, "join such hosts with ExternalFleet"),
    "a least above the most": (
        {"min_capacity": 5},
        r"min_capacity: 5; expected at most max_capacity \(4\)",
    ),
    "no instance": ({"min_capacity": 0, "max_capacity": 0}, "max_capacity: 0; expected a whole"),
    "no request": ({"target_in_flight": 0}, "target_in_flight: 0; expected a whole number from 1"),
    "a mix of nothing": ({"purchase": Purchase.mixed()}, "use Purchase.spot"),
    "a type": (
        {"instance_types": [ec2.InstanceType("p5.48xlarge")]},
        "instance_types: 'p5.48xlarge'; expected a type that runs cuda-sm89",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_props_are_refused_before_any_resource(case, scope):
    stack, shared = scope
    wrong, message = WRONG[case]
    with pytest.raises(PropError, match=message):
        InferenceService(stack, "Chat", **{**shared, **GOOD, **wrong})
    left = stack.node.find_child("Chat").node.find_all()
    assert not [c for c in left if isinstance(c, cdk.CfnResource)]


def test_with_a_certificate_it_speaks_https_alone(scope):
    stack, shared = scope
    arn = "arn:aws:acm:us-east-1:111122223333:certificate/1234"
    certificate = acm.Certificate.from_certificate_arn(stack, "Certificate", arn)
    service = InferenceService(stack, "Chat", certificate=certificate, **GOOD, **shared)
    assert service.listener_port == 443
    assert stack.resolve(service.url)["Fn::Join"][1][0] == "https://"
    template = Template.from_stack(stack)
    template.resource_count_is(f"{ELB}Listener", 1)
    template.has_resource_properties(
        f"{ELB}Listener",
        {
            "Port": 443,
            "Protocol": "HTTPS",
            "Certificates": [{"CertificateArn": arn}],
            "SslPolicy": Match.string_like_regexp("TLS13"),
        },
    )


def test_an_existing_group_is_put_behind_a_front_of_its_own(scope):
    stack, shared = scope
    group = autoscaling.AutoScalingGroup(
        stack, "Group", vpc=shared["vpc"], instance_type=ec2.InstanceType("m7i.large"),
        machine_image=ec2.MachineImage.latest_amazon_linux2023(),
    )  # fmt: skip
    front = InferenceFront(stack, "Front", vpc=shared["vpc"], port=9000)
    front.add_group(group)
    template = Template.from_stack(stack)
    template.resource_count_is("AWS::AutoScaling::AutoScalingGroup", 1)
    template.has_resource_properties(
        "AWS::AutoScaling::AutoScalingGroup", {"TargetGroupARNs": Match.any_value()}
    )
    template.has_resource_properties(
        f"{ELB}TargetGroup", {"Port": 9000, "HealthCheckPath": "/ready"}
    )
    template.has_resource_properties(
        "AWS::EC2::SecurityGroupIngress", {"FromPort": 9000, "ToPort": 9000, "IpProtocol": "tcp"}
    )


def test_access_logs_need_a_region(scope):
    stack, shared = scope
    with pytest.raises(PropError, match=r"access_logs_bucket: .*pass env=cdk.Environment"):
        InferenceFront(
            stack, "Front", vpc=shared["vpc"], access_logs_bucket=s3.Bucket(stack, "Logs")
        )
    env = cdk.Environment(account="111122223333", region="eu-west-1")
    stack = cdk.Stack(cdk.App(), "Luma", env=env)
    vpc = ec2.Vpc.from_vpc_attributes(
        stack, "Vpc", vpc_id="vpc-1", availability_zones=["a", "b"],
        private_subnet_ids=["subnet-1", "subnet-2"],
    )  # fmt: skip
    InferenceFront(stack, "Front", vpc=vpc, access_logs_bucket=s3.Bucket(stack, "Logs"))
    (balancer,) = Template.from_stack(stack).find_resources(f"{ELB}LoadBalancer").values()
    attributes = {a["Key"]: a["Value"] for a in balancer["Properties"]["LoadBalancerAttributes"]}
    assert attributes["access_logs.s3.enabled"] == "true"


@pytest.mark.parametrize("port", [0, 65536])
def test_a_port_is_a_port(port, scope):
    stack, shared = scope
    with pytest.raises(PropError, match=f"port: {port}; expected a whole number from 1 to 65535"):
        InferenceFront(stack, "Front", vpc=shared["vpc"], port=port)


@pytest.mark.parametrize(
    ("method", "name", "statistic"),
    [
        ("metric_in_flight", "InFlight", "Average"),
        ("metric_errors", "HTTPCode_Target_5XX_Count", "Sum"),
        ("metric_response_time", "TargetResponseTime", "p95"),
    ],
)
def test_metrics_have_the_statistic_that_fits_them(scope, method, name, statistic):
    stack, shared = scope
    service = InferenceService(stack, "Chat", **GOOD, **shared)
    metric = getattr(service, method)()
    assert (metric.metric_name, metric.statistic) == (name, statistic)
    assert metric.period.to_seconds() == 60
