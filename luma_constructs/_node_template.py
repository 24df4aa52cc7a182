"""What the launch templates of all nodes share: image, disk, and user data that makes a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from luma_constructs._catalogue import Architecture
from luma_constructs._fleet_parts import TemplateParts
from luma_constructs.agent_bootstrap import bootstrap
from luma_constructs.host_settings import HostSettings, default_image, default_volume
from luma_constructs.runtime_asset import RuntimeAsset

__all__ = ["host_parts", "node_parts"]


def host_parts(
    host: HostSettings,
    *,
    family: str,
    architecture: Architecture,
    user_data: ec2.UserData,
    role: iam.IRole,
    security_group: ec2.ISecurityGroup,
) -> TemplateParts:
    """Give the parts of an instance's launch template.

    Args:
        host: what its author chose; defaults are those of the family.
        family: whose driver the image has.
        architecture: of the instance types.
        user_data: what an instance runs first.
        role: of the instances.
        security_group: of their interfaces.
    """
    return TemplateParts(
        image=host.machine_image or default_image(family, architecture),
        user_data=user_data,
        role=role,
        security_group=security_group,
        root_device=host.root_device,
        root_volume_size=host.root_volume_size or default_volume(family),
        volume_key=host.volume_key,
    )


def node_parts(
    scope: Construct,
    host: HostSettings,
    *,
    deployment: str,
    fleet: str,
    family: str,
    architecture: Architecture,
    role: iam.IRole,
    security_group: ec2.ISecurityGroup,
    prepare: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> TemplateParts:
    """Give the parts of a node's launch template, and let its role fetch what it installs.

    Args:
        scope: the fleet.
        host: what its author chose.
        deployment: name of the deployment.
        fleet: name of the fleet.
        family: set of requirements, and whose driver the image has.
        architecture: of the instance types.
        role: of the instances.
        security_group: of their interfaces.
        prepare: commands before the node is set up.
        environment: variables of the node's service; the host's win.
    """
    asset = RuntimeAsset.of(scope)
    asset.grant_read(role)
    if host.wheels is not None:
        host.wheels.grant_read(role)
    user_data = bootstrap(
        asset,
        deployment=deployment,
        fleet=fleet,
        family=family,
        wheels=host.wheels,
        environment={**(environment or {}), **host.environment},
        prepare=prepare,
    )
    return host_parts(
        host,
        family=family,
        architecture=architecture,
        user_data=user_data,
        role=role,
        security_group=security_group,
    )
