"""`HostSettings`: the machine image, disk and packages of a fleet's instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aws_cdk import Size
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms

from luma_constructs._catalogue import Architecture
from luma_constructs._fleet_parts import ROOT_DEVICE
from luma_constructs._validation import Problems, is_known
from luma_constructs.agent_bootstrap import WheelSource

__all__ = ["HostSettings", "default_image", "default_volume"]

# Public parameters of AWS, resolved by CloudFormation at deployment: nothing is looked up at synth.
# NVIDIA: DLAMI developer guide, "Finding the ID of a DLAMI". Neuron: Neuron DLAMI user guide.
_NVIDIA = (
    "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-amazon-linux-2023/latest/ami-id"
)
_NEURON = "/aws/service/neuron/dlami/base/amazon-linux-2023/latest/image_id"

_NOT_IN_VALUES = frozenset("\n\r\"'\\")
"""What systemd would take for something else in an environment file (systemd.exec(5))."""

_SMALLEST_GIB = 8
_LARGEST_GIB = 16384


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSettings:
    """What an instance boots and installs.

    Attributes:
        machine_image: an image with systemd, the AWS CLI and the driver of the chips. Default: -
            Amazon Linux 2023; with NVIDIA's driver or Neuron's where the target needs it.
        root_device: device name of its root volume. Default: "/dev/xvda"
        root_volume_size: Default: - 100 GiB, 200 GiB with a vendor's driver.
        volume_key: key of the volume; its policy must let the service-linked role of EC2 Auto
            Scaling use it. Default: - the account's default key for EBS.
        wheels: where Python packages come from. Default: - the package index that pip is configured
            for, by the VPC's way out.
        environment: more variables of the node's service.
    """

    machine_image: ec2.IMachineImage | None = None
    root_device: str = ROOT_DEVICE
    root_volume_size: Size | None = None
    volume_key: kms.IKey | None = None
    wheels: WheelSource | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def check(self, problems: Problems) -> None:
        """Note what is not allowed."""
        size = self.root_volume_size
        if size is not None and is_known(size):
            problems.whole(
                "host.root_volume_size", int(size.to_gibibytes()), _SMALLEST_GIB, _LARGEST_GIB
            )
        problems.check(
            self.root_device.startswith("/dev/"),
            "host.root_device",
            self.root_device,
            "a device of the image, such as '/dev/xvda' or '/dev/sda1'",
        )
        for name, value in self.environment.items():
            problems.check(
                name.isidentifier() and not set(value) & _NOT_IN_VALUES,
                "host.environment",
                name,
                "names of letters, digits and '_', values of one line without quotes and backslashes",
            )


def default_image(family: str, architecture: Architecture) -> ec2.IMachineImage:
    """Give Amazon Linux 2023 with the driver that a family of targets needs."""
    if family == "cuda":
        return ec2.MachineImage.from_ssm_parameter(_NVIDIA.format(architecture))
    if family == "neuron":
        return ec2.MachineImage.from_ssm_parameter(_NEURON)
    arm = architecture == "arm64"
    cpu = ec2.AmazonLinuxCpuType.ARM_64 if arm else ec2.AmazonLinuxCpuType.X86_64
    return ec2.MachineImage.latest_amazon_linux2023(cpu_type=cpu)


def default_volume(family: str) -> Size:
    """Give the size of the root volume; images with a vendor's driver hold 75 GiB and more."""
    return Size.gibibytes(200 if family in ("cuda", "neuron") else 100)
