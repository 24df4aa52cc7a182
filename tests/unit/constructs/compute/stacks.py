"""The stacks that these tests look at; each is synthesized at most once in a process."""

from __future__ import annotations

import functools
import struct
import tempfile
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from luma_constructs import (
    AcceleratorFleet,
    CoordinatorHost,
    DrainDocument,
    EnclaveImage,
    ExternalFleet,
    ExternalIdentity,
    FleetNetwork,
    HostSettings,
    InferenceService,
    Purchase,
    RunStore,
    SealedCompiler,
    TrustAnchorSource,
    WheelSource,
)
from luma_constructs.key_policy import AcceptedAmis

PCR0 = "ab" * 48
REGISTERS = {"PCR0": PCR0, "PCR1": "cd" * 48, "PCR2": "ef" * 48}
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
GOOGLE_ACCOUNT = "123456789012345678901"


def base(app: cdk.App, name: str = "Luma", **options) -> tuple[cdk.Stack, ec2.IVpc, RunStore]:
    """A stack with a network and a store."""
    stack = cdk.Stack(app, name)
    vpc = ec2.Vpc(stack, "Vpc", restrict_default_security_group=False)
    return stack, vpc, RunStore(stack, "Store", **options)


def fleets(app: cdk.App) -> cdk.Stack:
    """Fleets of each kind, a coordinator, and a role that may do everything with two of them."""
    stack, vpc, store = base(app)
    spot = AcceleratorFleet(
        stack, "Spot", fleet_name="l4", target="cuda-sm89", vpc=vpc, store=store, order=1,
        drain_timeout=cdk.Duration.seconds(100),
    )  # fmt: skip
    AcceleratorFleet(
        stack, "Mixed", fleet_name="mixed", target="cpu", vpc=vpc, store=store, max_capacity=3,
        purchase=Purchase.mixed(on_demand_base=1, on_demand_percent=25),
        instance_types=[ec2.InstanceType("c7i.2xlarge"), ec2.InstanceType("m7i.2xlarge")],
    )  # fmt: skip
    AcceleratorFleet(
        stack, "OnDemand", fleet_name="floor", target="cpu", vpc=vpc, store=store,
        purchase=Purchase.on_demand(), unlisted_instance_types=[ec2.InstanceType("c8g.large")],
        host=HostSettings(
            environment={"LUMA_NOTICE_EVERY_S": "2"}, root_volume_size=cdk.Size.gibibytes(40)
        ),
    )  # fmt: skip
    AcceleratorFleet(
        stack, "Efa", fleet_name="h100", target="cuda-sm90x8", vpc=vpc, store=store,
        network=FleetNetwork.EFA,
    )  # fmt: skip
    AcceleratorFleet(
        stack, "Block", fleet_name="block", target="trn2x16", vpc=vpc, store=store,
        purchase=Purchase.capacity_block("cr-0123456789abcdef0"),
        instance_types=[ec2.InstanceType("trn2.48xlarge")],
    )  # fmt: skip
    coordinator = CoordinatorHost(stack, "Coordinator", vpc=vpc, store=store)
    spot.connect_islands(coordinator)
    document = DrainDocument(stack, "Drain", timeout=cdk.Duration.seconds(100))
    machine = iam.Role(stack, "Machine", assumed_by=iam.ServicePrincipal("states.amazonaws.com"))
    grants = spot.grants
    for grant in (
        grants.give_work(machine), grants.scale(machine), grants.replace(machine),
        grants.watch(machine), grants.drain(machine, document), store.grants.read(machine),
    ):  # fmt: skip
        grant.assert_success()
    engineer = iam.Role(stack, "Engineer", assumed_by=iam.AccountRootPrincipal())
    store.grants.submit(engineer).assert_success()
    return stack


def own_everything(app: cdk.App) -> cdk.Stack:
    """Everything brought along: key, bucket, table's key, roles, network, wheels."""
    key_stack = cdk.Stack(app, "Keys")
    key = kms.Key(key_stack, "Key")
    stack, vpc, store = base(app, "Own", encryption_key=key, deployment_name="team-a")
    role = iam.Role(stack, "Role", assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"))
    group = ec2.SecurityGroup(stack, "Group", vpc=vpc)
    wheels = WheelSource(
        bucket=s3.Bucket.from_bucket_name(stack, "Wheels", "team-wheels"), prefix="cuda/"
    )
    AcceleratorFleet(
        stack, "Fleet", fleet_name="l4", target="cuda-sm89", vpc=vpc, store=store, role=role,
        security_group=group, vpc_subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PUBLIC),
        host=HostSettings(wheels=wheels, root_device="/dev/sda1"),
    )  # fmt: skip
    return stack


def sealed(app: cdk.App) -> cdk.Stack:
    """A compiler of level L2, whose image lies in a bucket."""
    stack, vpc, store = base(app, "Sealed")
    fleet = AcceleratorFleet(
        stack, "Fleet", fleet_name="l4", target="cuda-sm89", vpc=vpc, store=store
    )
    images = s3.Bucket.from_bucket_name(stack, "Images", "team-images")
    SealedCompiler(
        stack, "Compiler", vpc=vpc, store=store, customer="acme", agents=[fleet.role],
        enclave_image=EnclaveImage.from_bucket(images, "compiler.eif", registers=REGISTERS),
        enclave_memory=cdk.Size.gibibytes(12), enclave_cpus=6,
    )  # fmt: skip
    return stack


def sealed_l3(app: cdk.App) -> cdk.Stack:
    """A compiler of level L3, whose image is a file."""
    stack, vpc, store = base(app, "SealedThree")
    agent = iam.Role.from_role_arn(stack, "Agent", "arn:aws:iam::111122223333:role/agent")
    admin = iam.Role.from_role_arn(stack, "Admin", "arn:aws:iam::111122223333:role/admin")
    SealedCompiler(
        stack, "Compiler", vpc=vpc, store=store, level="L3", customer="acme", agents=[agent],
        administrators=[admin], enclave_image=EnclaveImage.from_file(small_image()),
        amis=AcceptedAmis(pcrs={"PCR7": ("12" * 48,)}),
    )  # fmt: skip
    return stack


def key_file(app: cdk.App) -> cdk.Stack:
    """A compiler of level L1 that seals with key files: no enclave, no key."""
    stack, vpc, store = base(app, "KeyFile")
    SealedCompiler(stack, "Compiler", vpc=vpc, store=store, level="L1")
    return stack


def external(app: cdk.App) -> cdk.Stack:
    """Hosts outside EC2, known in each way."""
    stack, _, store = base(app, "External")
    provider = iam.OpenIdConnectProvider.from_open_id_connect_provider_arn(
        stack, "Provider", "arn:aws:iam::111122223333:oidc-provider/id.example.com"
    )
    anchor = TrustAnchorSource(certificate_bundle=PEM)
    identities = {
        "ssm": ("tpu-v5e", ExternalIdentity.ssm_activation()),
        "amd": ("rocm-gfx942", ExternalIdentity.roles_anywhere(anchor, common_names=["mi-*.lab"])),
        "tpu": (
            "tpu-v6e",
            ExternalIdentity.google(service_accounts=[GOOGLE_ACCOUNT], audience="luma"),
        ),
        "oidc": (
            "tpu-v4",
            ExternalIdentity.oidc(provider, audience="luma", subjects=["node:a", "node:b"]),
        ),
    }
    for name, (target, identity) in identities.items():
        fleet = ExternalFleet(
            stack, name, fleet_name=name, target=target, store=store, identity=identity,
            peer=ec2.Peer.ipv4("10.8.0.0/16"), usd_per_hour=2.5,
        )  # fmt: skip
        cdk.CfnOutput(stack, f"{name}script", value=fleet.set_up_script)
    return stack


def inference(app: cdk.App) -> cdk.Stack:
    """A service behind a load balancer."""
    stack, vpc, store = base(app, "Serve")
    service = InferenceService(
        stack, "Chat", vpc=vpc, store=store, run="tiny", target="cuda-sm89", model_name="tiny-llama"
    )
    service.connections.allow_from(ec2.Peer.ipv4("10.0.0.0/16"), ec2.Port.tcp(80))
    return stack


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="luma-eif-")


def small_image() -> Path:
    """An EIF of four sections with known measurements (facts of AWS's own builder)."""
    sections = [(1, b"kernel"), (2, b"console=ttyS0"), (5, b"{}"), (3, b"rd0"), (3, b"rd1")]
    header = struct.Struct(">4sHHQQHH32Q32QII")
    offset, offsets, sizes, body = header.size, [], [], b""
    for kind, data in sections:
        offsets.append(offset + len(body))
        sizes.append(len(data))
        body += struct.pack(">HHQ", kind, 0, len(data)) + data
    blank = [0] * (32 - len(sections))
    packed = header.pack(
        b".eif", 4, 0, 1 << 30, 2, 0, len(sections), *offsets, *blank, *sizes, *blank, 0, 0
    )
    path = Path(_scratch().name, "small.eif")
    path.write_bytes(packed + body)
    return path
