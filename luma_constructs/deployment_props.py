"""Value objects of a deployment: its fleets, its compiler, roles that exist already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam

from luma_constructs.accelerator_fleet import FleetNetwork
from luma_constructs.enclave_image_file import EnclaveImage
from luma_constructs.fleet_purchase import Purchase
from luma_constructs.key_policy import Level

__all__ = ["BudgetProps", "CompilerProps", "FleetProps", "LumaRoles"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetProps:
    """One accelerator family of a deployment; `AcceleratorFleet` checks the values.

    Attributes:
        name: how people and parameters name the fleet, such as "l4".
        target: what its islands are compiled for, such as "cuda-sm89" or "cuda-sm90x8".
        max_capacity: nodes at most. Default: 8
        purchase: spot, on demand, a share of both, or a capacity block. Default: Purchase.spot()
        instance_types: allowed types. Default: - those of the catalogue that hold one island.
        network: how islands reach each other. Default: FleetNetwork.STANDARD
    """

    name: str
    target: str
    max_capacity: int = 8
    purchase: Purchase = field(default_factory=Purchase.spot)
    instance_types: Sequence[ec2.InstanceType] | None = None
    network: FleetNetwork = FleetNetwork.STANDARD


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetProps:
    """What a deployment may cost before people are told; `FleetBudget` checks the values.

    Nothing is ended by it: each run has a budget of its own for that.

    Attributes:
        usd_per_hour: told within minutes. Default: - no limit.
        usd_per_month: told some hours late. Default: - no limit.
    """

    usd_per_hour: float | None = None
    usd_per_month: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilerProps:
    """The compiler of a deployment; `SealedCompiler` checks the values.

    Attributes:
        level: seal level of what it makes. Default: "L1"
        customer: whose artifacts are sealed, under a key of KMS. Default: - nobody's: at L1, with
            the key file of each run.
        enclave_image: needed at L2 and L3. Default: - none.
        administrators: of the key. Default: - whoever the account's IAM policies allow.
    """

    level: Level = "L1"
    customer: str | None = None
    enclave_image: EnclaveImage | None = None
    administrators: Sequence[iam.IRole] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LumaRoles:
    """Roles of instances that exist already, for accounts where a stack may make none.

    Each gets the permissions that docs/reference/roles.md lists, unless it was imported with
    `mutable=False`: then it must have them.

    Attributes:
        nodes: of the fleets. Default: - one for each fleet.
        coordinator: of the coordinator's host. Default: - a new one.
        compiler: of the compiler's host. Default: - a new one.
    """

    nodes: iam.IRole | None = None
    coordinator: iam.IRole | None = None
    compiler: iam.IRole | None = None
