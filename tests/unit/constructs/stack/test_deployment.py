"""A whole deployment on its template: what readers find, what outlives it, what is brought along."""

from __future__ import annotations

import json

import aws_cdk as cdk
import pytest

from luma_constructs._validation import PropError
from luma_constructs.deployment_props import CompilerProps, FleetProps
from luma_constructs.luma_deployment import LumaDeployment
from luma_constructs.luma_stack import LumaStack
from runtime.spec.account import AccountConfig, Fleet
from tests.e2e.synth import stateful
from tests.e2e.synth.intrinsics import text
from tests.support.cdk import Assembly, assembled, synthesized
from tests.unit.constructs.stack import stacks

pytestmark = pytest.mark.timeout(600)  # a busy machine synthesizes slowly


@pytest.fixture(scope="module")
def plain() -> Assembly:
    return synthesized(stacks.plain)


@pytest.fixture(scope="module")
def own() -> Assembly:
    return synthesized(stacks.own_everything)


def parameters(assembly: Assembly) -> dict[str, str]:
    """Each parameter's value by name, with placeholders for what the deployment knows."""
    found = (entry["Properties"] for entry in assembly.of_type("AWS::SSM::Parameter").values())
    return {entry["Name"]: text(entry["Value"]) for entry in found}


class TestWhatReadersFind:
    """The parameters, read by the code that nodes and engineers read them with."""

    def test_the_deployment(self, plain):
        config = AccountConfig.from_json(parameters(plain)["/luma/Luma/config"])
        resources = plain.template["Resources"]
        kinds = {
            name: resources[getattr(config, name).strip("<>").split(".")[0]]["Type"]
            for name in ("bucket", "table", "jobs_machine", "failover_machine", "topic")
        }
        assert kinds == {
            "bucket": "AWS::S3::Bucket",
            "table": "AWS::DynamoDB::Table",
            "jobs_machine": "AWS::StepFunctions::StateMachine",
            "failover_machine": "AWS::StepFunctions::StateMachine",
            "topic": "AWS::SNS::Topic",
        }
        assert config.jobs_machine != config.failover_machine
        assert (config.stack, config.region) == ("Luma", "<AWS::Region>")
        assert (config.coordinator_fleet, config.compiler_fleet) == ("coordinator", "compiler")

    def test_every_fleet_in_the_order_that_failover_tries(self, plain):
        fleets = [
            Fleet.from_json(value)
            for name, value in parameters(plain).items()
            if name.startswith("/luma/Luma/fleets/")
        ]
        assert {fleet.name for fleet in fleets} == {"l4", "floor", "coordinator"}
        islands = [fleet for fleet in fleets if fleet.name in {"l4", "floor"}]
        islands.sort(key=lambda fleet: fleet.order)
        assert [(f.name, f.purchase) for f in islands] == [("l4", "spot"), ("floor", "on-demand")]
        assert all(fleet.usd_per_hour for fleet in fleets)

    def test_outputs_name_what_outlives_the_stack(self, plain):
        outputs = {name: text(one["Value"]) for name, one in plain.template["Outputs"].items()}
        config = AccountConfig.from_json(parameters(plain)["/luma/Luma/config"])
        assert outputs["BucketName"] == config.bucket
        assert outputs["TableName"] == config.table
        assert outputs["JobsMachine"].split(".")[0] == config.jobs_machine.split(".")[0]

    def test_the_compilers_queue_is_the_compilers(self, plain):
        config = AccountConfig.from_json(parameters(plain)["/luma/Luma/config"])
        assert config.compiler_queue is not None
        queue = config.compiler_queue.strip("<>")
        assert plain.logical_ids()[queue] == "Luma/Default/Compiler/Queue/Resource"
        assert config.compiler_asg is not None
        group = config.compiler_asg.strip("<>")
        assert plain.logical_ids()[group] == "Luma/Default/Compiler/Group/ASG"

    def test_a_deployment_without_a_compiler_says_so(self, tmp_path):
        def build(app: cdk.App) -> cdk.Stack:
            stack = cdk.Stack(app, "Luma")
            LumaDeployment(stack, "Default", fleets=stacks.FLEETS, compiler=None)
            return stack

        without = assembled(build, tmp_path / "out")
        config = AccountConfig.from_json(parameters(without)["/luma/Luma/config"])
        assert config.compiler_queue is config.compiler_fleet is config.compiler_asg is None
        assert not [path for path in without.logical_ids().values() if "Compiler" in path]


class TestNothingRunsIdle:
    """Everything scales to zero, and a deployment never ends a running job."""

    def test_no_group_has_an_instance_by_itself(self, plain):
        groups = plain.of_type("AWS::AutoScaling::AutoScalingGroup")
        assert len(groups) == 4
        for group in groups.values():
            assert group["Properties"]["MinSize"] == "0"
            assert "DesiredCapacity" not in group["Properties"]

    def test_no_instance_load_balancer_or_function_is_there(self, plain):
        kinds = {resource["Type"] for resource in plain.template["Resources"].values()}
        assert kinds.isdisjoint(
            {
                "AWS::EC2::Instance",
                "AWS::Lambda::Function",
                "AWS::ElasticLoadBalancingV2::LoadBalancer",
                "AWS::ECS::Service",
            }
        )


STATEFUL_IDS = {
    "StoreBucket4FBDE984": "AWS::S3::Bucket",
    "StoreTable0CCFA19B": "AWS::DynamoDB::Table",
}


class TestData:
    """What an upgrade or a deletion must not lose."""

    def test_stateful_resources_keep_their_logical_ids(self, plain):
        """A changed id would make CloudFormation start over with empty ones."""
        found = {
            name: resource["Type"]
            for name, resource in plain.template["Resources"].items()
            if resource["Type"] in stateful.STATEFUL
        }
        assert found == STATEFUL_IDS

    def test_it_outlives_the_stack(self, plain):
        assert stateful.retention_findings(plain.template) == []

    def test_the_same_source_gives_the_same_template_and_assets(self, plain, tmp_path):
        again = assembled(stacks.plain, tmp_path / "out")
        assert again.template == plain.template
        names = [sorted(p.name for p in a.folder.glob("asset.*")) for a in (plain, again)]
        assert names[0] == names[1]
        assert names[0]


class TestBringYourOwn:
    """A network, a bucket, a key and roles that exist already."""

    def test_nothing_that_was_brought_is_made_again(self, own):
        kinds = [resource["Type"] for resource in own.template["Resources"].values()]
        for kind in ("AWS::EC2::VPC", "AWS::S3::Bucket", "AWS::KMS::Key", "AWS::EC2::NatGateway"):
            assert kind not in kinds
        trusted = [
            text(statement["Principal"]["Service"])
            for role in own.of_type("AWS::IAM::Role").values()
            for statement in role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        ]
        assert "ec2.amazonaws.com" not in trusted

    def test_the_roles_get_the_permissions_that_they_need(self, own):
        attached = {
            text(role)
            for policy in own.of_type("AWS::IAM::Policy").values()
            for role in policy["Properties"].get("Roles", [])
        }
        assert {"our-nodes", "our-coordinator", "our-compiler"} <= attached

    def test_the_key_is_used_for_table_and_queues(self, own):
        (table,) = own.of_type("AWS::DynamoDB::Table").values()
        assert stacks.KEY_ID in text(table["Properties"]["SSESpecification"]["KMSMasterKeyId"])
        queues = own.of_type("AWS::SQS::Queue").values()
        assert len(queues) >= 6
        for queue in queues:
            assert stacks.KEY_ID in text(queue["Properties"]["KmsMasterKeyId"])

    def test_instances_go_to_the_given_subnets(self, own):
        for group in own.of_type("AWS::AutoScaling::AutoScalingGroup").values():
            assert group["Properties"]["VPCZoneIdentifier"] == [
                "subnet-0a000000",
                "subnet-0b000000",
            ]

    def test_readers_find_the_given_bucket(self, own):
        config = AccountConfig.from_json(parameters(own)["/luma/Mine/config"])
        assert config.bucket == "our-runs"


class TestPlaces:
    """Any partition, any environment, several in one app."""

    def test_without_a_region_no_arn_names_a_partition(self, plain):
        assert [str(finding) for finding in stateful.literal_findings(plain.template)] == []

    def test_in_another_partition_no_arn_is_of_the_first_one(self):
        """Where CDK knows the region it writes the partition itself, by a flag."""
        source = json.dumps(synthesized(stacks.in_china).template)
        assert "arn:aws:" not in source
        assert "arn:aws-cn:" in source

    def test_two_deployments_of_one_app_share_nothing_but_the_runtime(self):
        green = synthesized(stacks.two_in_one_app)
        blue = Assembly(green.folder, "Blue")
        assert set(parameters(blue)).isdisjoint(parameters(green))
        assert {name.split("/")[2] for name in parameters(green)} == {"Green"}
        assert "Fn::ImportValue" not in json.dumps([blue.template, green.template])
        kinds = [
            sorted(resource["Type"] for resource in one.template["Resources"].values())
            for one in (blue, green)
        ]
        assert kinds[0] == kinds[1]


class TestFlags:
    """Flags of the app that the stack is put into must not decide what it is."""

    @pytest.fixture(scope="class")
    @staticmethod
    def without_flags(tmp_path_factory) -> Assembly:
        context = dict.fromkeys(
            ("@aws-cdk/aws-ec2:restrictDefaultSecurityGroup", "@aws-cdk/aws-iam:minimizePolicies",
             "@aws-cdk/aws-ec2:uniqueImdsv2TemplateName", "@aws-cdk/aws-s3:publicAccessBlockedByDefault",
             "@aws-cdk/aws-ec2:launchTemplateDefaultUserData",
             "@aws-cdk/aws-autoscaling:generateLaunchTemplateInsteadOfLaunchConfig"),
            False,
        )  # fmt: skip
        return assembled(stacks.plain, tmp_path_factory.mktemp("flags") / "out", context=context)

    def test_there_is_no_custom_resource_either_way(self, plain, without_flags):
        for assembly in (plain, without_flags):
            assert stateful.custom_resource_findings(assembly.template) == []

    def test_the_same_resources_are_there_either_way(self, plain, without_flags):
        assert without_flags.template["Resources"].keys() == plain.template["Resources"].keys()

    def test_what_is_not_about_policies_is_the_same(self, plain, without_flags):
        def others(assembly: Assembly) -> dict:
            resources = assembly.template["Resources"].items()
            return {name: r for name, r in resources if r["Type"] != "AWS::IAM::Policy"}

        assert others(without_flags) == others(plain)


class TestMistakes:
    """Props are refused at synth, with what is allowed."""

    @pytest.mark.parametrize(
        ("props", "said"),
        [
            ({"fleets": []}, "fleets: []; expected at least one fleet"),
            (
                {
                    "fleets": [
                        FleetProps(name="a", target="cpu"),
                        FleetProps(name="a", target="cpu"),
                    ]
                },
                "fleets: ['a', 'a']; expected a name once",
            ),
            ({"fleets": [FleetProps(name="A", target="cpu")]}, "fleet_name: 'A'"),
            ({"fleets": [FleetProps(name="a", target="cuda-sm12")]}, "'cuda-sm12'"),
            ({"fleets": stacks.FLEETS, "compiler": CompilerProps(level="L2")}, "enclave_image"),
        ],
    )
    def test_a_wrong_prop_is_named(self, props, said):
        stack = cdk.Stack(cdk.App(), "S")
        with pytest.raises(PropError) as caught:
            LumaDeployment(stack, "Luma", **props)
        assert said in str(caught.value)

    def test_subnets_need_their_network(self):
        stack = cdk.Stack(cdk.App(), "S")
        subnets = cdk.aws_ec2.SubnetSelection(subnet_type=cdk.aws_ec2.SubnetType.PUBLIC)
        with pytest.raises(PropError, match="pass the vpc of the subnets too"):
            LumaDeployment(stack, "Luma", fleets=stacks.FLEETS, vpc_subnets=subnets)

    def test_a_region_without_the_type_is_refused_at_synth(self):
        env = cdk.Environment(account="123456789012", region="eu-west-3")
        fleets = [FleetProps(name="h100", target="cuda-sm90x8")]
        with pytest.raises(PropError, match="eu-west-3"):
            LumaStack(cdk.App(), "Luma", fleets=fleets, env=env)


def test_the_deployments_parameter(plain, snapshot):
    """One narrow snapshot: what every reader depends on."""
    found = [
        entry["Properties"]
        for entry in plain.of_type("AWS::SSM::Parameter").values()
        if entry["Properties"]["Name"].endswith("/config")
    ]
    assert found == snapshot
