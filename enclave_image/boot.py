"""The first ramdisk: /init, the folders that it mounts on, and a driver where the kernel needs one.

Together with kernel and command line it is what PCR1 measures. The first process is `init` of this
package, started by the image's own Python.
"""

from __future__ import annotations

from pathlib import Path

from enclave_image.cpio import Directory, Entry, File
from enclave_image.eif.layout import Architecture
from enclave_image.interpreter import PROGRAM

__all__ = ["COMMAND_LINES", "boot_entries"]

_INIT = Path(__file__).with_name("init.py")

# AWS's own, from its enclave command line tool. The hypervisor appends the addresses of its devices.
COMMAND_LINES = {
    Architecture.X86_64: (
        "reboot=k panic=30 pci=off nomodules console=ttyS0 i8042.noaux i8042.nomux i8042.nopnp "
        "i8042.dumbkbd random.trust_cpu=on"
    ),
    Architecture.AARCH64: (
        "reboot=k panic=30 pci=off nomodules console=ttyS0 random.trust_cpu=on root=/dev/ram0"
    ),
}


def boot_entries(*, init: bytes | None = None, nsm: bytes | None = None) -> tuple[Entry, ...]:
    """Give the first ramdisk's entries.

    Args:
        init: another first process than ours, its content.
        nsm: likewise the driver of the security module, for kernels that do not have it built in.
    """
    script = b"#!/" + PROGRAM.encode() + b" -IS\n" + _INIT.read_bytes()
    entries: list[Entry] = [
        *(Directory(name) for name in ("dev", "proc", "run", "sys")),
        Directory("root", 0o700),
        Directory("tmp", 0o1777),
        File("init", script if init is None else init, 0o755),
    ]
    if nsm is not None:
        entries.append(File("nsm.ko", nsm, 0o644))
    return tuple(entries)
