"""The parts that fleets are made of: a queue, a role, a security group, a launch template, a group.

Each function makes one resource below the fleet. The ids are part of the resources' logical ids, so
changing one replaces the resource in every deployed stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import Duration, Size, Stack
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from luma_constructs import _names
from luma_constructs._principals import new_role
from luma_constructs.fleet_purchase import Purchase

__all__ = [
    "ROOT_DEVICE",
    "TemplateParts",
    "allow_metrics",
    "allow_run_command",
    "fleet_group",
    "fleet_role",
    "island_security_group",
    "launch_template",
    "work_queue",
]

ROOT_DEVICE = "/dev/xvda"
"""Root volume of Amazon Linux 2023, and of the NVIDIA and Neuron images that build on it."""

# A node answers its token within seconds and deletes the message at once; a message that comes back
# five times makes nodes crash. Old tokens are worthless, so nothing waits for days.
_VISIBLE_AGAIN = Duration.minutes(2)
_RETENTION = Duration.hours(12)
_MAX_RECEIVES = 5

# What SSM's agent needs to take commands, and nothing of its other features: AWS's managed policy
# for it would also let a node read all parameters of the account.
_RUN_COMMAND = (
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
    "ec2messages:AcknowledgeMessage",
    "ec2messages:DeleteMessage",
    "ec2messages:FailMessage",
    "ec2messages:GetEndpoint",
    "ec2messages:GetMessages",
    "ec2messages:SendReply",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplateParts:
    """What the launch templates of one fleet share.

    Attributes:
        image: the machine image.
        user_data: what an instance runs first.
        role: role of the instances.
        security_group: of their interfaces.
        root_device: device name of the root volume.
        root_volume_size: its size.
        volume_key: key of the volume; None for the account's default key.
        capacity_block: reservation id; "" for none.
        placement_group: where the instances are placed; None for anywhere.
        enclave: whether instances can start a Nitro Enclave.
        instance_type: where no policy overrides it.
    """

    image: ec2.IMachineImage
    user_data: ec2.UserData
    role: iam.IRole
    security_group: ec2.ISecurityGroup
    root_device: str
    root_volume_size: Size
    volume_key: kms.IKey | None = None
    capacity_block: str = ""
    placement_group: ec2.IPlacementGroup | None = None
    enclave: bool = False
    instance_type: ec2.InstanceType | None = None


def work_queue(scope: Construct, key: kms.IKey | None) -> tuple[sqs.Queue, sqs.Queue]:
    """Make the queue of a fleet and the one for messages that no node can take."""
    encryption = sqs.QueueEncryption.KMS if key else sqs.QueueEncryption.SQS_MANAGED
    dead = sqs.Queue(
        scope,
        "DeadLetters",
        encryption=encryption,
        encryption_master_key=key,
        enforce_ssl=True,
        retention_period=Duration.days(14),
    )
    queue = sqs.Queue(
        scope,
        "Queue",
        encryption=encryption,
        encryption_master_key=key,
        enforce_ssl=True,
        visibility_timeout=_VISIBLE_AGAIN,
        retention_period=_RETENTION,
        receive_message_wait_time=Duration.seconds(20),
        dead_letter_queue=sqs.DeadLetterQueue(max_receive_count=_MAX_RECEIVES, queue=dead),
    )
    return queue, dead


def fleet_role(scope: Construct, role: iam.IRole | None) -> iam.IRole:
    """Give the role of a fleet's instances: the caller's, else a new one without any policy."""
    if role is not None:
        return role
    return new_role(
        scope,
        "Role",
        assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
        description="Instances of a Luma fleet",
    )


def allow_run_command(role: iam.IRole, scope: Construct) -> None:
    """Let SSM's agent on the instances register and take commands."""
    stack = Stack.of(scope)
    instances = stack.format_arn(service="ec2", resource="instance", resource_name="*")
    managed = stack.format_arn(service="ssm", resource="managed-instance", resource_name="*")
    iam.Grant.add_to_principal(
        grantee=role,
        actions=["ssm:UpdateInstanceInformation"],
        resource_arns=[instances, managed],
        conditions={"StringEquals": {"aws:ResourceAccount": stack.account}},
    )
    # Channels and messages are no resources of IAM's.
    iam.Grant.add_to_principal(
        grantee=role,
        actions=list(_RUN_COMMAND),
        resource_arns=["*"],
        conditions={"StringEquals": {"aws:RequestedRegion": stack.region}},
    )


def allow_metrics(role: iam.IRole) -> None:
    """Let nodes report metrics in Luma's namespace alone."""
    iam.Grant.add_to_principal(
        grantee=role,
        actions=["cloudwatch:PutMetricData"],
        resource_arns=["*"],
        conditions={"StringEquals": {"cloudwatch:namespace": _names.METRIC_NAMESPACE}},
    )


def island_security_group(
    scope: Construct, vpc: ec2.IVpc, given: ec2.ISecurityGroup | None, *, efa: bool = False
) -> ec2.ISecurityGroup:
    """Give the security group of a fleet: the caller's, else one whose members reach each other.

    Args:
        scope: the fleet.
        vpc: its network.
        given: a group of the caller's, which gets the rule for islands too.
        efa: whether members speak EFA, which is no TCP and needs all traffic among them.
    """
    group = given or ec2.SecurityGroup(
        scope, "SecurityGroup", vpc=vpc, description="Nodes of a Luma fleet"
    )
    port = ec2.Port.all_traffic() if efa else ec2.Port.all_tcp()
    # Not `connections.allow_internally`: it also asks for a rule of egress, which a group that allows
    # all of it ignores with a warning.
    group.add_ingress_rule(group, port, "islands of one fleet")
    return group


def launch_template(
    scope: Construct,
    id: str,
    parts: TemplateParts,
    *,
    efa_interfaces: int = 0,
) -> ec2.LaunchTemplate:
    """Make a launch template: IMDSv2, one hop, encrypted volumes, ended by its own shutdown.

    Args:
        scope: the fleet.
        id: of the template.
        parts: what it shares with others.
        efa_interfaces: interfaces to attach, one a network card; 0 for a plain one.
    """
    template = ec2.LaunchTemplate(
        scope,
        id,
        machine_image=parts.image,
        instance_type=parts.instance_type,
        user_data=parts.user_data,
        role=parts.role,
        security_group=None if efa_interfaces else parts.security_group,
        require_imdsv2=True,
        http_put_response_hop_limit=1,
        http_endpoint=True,
        ebs_optimized=True,
        nitro_enclave_enabled=True if parts.enclave else None,
        placement_group=parts.placement_group,
        # Set-up that fails shuts the instance down, and shut down is gone.
        instance_initiated_shutdown_behavior=ec2.InstanceInitiatedShutdownBehavior.TERMINATE,
        block_devices=[
            ec2.BlockDevice(
                device_name=parts.root_device,
                volume=ec2.BlockDeviceVolume.ebs(
                    int(parts.root_volume_size.to_gibibytes()),
                    encrypted=True,
                    kms_key=parts.volume_key,
                    volume_type=ec2.EbsDeviceVolumeType.GP3,
                    delete_on_termination=True,
                ),
            )
        ],
    )
    for name, value in _overrides(parts, efa_interfaces).items():
        resource = template.node.default_child
        assert isinstance(resource, ec2.CfnLaunchTemplate)  # noqa: S101 (CDK's own structure)
        resource.add_property_override(f"LaunchTemplateData.{name}", value)
    return template


def _overrides(parts: TemplateParts, efa_interfaces: int) -> Mapping[str, object]:
    """Give what CDK's launch template has no prop for."""
    found: dict[str, object] = {}
    if efa_interfaces:
        # One interface a network card; only the first has an index of its own on its card (EC2 User
        # Guide, "Maximize network bandwidth", the launch templates of p4d and p5).
        found["NetworkInterfaces"] = [
            {
                "NetworkCardIndex": card,
                "DeviceIndex": 0 if card == 0 else 1,
                "InterfaceType": "efa",
                "Groups": [parts.security_group.security_group_id],
                "DeleteOnTermination": True,
            }
            for card in range(efa_interfaces)
        ]
    if parts.capacity_block:
        found["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
        target = {"CapacityReservationId": parts.capacity_block}
        found["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
    return found


def fleet_group(
    scope: Construct,
    *,
    vpc: ec2.IVpc,
    vpc_subnets: ec2.SubnetSelection | None,
    max_capacity: int,
    purchase: Purchase,
    templates: Sequence[tuple[ec2.LaunchTemplate, Sequence[str]]],
    drain_timeout: Duration,
    min_capacity: int = 0,
    serves: bool = False,
) -> autoscaling.AutoScalingGroup:
    """Make the Auto Scaling group of a fleet.

    Its size starts at the least and is the state machines' affair: the template states no desired
    capacity, so that a deployment never ends a running job.

    Args:
        scope: the fleet.
        vpc: its network.
        vpc_subnets: where instances go. Default: private subnets, in every zone: capacity that one
            zone lacks is often there in another.
        max_capacity: most instances.
        purchase: how they are bought.
        templates: launch templates, each with its instance types.
        drain_timeout: how long a leaving instance is held for its island to leave.
        min_capacity: least instances.
        serves: whether a load balancer judges the instances; a set-up gets ten minutes.
    """
    block = purchase.label == "capacity-block"  # takes no mixed policy
    group = autoscaling.AutoScalingGroup(
        scope,
        "Group",
        vpc=vpc,
        vpc_subnets=vpc_subnets
        or ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS),
        min_capacity=min_capacity,
        health_checks=autoscaling.HealthChecks.with_additional_checks(
            additional_types=[autoscaling.AdditionalHealthCheckType.ELB],
            grace_period=Duration.minutes(10),
        )
        if serves
        else None,
        max_capacity=max_capacity,
        # Replacements are asked for when a reclaim becomes likely, before the notice.
        capacity_rebalance=purchase.is_spot or None,
        group_metrics=[autoscaling.GroupMetrics.all()],
        launch_template=templates[0][0] if block else None,
        mixed_instances_policy=None if block else _mixed_policy(purchase, templates),
    )
    group.add_lifecycle_hook(
        "Drain",
        lifecycle_hook_name=_names.DRAIN_HOOK,
        lifecycle_transition=autoscaling.LifecycleTransition.INSTANCE_TERMINATING,
        default_result=autoscaling.DefaultResult.CONTINUE,
        heartbeat_timeout=drain_timeout,
    )
    return group


def _mixed_policy(
    purchase: Purchase, templates: Sequence[tuple[ec2.LaunchTemplate, Sequence[str]]]
) -> autoscaling.MixedInstancesPolicy:
    """Give the group's instance types and how they are bought."""
    first = templates[0][0]
    return autoscaling.MixedInstancesPolicy(
        launch_template=first,
        instances_distribution=purchase.distribution,
        launch_template_overrides=[
            autoscaling.LaunchTemplateOverrides(
                instance_type=ec2.InstanceType(name),
                launch_template=None if template is first else template,
            )
            for template, names in templates
            for name in names
        ],
    )
