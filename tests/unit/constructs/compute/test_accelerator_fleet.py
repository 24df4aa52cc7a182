"""Fleets on the template: capacity, launch templates, queues, roles, parameters."""

from __future__ import annotations

import hashlib
import json

import aws_cdk as cdk
import pytest

from luma_constructs.runtime_asset import runtime_bytes
from runtime.spec.account import Fleet
from tests.support.cdk import ROOT, Assembly, synthesized
from tests.unit.constructs.compute import stacks
from tests.unit.constructs.compute.policies import all_statements, listed, statements_of

GROUP = "AWS::AutoScaling::AutoScalingGroup"
TEMPLATE = "AWS::EC2::LaunchTemplate"


@pytest.fixture(scope="module")
def plain():
    return synthesized(stacks.fleets)


@pytest.fixture(scope="module")
def own():
    return synthesized(stacks.own_everything)


def one(assembly, kind, prefix):
    (found,) = [r for name, r in assembly.of_type(kind).items() if name.startswith(prefix)]
    return found["Properties"]


def templates(assembly, prefix=""):
    found = assembly.of_type(TEMPLATE).items()
    return [r["Properties"]["LaunchTemplateData"] for name, r in found if name.startswith(prefix)]


def text_of(value):
    """A value with its references as `<LogicalId>` or `<LogicalId.Attribute>`."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(text_of, value))
    ((function, argument),) = value.items()
    if function == "Fn::Join":
        return argument[0].join(map(text_of, argument[1]))
    if function == "Fn::GetAtt":
        return f"<{'.'.join(argument)}>"
    return f"<{argument}>" if function == "Ref" else text_of(argument)


# --------------------------------------------------------------------------- size


@pytest.mark.parametrize("fleet", ["Spot", "Mixed", "OnDemand", "Efa", "Block", "Coordinator"])
def test_the_template_never_states_a_size_that_a_deployment_would_reset(plain, fleet):
    group = one(plain, GROUP, f"{fleet}Group")
    assert group["MinSize"] == "0"
    assert "DesiredCapacity" not in group
    (resource,) = [r for n, r in plain.of_type(GROUP).items() if n.startswith(f"{fleet}Group")]
    scheduled = resource["UpdatePolicy"]["AutoScalingScheduledAction"]
    assert scheduled == {"IgnoreUnmodifiedGroupSizeProperties": True}


def test_max_capacity_is_the_author_s(plain):
    assert one(plain, GROUP, "MixedGroup")["MaxSize"] == "3"
    assert one(plain, GROUP, "CoordinatorGroup")["MaxSize"] == "1"


def test_instances_go_to_private_subnets_of_every_zone(plain):
    private = [n for n in plain.of_type("AWS::EC2::Subnet") if "Private" in n]
    zones = [r["Ref"] for r in one(plain, GROUP, "SpotGroup")["VPCZoneIdentifier"]]
    assert sorted(zones) == sorted(private)
    assert len(zones) > 1


# ------------------------------------------------------------------------ purchase


@pytest.mark.parametrize(
    ("fleet", "base", "percent", "rebalance"),
    [
        ("Spot", 0, 0, True),
        ("Mixed", 1, 25, True),
        ("OnDemand", 0, 100, None),
        ("Coordinator", 0, 100, None),
    ],
)
def test_how_instances_are_bought_is_always_stated(plain, fleet, base, percent, rebalance):
    group = one(plain, GROUP, f"{fleet}Group")
    assert group["MixedInstancesPolicy"]["InstancesDistribution"] == {
        "OnDemandAllocationStrategy": "lowest-price",
        "OnDemandBaseCapacity": base,
        "OnDemandPercentageAboveBaseCapacity": percent,
        "SpotAllocationStrategy": "price-capacity-optimized",
    }
    assert group.get("CapacityRebalance") is rebalance


def test_a_capacity_block_is_one_type_without_a_mixed_policy(plain):
    group = one(plain, GROUP, "BlockGroup")
    assert "MixedInstancesPolicy" not in group
    assert group["LaunchTemplate"]["LaunchTemplateId"]["Ref"].startswith("BlockTemplate")
    (template,) = templates(plain, "BlockTemplate")
    assert template["InstanceType"] == "trn2.48xlarge"
    assert template["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert template["CapacityReservationSpecification"] == {
        "CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}
    }


def test_the_other_fleets_reserve_nothing(plain):
    for template in templates(plain):
        if template.get("InstanceType") != "trn2.48xlarge":
            assert "InstanceMarketOptions" not in template
            assert "CapacityReservationSpecification" not in template


def overrides(assembly, fleet):
    policy = one(assembly, GROUP, f"{fleet}Group")["MixedInstancesPolicy"]
    return policy["LaunchTemplate"]["Overrides"]


def catalogue():
    text = (ROOT / "runtime/spec/accelerators.json").read_text()
    return {row["name"]: row for row in json.loads(text)["accelerators"]}


def test_many_listed_types_with_one_such_chip_may_be_taken(plain):
    rows = catalogue()
    names = [o["InstanceType"] for o in overrides(plain, "Spot")]
    assert len(names) >= 6
    assert {rows[name]["compile_target"] for name in names} == {"cuda-sm89"}
    assert {rows[name]["count"] for name in names} == {1}
    for chip in {rows[name]["chip"] for name in names}:
        prices = [rows[n]["usd_per_hour_on_demand"] for n in names if rows[n]["chip"] == chip]
        assert max(prices) <= 2 * min(prices)


# ------------------------------------------------------------------ launch templates


def test_every_instance_asks_imdsv2_at_one_hop_and_encrypts_its_volume(plain):
    assert len(templates(plain)) == 7  # two of them of the fleet with EFA
    for template in templates(plain):
        assert template["MetadataOptions"] == {
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
            "HttpTokens": "required",
        }
        (mapping,) = template["BlockDeviceMappings"]
        assert mapping["Ebs"]["Encrypted"] is True
        assert mapping["Ebs"]["DeleteOnTermination"] is True
        assert template["EbsOptimized"] is True
        assert "KeyName" not in template


def test_an_instance_that_shuts_down_is_gone(plain):
    kinds = {t["InstanceInitiatedShutdownBehavior"] for t in templates(plain)}
    assert kinds == {"terminate"}
    for template in templates(plain):
        script = text_of(template["UserData"])
        assert "set -euo pipefail\ntrap '" in script
        assert "shutdown -h now' ERR\n" in script


def test_instances_and_volumes_carry_the_tags_that_permissions_name(plain):
    (template,) = templates(plain, "SpotTemplate")
    for specification in template["TagSpecifications"]:
        tags = {tag["Key"]: tag["Value"] for tag in specification["Tags"]}
        assert tags["luma:deployment"] == "Luma"
        assert tags["luma:fleet"] == "l4"
    tags = {
        tag["Key"]: (tag["Value"], tag["PropagateAtLaunch"])
        for tag in one(plain, GROUP, "SpotGroup")["Tags"]
    }
    assert tags["luma:fleet"] == ("l4", True)
    assert tags["luma:deployment"] == ("Luma", True)


def test_only_compilers_start_enclaves(plain):
    assert not any("EnclaveOptions" in template for template in templates(plain))


def test_efa_is_one_interface_a_card_by_the_type_s_number(plain):
    policy = one(plain, GROUP, "EfaGroup")["MixedInstancesPolicy"]["LaunchTemplate"]
    names = plain.of_type(TEMPLATE)

    def interfaces(ref):
        return names[ref]["Properties"]["LaunchTemplateData"]["NetworkInterfaces"]

    base = policy["LaunchTemplateSpecification"]["LaunchTemplateId"]["Ref"]
    numbers = {}
    for override in policy["Overrides"]:
        own = override.get("LaunchTemplateSpecification", {}).get("LaunchTemplateId", {})
        numbers[override["InstanceType"]] = len(interfaces(own.get("Ref", base)))
    assert numbers == {"p5.48xlarge": 32, "p5e.48xlarge": 32, "p5en.48xlarge": 16}
    for card, interface in enumerate(interfaces(base)):
        assert interface["InterfaceType"] == "efa"
        assert interface["NetworkCardIndex"] == card
        assert interface["DeviceIndex"] == (0 if card == 0 else 1)
        assert len(interface["Groups"]) == 1
    for template in templates(plain, "Efa"):
        assert "SecurityGroupIds" not in template  # they stand on the interfaces
        assert template["Placement"]["GroupName"]


def test_efa_has_a_cluster_placement_group_and_nothing_else_is_placed(plain):
    assert one(plain, "AWS::EC2::PlacementGroup", "Efa")["Strategy"] == "cluster"
    assert len(plain.of_type("AWS::EC2::PlacementGroup")) == 1
    assert "Placement" not in templates(plain, "SpotTemplate")[0]


def test_efa_members_exchange_all_traffic_and_the_others_tcp(plain):
    def own(fleet):
        rules = plain.of_type("AWS::EC2::SecurityGroupIngress").items()
        return [r["Properties"] for name, r in rules if name.startswith(f"{fleet}SecurityGroup")]

    assert {r["IpProtocol"] for r in own("Efa")} == {"-1"}
    assert {r["IpProtocol"] for r in own("Spot")} == {"tcp"}
    for rule in (*own("Efa"), *own("Spot")):
        assert "CidrIp" not in rule
        assert "SourceSecurityGroupId" in rule


def test_connected_fleets_reach_each_other_both_ways(plain):
    pairs = {
        (
            r["Properties"]["GroupId"]["Fn::GetAtt"][0][:8],
            r["Properties"]["SourceSecurityGroupId"]["Fn::GetAtt"][0][:8],
        )
        for r in plain.of_type("AWS::EC2::SecurityGroupIngress").values()
    }
    assert ("SpotSecu", "Coordina") in pairs
    assert ("Coordina", "SpotSecu") in pairs


def test_synth_warns_of_nothing_but_what_is_not_in_the_catalogue(plain):
    warned = [
        entry["data"]
        for entries in json.loads((plain.folder / "Luma.metadata.json").read_text()).values()
        for entry in entries
        if entry["type"] == "aws:cdk:warning"
    ]
    assert len(warned) == 1
    assert "c8g.large: not in the catalogue" in warned[0]


def test_nothing_may_come_from_everywhere(plain):
    for group in plain.of_type("AWS::EC2::SecurityGroup").values():
        assert not group["Properties"].get("SecurityGroupIngress")
    for rule in plain.of_type("AWS::EC2::SecurityGroupIngress").values():
        assert "CidrIp" not in rule["Properties"]


# -------------------------------------------------------------------- images, set-up


@pytest.mark.parametrize(
    ("fleet", "parameter"),
    [
        ("SpotTemplate", "deeplearningamix8664baseossnvidiadrivergpuamazonlinux2023"),
        ("MixedTemplate", "amiamazonlinuxlatestal2023"),
        ("OnDemandTemplate", "arm64"),
        ("BlockTemplate", "neurondlamibaseamazonlinux2023"),
    ],
)
def test_images_are_public_parameters_that_cloudformation_resolves(plain, fleet, parameter):
    (template,) = templates(plain, fleet)
    name = template["ImageId"]["Ref"]
    assert parameter in name
    assert plain.template["Parameters"][name]["Type"] == (
        "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>"
    )


@pytest.mark.parametrize(
    ("template", "family", "fleet"),
    [
        ("SpotTemplate", "cuda", "l4"),
        ("MixedTemplate", "cpu", "mixed"),
        ("BlockTemplate", "neuron", "block"),
        ("CoordinatorTemplate", "cpu", "coordinator"),
    ],
)
def test_user_data_checks_the_runtime_and_names_the_fleet(plain, template, family, fleet):
    script = text_of(templates(plain, template)[0]["UserData"])
    digest = hashlib.sha256(runtime_bytes()).hexdigest()
    assert f"echo '{digest}  /opt/luma/runtime.zip' | sha256sum --check --status\n" in script
    assert (
        f"bootstrap.sh --deployment Luma --fleet {fleet} --family {family} "
        "--region '<AWS::Region>'" in script
    )


def test_a_host_s_settings_reach_the_instance(plain, own):
    script = text_of(templates(plain, "OnDemandTemplate")[0]["UserData"])
    assert "--env LUMA_NOTICE_EVERY_S=2" in script
    (mapping,) = templates(plain, "OnDemandTemplate")[0]["BlockDeviceMappings"]
    assert (mapping["DeviceName"], mapping["Ebs"]["VolumeSize"]) == ("/dev/xvda", 40)
    (template,) = templates(own, "FleetTemplate")
    assert template["BlockDeviceMappings"][0]["DeviceName"] == "/dev/sda1"
    assert "--wheels s3://team-wheels/cuda/" in text_of(template["UserData"])
    readable = str(statements_of(own, "Role"))
    assert ":s3:::team-wheels/cuda/*" in readable
    assert "{'s3:prefix': ['cuda/*']}" in readable


def test_what_is_brought_along_is_used(own):
    assert len(own.of_type("AWS::IAM::Role")) == 1
    groups = [n for n in own.of_type("AWS::EC2::SecurityGroup") if n.startswith("Fleet")]
    assert groups == []
    subnets = [r["Ref"] for r in one(own, GROUP, "FleetGroup")["VPCZoneIdentifier"]]
    assert all("Public" in name for name in subnets)
    (parameter,) = own.of_type("AWS::SSM::Parameter").values()
    assert parameter["Properties"]["Name"] == "/luma/team-a/fleets/l4"


# --------------------------------------------------------------------- hooks, queues


@pytest.mark.parametrize(
    ("fleet", "seconds"), [("Spot", 100), ("Mixed", 120), ("Coordinator", 120)]
)
def test_a_leaving_instance_is_held_until_its_island_has_left(plain, fleet, seconds):
    hook = one(plain, "AWS::AutoScaling::LifecycleHook", f"{fleet}Group")
    assert hook["LifecycleHookName"] == "luma-drain"
    assert hook["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
    assert hook["DefaultResult"] == "CONTINUE"
    assert hook["HeartbeatTimeout"] == seconds
    assert "RoleARN" not in hook


def test_each_fleet_has_a_queue_with_dead_letters_encryption_and_tls(plain):
    queues = plain.of_type("AWS::SQS::Queue")
    for fleet in ("Spot", "Mixed", "OnDemand", "Efa", "Block", "Coordinator"):
        queue = one(plain, "AWS::SQS::Queue", f"{fleet}Queue")
        dead = queue["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"][0]
        assert dead.startswith(f"{fleet}DeadLetters")
        assert queue["RedrivePolicy"]["maxReceiveCount"] == 5
        assert queue["VisibilityTimeout"] == 120
        assert queue["ReceiveMessageWaitTimeSeconds"] == 20
    assert all(q["Properties"]["SqsManagedSseEnabled"] is True for q in queues.values())
    policies = plain.of_type("AWS::SQS::QueuePolicy").values()
    secured = {
        ref["Ref"]
        for policy in policies
        for ref in policy["Properties"]["Queues"]
        if any(
            s["Effect"] == "Deny" and s["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
            for s in policy["Properties"]["PolicyDocument"]["Statement"]
        )
    }
    assert secured == set(queues)


# ----------------------------------------------------------------------- parameters


def published(assembly, fleet):
    properties = one(assembly, "AWS::SSM::Parameter", f"{fleet}Parameter")
    return properties["Name"], Fleet.from_json(text_of(properties["Value"]))


def test_the_runtime_reads_what_the_constructs_publish(plain):
    name, fleet = published(plain, "Spot")
    assert name == "/luma/Luma/fleets/l4"
    assert (fleet.name, fleet.target, fleet.chips, fleet.order) == ("l4", "cuda-sm89", 1, 1)
    assert (fleet.purchase, fleet.most) == ("spot", 8)
    assert fleet.queue.startswith("<SpotQueue")
    assert fleet.asg is not None
    assert fleet.asg.startswith("<SpotGroup")
    assert fleet.instance_types == tuple(o["InstanceType"] for o in overrides(plain, "Spot"))


def test_a_price_is_the_highest_among_the_types_or_not_known(plain):
    prices = {name: row["usd_per_hour_on_demand"] for name, row in catalogue().items()}
    _, mixed = published(plain, "Mixed")
    assert mixed.usd_per_hour == max(prices[name] for name in ("c7i.2xlarge", "m7i.2xlarge"))
    assert published(plain, "OnDemand")[1].usd_per_hour is None  # an unlisted type
    assert published(plain, "Block")[1].purchase == "on-demand"


def test_the_coordinator_is_found_like_a_fleet(plain):
    name, fleet = published(plain, "Coordinator")
    assert name == "/luma/Luma/fleets/coordinator"
    assert (fleet.target, fleet.purchase) == ("coordinator", "on-demand")


# ----------------------------------------------------------------------- permissions


def test_no_policy_has_a_wildcard_action_or_an_unlimited_wildcard_resource(plain):
    for statement in all_statements(plain):
        assert not [a for a in statement["Action"] if "*" in a]
        for resource in statement["Resource"]:
            text = text_of(resource)
            unlimited = text == "*" or text.endswith((":instance/*", ":managed-instance/*"))
            assert not unlimited or statement.get("Condition"), statement


def test_a_node_may_only_do_what_a_node_does(plain):
    actions = sorted({a for s in statements_of(plain, "SpotRole") for a in s["Action"]})
    assert actions == sorted(
        [
            "autoscaling:CompleteLifecycleAction",
            "cloudwatch:PutMetricData",
            "dynamodb:BatchGetItem",
            "dynamodb:ConditionCheckItem",
            "dynamodb:DeleteItem",
            "dynamodb:GetItem",
            "dynamodb:PutItem",
            "dynamodb:Query",
            "dynamodb:UpdateItem",
            "ec2messages:AcknowledgeMessage",
            "ec2messages:DeleteMessage",
            "ec2messages:FailMessage",
            "ec2messages:GetEndpoint",
            "ec2messages:GetMessages",
            "ec2messages:SendReply",
            "s3:AbortMultipartUpload",
            "s3:DeleteObject",
            "s3:GetObject",
            "s3:ListBucket",
            "s3:PutObject",
            "sqs:ChangeMessageVisibility",
            "sqs:DeleteMessage",
            "sqs:GetQueueAttributes",
            "sqs:ReceiveMessage",
            "ssm:GetParameter",
            "ssm:GetParameters",
            "ssm:GetParametersByPath",
            "ssm:UpdateInstanceInformation",
            "ssmmessages:CreateControlChannel",
            "ssmmessages:CreateDataChannel",
            "ssmmessages:OpenControlChannel",
            "ssmmessages:OpenDataChannel",
        ]
    )
    assert all(s["Effect"] == "Allow" for s in statements_of(plain, "SpotRole"))


def test_nodes_have_no_managed_policy(plain):
    for role in plain.of_type("AWS::IAM::Role").values():
        assert "ManagedPolicyArns" not in role["Properties"]


def conditions(assembly, role, action):
    found = [s for s in statements_of(assembly, role) if action in s["Action"]]
    assert found
    return [s.get("Condition") for s in found]


@pytest.mark.parametrize(
    ("action", "key"),
    [("ec2:TerminateInstances", "aws:ResourceTag"), ("ssm:SendCommand", "ssm:resourceTag")],
)
def test_instances_are_touched_by_the_tags_of_their_deployment_and_fleet(plain, action, key):
    expected = {"StringEquals": {f"{key}/luma:deployment": "Luma", f"{key}/luma:fleet": "l4"}}
    limited = [c for c in conditions(plain, "Machine", action) if c is not None]
    assert limited == [expected]


def test_a_machine_sends_the_drain_document_and_no_other(plain):
    sent = [s for s in statements_of(plain, "Machine") if "ssm:SendCommand" in s["Action"]]
    documents = [text_of(s["Resource"]) for s in sent if "Condition" not in s]
    (name,) = plain.of_type("AWS::SSM::Document")
    assert len(documents) == 1
    assert documents[0].endswith(f":document/<{name}>")


def test_a_machine_scales_and_replaces_in_this_group_alone(plain):
    for action in ("autoscaling:SetDesiredCapacity", "autoscaling:DetachInstances"):
        (statement,) = [s for s in statements_of(plain, "Machine") if action in s["Action"]]
        (resource,) = listed(statement["Resource"])
        assert text_of(resource).rpartition("/")[2].startswith("<SpotGroup")


def test_what_knows_no_resource_is_limited_to_the_region(plain):
    region = {"StringEquals": {"aws:RequestedRegion": {"Ref": "AWS::Region"}}}
    for action in ("autoscaling:DescribeScalingActivities", "ssm:GetCommandInvocation"):
        assert conditions(plain, "Machine", action) == [region]
    namespace = {"StringEquals": {"cloudwatch:namespace": "Luma"}}
    assert conditions(plain, "SpotRole", "cloudwatch:PutMetricData") == [namespace]


def test_the_drain_document_stops_the_service_and_takes_no_parameter(plain):
    document = one(plain, "AWS::SSM::Document", "Drain")
    (step,) = document["Content"]["mainSteps"]
    assert step["inputs"] == {
        "timeoutSeconds": "100",
        "runCommand": ["systemctl stop luma-node.service"],
    }
    assert "parameters" not in document["Content"]
    assert "Name" not in document
    assert document["UpdateMethod"] == "NewVersion"


def test_feature_flags_change_neither_ids_nor_what_protects(plain, tmp_path):
    """An app that pins no flag gets the same data, groups, metadata options and distributions."""
    app = cdk.App(outdir=str(tmp_path))
    stack = stacks.fleets(app)
    app.synth()
    bare = Assembly(tmp_path, stack.artifact_id)
    kinds = ("AWS::S3::Bucket", "AWS::DynamoDB::Table", "AWS::SQS::Queue", GROUP, TEMPLATE)
    for kind in kinds:
        assert list(bare.of_type(kind)) == list(plain.of_type(kind))
    for one_of, other in zip(templates(bare), templates(plain), strict=True):
        assert one_of["MetadataOptions"] == other["MetadataOptions"]
        assert one_of["BlockDeviceMappings"] == other["BlockDeviceMappings"]
    assert bare.of_type(GROUP) == plain.of_type(GROUP)


def test_a_fleet_s_launch_template_looks_as_it_did(plain, snapshot):
    (template,) = templates(plain, "MixedTemplate")
    assert {k: v for k, v in template.items() if k != "UserData"} == snapshot
