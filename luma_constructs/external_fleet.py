"""`ExternalFleet`: hosts outside EC2 as nodes of the same deployment: AMD Instinct, TPU, one's own.

    ExternalFleet(
        self, "Mi300x", fleet_name="mi300x", target="rocm-gfx942", store=store,
        identity=ExternalIdentity.roles_anywhere(
            TrustAnchorSource(certificate_bundle=pem), common_names=["mi300x-*.example.com"]),
        peer=ec2.Peer.ipv4("10.8.0.0/16"),
    )

They take work from a queue like any other node. AWS neither starts nor ends them and sends no notices
for them; their data leaves AWS, which costs egress, and nothing attests them.

`set_up_script` makes a host a node. The host must have the AWS CLI and credentials of the role already
(by SSM's agent, by `credential_process`, by a token file), and a way to the coordinator's network.
Checked on the template, and the script by running it here; no host ever joined.
"""

from __future__ import annotations

from aws_cdk import Aws, Fn
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_rolesanywhere as rolesanywhere
from constructs import Construct

from luma_constructs import _fleet_parts as parts
from luma_constructs._catalogue import TargetParts, known_targets
from luma_constructs._principals import new_role
from luma_constructs._validation import Problems
from luma_constructs.accelerator_fleet import check_fleet_name
from luma_constructs.agent_bootstrap import unpack_commands
from luma_constructs.external_identity import ExternalIdentity
from luma_constructs.fleet_interface import FleetBase
from luma_constructs.run_store import RunStore
from luma_constructs.runtime_asset import RuntimeAsset

__all__ = ["ExternalFleet"]


class ExternalFleet(FleetBase):
    """Hosts outside EC2 that run islands of one target.

    Args:
        fleet_name: name, unique in the deployment: 1 to 32 of a-z, 0-9 and '-'.
        target: what its islands run, such as "rocm-gfx942" or "tpu-v5e".
        store: where its runs lie.
        identity: how its hosts are known.
        peer: from where its hosts reach the VPC, such as the range behind a VPN. Default: - nowhere;
            rules of connections go nowhere.
        max_capacity: hosts that may join. Default: 8
        order: place in the order of preference of failover, the lowest first. Default: 0
        usd_per_hour: what a host costs, for budgets. Default: - not known; then it costs nothing.
        role: of the hosts; it must trust `identity` already. Default: - a new one.

    Raises:
        PropError: props that cannot work, all of them at once.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        fleet_name: str,
        target: str,
        store: RunStore,
        identity: ExternalIdentity,
        peer: ec2.IPeer | None = None,
        max_capacity: int = 8,
        order: int = 0,
        usd_per_hour: float | None = None,
        role: iam.IRole | None = None,
    ) -> None:
        super().__init__(scope, id)
        parsed = _check(self, fleet_name, target, identity, max_capacity, order, usd_per_hour)
        self._fleet_name, self._target, self._chips = fleet_name, target, parsed.chips
        self._deployment = store.deployment_name
        self._purchase, self._max_capacity = "on-demand", max_capacity
        self._group = None
        self._connections = ec2.Connections(peer=peer) if peer else ec2.Connections()
        self._queue, self.dead_letter_queue = parts.work_queue(self, store.encryption_key)
        self.trust_anchor = None if role else identity.trust_anchor(self)
        """IAM Roles Anywhere's trust anchor; None where hosts have no certificates."""
        self._role = role or new_role(
            self,
            "Role",
            assumed_by=identity.trusted(self, self.trust_anchor),
            description=f"Hosts of the Luma fleet {fleet_name}",
        )
        identity.allow_source_identity(self._role, self.trust_anchor)
        self.profile = None if self.trust_anchor is None else _profile(self, self._role)
        """IAM Roles Anywhere's profile; None where hosts have no certificates."""
        self._asset = RuntimeAsset.of(self)
        self._asset.grant_read(self._role)
        self._allow_work(store, commands=identity.kind == "ssm")
        self._family, self._chip = parsed.family, parsed.chip
        self.parameter = self._publish(store, (parsed.chip,), order, usd_per_hour)
        """The parameter by which nodes and engineers find the fleet."""
        self._tag()

    @property
    def set_up_script(self) -> str:
        """Script that makes a host with credentials of the role a node; run as root.

        It holds references that only a deployment resolves: make an output of it.
        """
        words = (
            f"--deployment {self._deployment} --fleet {self._fleet_name} "
            f"--family {self._family} --region {Aws.REGION} --external {self._chip}"
        )
        lines = [
            "#!/bin/bash",
            "set -euo pipefail",
            *unpack_commands(self._asset),
            f"bash /opt/luma/src/node/bootstrap.sh {words}",
        ]
        return Fn.join("\n", lines)


def _profile(scope: Construct, role: iam.IRole) -> rolesanywhere.CfnProfile:
    """Make the profile by which hosts with certificates take the role, an hour at a time."""
    return rolesanywhere.CfnProfile(
        scope,
        "Profile",
        name=scope.node.path.replace("/", "-")[:255],
        role_arns=[role.role_arn],
        duration_seconds=3600,
        enabled=True,
    )


def _check(
    fleet: ExternalFleet,
    fleet_name: str,
    target: str,
    identity: ExternalIdentity,
    max_capacity: int,
    order: int,
    usd_per_hour: float | None,
) -> TargetParts:
    """Give the target.

    Raises:
        PropError: props that cannot work.
    """
    problems = Problems("ExternalFleet", fleet)
    check_fleet_name(problems, fleet_name)
    problems.whole("max_capacity", max_capacity, 1, 1000)
    problems.whole("order", order, 0, 65536)
    problems.check(
        usd_per_hour is None or 0 <= usd_per_hour <= 1e6,
        "usd_per_hour",
        usd_per_hour,
        "dollars per hour from 0 to 1e6",
    )
    for prop, value, allowed in identity.problems:
        problems.add(f"identity.{prop}", value, allowed)
    parsed = TargetParts.parse(target)
    everything = (*known_targets("external"), *known_targets("ec2"))
    if parsed is None or parsed.chip not in everything:
        problems.add("target", target, f"one of {', '.join(everything)}, with xN for an island")
        problems.fail()
    problems.raise_all()
    return parsed
