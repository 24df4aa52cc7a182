"""The command lines: QEMU by emulation (TCG) as a microvm or a Nitro enclave, and the vsock device.

A microvm gets the sections of an image one by one, and no security module. The machine
`nitro-enclave` (QEMU 9.2, where it was built with libcbor) takes the image's file, measures it, and
has a module whose documents nobody signed.

Traps: with ACPI a microvm hangs under TCG; /dev/kvm may be there where no kernel boots on it, so
it is not even tried; the guest's memory must be shared with the vsock device's process.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.e2e.boot.tools import MICROVM, Tools

GUEST_CID = 4
ROLE = "arn:aws:iam::123456789012:role/luma-boot-test"
INSTANCE = "i-0123456789abcdef0"


@dataclass(frozen=True, slots=True)
class Wiring:
    """The sockets of a boot, in a folder of a short path (a unix socket's has 107 bytes at most)."""

    folder: Path

    @property
    def control(self) -> Path:
        """Where QEMU and the vsock device meet."""
        return self.folder / "vu.sock"

    @property
    def host(self) -> Path:
        """Where this side connects to the guest's ports."""
        return self.folder / "v.sock"

    def guest_calls(self, port: int) -> Path:
        """Give where this side listens for what the guest sends to a port of its parent."""
        return self.folder / f"v.sock_{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a machine boots.

    Attributes:
        eif: the image.
        kernel: its kernel section.
        initrd: its ramdisks, one behind the other.
        cmdline: its command line.
    """

    eif: Path
    kernel: Path
    initrd: Path
    cmdline: str


def device_command(tools: Tools, wiring: Wiring) -> list[str]:
    """Give the command of the vsock device."""
    vm = f"guest-cid={GUEST_CID},uds-path={wiring.host},socket={wiring.control}"
    return [str(tools.device), "--vm", vm]


def qemu_command(tools: Tools, wiring: Wiring, parts: Parts, *, memory_mib: int) -> list[str]:
    """Give QEMU's command; the console is its standard output.

    Args:
        tools: the emulator, and which machine.
        wiring: the sockets.
        parts: what boots.
        memory_mib: the guest's memory; packed and unpacked ramdisks are in it at once.
    """
    machine = _microvm if tools.machine == MICROVM else _nitro_enclave
    return [
        str(tools.qemu),
        *(word for folder in tools.data for word in ("-L", str(folder))),
        *("-accel", "tcg", "-cpu", "max", "-m", f"{memory_mib}M"),
        *("-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"),
        *("-chardev", f"socket,id=c,path={wiring.control}"),
        *machine(parts, memory_mib),
    ]


def _microvm(parts: Parts, memory_mib: int) -> list[str]:
    return [
        *("-M", "microvm,acpi=off,pit=on,pic=on,rtc=on,memory-backend=m"),
        *("-object", f"memory-backend-memfd,id=m,size={memory_mib}M,share=on"),
        *("-device", "vhost-user-vsock-device,chardev=c"),
        *("-kernel", str(parts.kernel), "-initrd", str(parts.initrd), "-append", parts.cmdline),
    ]


def _nitro_enclave(parts: Parts, _memory_mib: int) -> list[str]:
    options = f"vsock=c,id={INSTANCE}-enc0123456789abcdef,parent-role={ROLE},parent-id={INSTANCE}"
    return ["-M", f"nitro-enclave,{options}", "-kernel", str(parts.eif)]
