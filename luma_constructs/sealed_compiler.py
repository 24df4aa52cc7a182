"""`SealedCompiler`: compiles for every target, without their devices, and seals what it made.

At L2 and L3 the compile happens in a Nitro Enclave of a reproducible image, and the customer's KMS
key gives a data key for sealing to that image alone: its measurements stand in the key's policy as
literals, at synth. At L1 the host compiles itself, and the key asks for its role.

    compiler = SealedCompiler(
        self, "Compiler", vpc=vpc, store=store, level="L2", customer="acme",
        enclave_image=EnclaveImage.from_file("build/luma-enclave.eif"),
        agents=[fleet.role for fleet in fleets],
    )

The host exists only while something is compiled. Template, key policy and scripts are checked here;
no enclave was started on EC2 and no request was answered by AWS's KMS.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final, cast

from aws_cdk import Annotations, Aws, Duration, RemovalPolicy, Size, Stack, Tags
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from luma_constructs import _names
from luma_constructs._host_fleet import HostFleet, HostPlan, check_hosts, imported
from luma_constructs._seal_checks import check_enclave, check_seal
from luma_constructs._validation import Problems
from luma_constructs.enclave_image_file import EnclaveImage
from luma_constructs.fleet_interface import IAcceleratorFleet
from luma_constructs.host_settings import HostSettings
from luma_constructs.key_policy import (
    AcceptedAmis,
    Level,
    key_statements,
    policy_statements,
)
from luma_constructs.run_store import RunStore

__all__ = ["SealedCompiler"]

_TYPES: Final = ("m7i.2xlarge", "m7i.4xlarge", "c7i.4xlarge")
"""8 processors and 32 GiB or more: half of it is for the enclave."""

_MEASUREMENTS: Final = "/etc/luma/measurements.json"
_ENCLAVE_ADDRESS: Final = "vsock:16:5005"
_DRAIN: Final = Duration.minutes(15)
"""A compile that began is worth its end."""


class SealedCompiler(HostFleet):
    """Hosts that compile and seal, none while nothing is compiled.

    Args:
        vpc: network of the hosts.
        store: where its runs lie.
        level: seal level of what it makes: "L1", "L2" or "L3". Default: "L2"
        customer: name of the customer, as artifacts carry it; needed for a key. Default: - none; at
            L1 then, artifacts are sealed with the key file of their run.
        enclave_image: the compiler's image; needed at L2 and L3, and only there.
        amis: attestable AMIs that may open artifacts; needed at L3, and only there.
        agents: roles of the nodes that open artifacts; needed for a new key. Default: - none.
        administrators: roles that administer the key and cannot use it. Default: - the account:
            whoever its IAM policies allow.
        key: a key of the customer's, whose policy this construct leaves as it is. Default: - a new
            one, retained, with the policy of `luma_constructs.key_policy`.
        max_capacity: most hosts. Default: 1
        instance_types: of x86_64. Default: - types with 8 processors and 32 GiB or more.
        enclave_memory: memory of the enclave. Default: Size.gibibytes(8)
        enclave_cpus: processors of the enclave, an even number. Default: 4
        vpc_subnets: where hosts go. Default: - private subnets of every zone.
        security_group: Default: - a new one.
        role: of the hosts; it gets the permissions of a node. Default: - a new one.
        host: image, disk and packages. Default: - `HostSettings()`

    Raises:
        PropError: props that cannot work, all of them at once.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        vpc: ec2.IVpc,
        store: RunStore,
        level: Level = "L2",
        customer: str | None = None,
        enclave_image: EnclaveImage | None = None,
        amis: AcceptedAmis | None = None,
        agents: Sequence[iam.IRole] = (),
        administrators: Sequence[iam.IRole] = (),
        key: kms.IKey | None = None,
        max_capacity: int = 1,
        instance_types: Sequence[ec2.InstanceType] | None = None,
        enclave_memory: Size | None = None,
        enclave_cpus: int = 4,
        vpc_subnets: ec2.SubnetSelection | None = None,
        security_group: ec2.ISecurityGroup | None = None,
        role: iam.IRole | None = None,
        host: HostSettings | None = None,
    ) -> None:
        super().__init__(scope, id)
        host = host or HostSettings()
        memory = enclave_memory or Size.gibibytes(8)
        given = tuple(dict.fromkeys(one.to_string() for one in instance_types or ()))
        names = _TYPES if instance_types is None else given
        problems = Problems("SealedCompiler", self)
        check_hosts(problems, names, max_capacity, host)
        check_seal(problems, level, customer, enclave_image, amis, key)
        problems.check(
            bool(agents) or customer is None or key is not None,
            "agents",
            [],
            "at least one role of nodes that open what is sealed",
            "pass [fleet.role for fleet in fleets]",
        )
        if enclave_image is not None:
            check_enclave(problems, names, enclave_image, memory, enclave_cpus)
        problems.raise_all()
        self.level = level
        """Seal level of what it makes."""
        self.customer = customer
        """Name of the customer; None where artifacts are sealed with key files."""
        placed = None if enclave_image is None else enclave_image.place(self)
        prepare: tuple[str, ...] = ()
        environment = {"LUMA_COMPILER": "local"}
        if enclave_image is not None and placed is not None:
            prepare = _enclave_commands(enclave_image, placed.url, memory, enclave_cpus)
            environment = {"LUMA_COMPILER": _ENCLAVE_ADDRESS, "LUMA_MEASUREMENTS": _MEASUREMENTS}
        self._build(
            HostPlan(
                fleet_name=_names.COMPILER_FLEET,
                target=_names.COMPILER_FLEET,
                vpc=vpc,
                store=store,
                max_capacity=max_capacity,
                instance_types=names,
                family="cpu" if enclave_image else "compiler",
                drain_timeout=_DRAIN,
                vpc_subnets=vpc_subnets,
                security_group=security_group,
                role=role,
                host=host,
                enclave=enclave_image is not None,
                compiles=True,
                prepare=prepare,
                environment=environment,
            )
        )
        if placed is not None:
            placed.grant_read(self._role)
        self.key: kms.IKey | None = key
        """The customer's key; None where artifacts are sealed with key files."""
        if key is None and customer is not None:
            self.key = self._new_key(level, customer, enclave_image, amis, agents, administrators)
        elif key is not None:
            Annotations.of(self).add_info_v2(
                "luma:foreignKeyPolicy",
                "key: its policy is not checked; `luma verify --key-policy` judges it",
            )

    @classmethod
    def from_compiler_attributes(
        cls,
        scope: Construct,
        id: str,
        *,
        queue: sqs.IQueue,
        role: iam.IRole,
        auto_scaling_group: autoscaling.IAutoScalingGroup,
        security_group: ec2.ISecurityGroup | None = None,
        deployment_name: str | None = None,
    ) -> IAcceleratorFleet:
        """Give a compiler's hosts that exist already; no resource is made.

        Args:
            scope: the construct that it belongs to.
            id: of the import.
            queue: where they take work from.
            role: role of the instances.
            auto_scaling_group: the instances.
            security_group: Default: - none; rules of connections go nowhere.
            deployment_name: name of its deployment. Default: - the stack's name.
        """
        return imported(
            scope,
            id,
            _names.COMPILER_FLEET,
            queue=queue,
            role=role,
            auto_scaling_group=auto_scaling_group,
            security_group=security_group,
            deployment_name=deployment_name,
        )

    def _new_key(
        self,
        level: Level,
        customer: str,
        image: EnclaveImage | None,
        amis: AcceptedAmis | None,
        agents: Sequence[iam.IRole],
        administrators: Sequence[iam.IRole],
    ) -> kms.IKey:
        """Make the key. Its policy is the whole truth: no IAM policy can add to what it denies."""
        stack = Stack.of(self)
        account = stack.format_arn(service="iam", region="", resource="root")
        statements = key_statements(
            level=level,
            customer=customer,
            administrators=[role.role_arn for role in administrators] or [account],
            sealers=[self._role.role_arn],
            agents=list(dict.fromkeys(role.role_arn for role in agents)),
            images=image.accepted if image is not None else None,
            amis=amis,
        )
        key = kms.Key(
            self,
            "Key",
            description=f"Luma artifacts of {customer}, {level}",
            policy=iam.PolicyDocument(statements=policy_statements(statements)),
            enable_key_rotation=True,
            removal_policy=RemovalPolicy.RETAIN,
        )
        Tags.of(key).add("luma:customer", customer)
        return cast("kms.IKey", key)  # `alias_name` in one is `alias` in the other


def _enclave_commands(image: EnclaveImage, url: str, memory: Size, cpus: int) -> tuple[str, ...]:
    """Give what makes a host the enclave's parent, before its node starts."""
    options: Mapping[str, str] = {
        "--eif": url,
        "--memory-mib": str(int(memory.to_mebibytes())),
        "--cpus": str(cpus),
        "--region": Aws.REGION,
    }
    words = " ".join(f"{name} {shlex.quote(value)}" for name, value in options.items())
    return (
        f"bash /opt/luma/src/node/enclave_host.sh {words}",
        f"echo {shlex.quote(image.measurements)} >{_MEASUREMENTS}",
    )
