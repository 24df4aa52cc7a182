"""What a boot needs from this machine, and a list of all that is missing."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

QEMU = "qemu-system-x86_64"
DEVICE = "vhost-device-vsock"
MICROVM = "microvm"
NITRO = "nitro-enclave"
_ASK_S = 60


class BootError(Exception):
    """A boot that failed; the text says where, and ends with what was last seen."""


class MissingError(BootError):
    """Something that a boot needs is not here.

    Args:
        things: all of them, each with where it comes from.
    """

    def __init__(self, things: list[str]) -> None:
        super().__init__("; ".join(things))
        self.things = things


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The programs and files of a boot.

    Attributes:
        qemu: the emulator.
        machine: `nitro-enclave` where this QEMU has it, which measures and attests; else `microvm`.
        device: the other end of the guest's vsock.
        kernel: the kernel that goes into the image.
        pins: where its digest stands.
        nsm: the driver of the security module, for a kernel without it.
        data: folders of QEMU's firmware, where they are not in their usual place.
    """

    qemu: Path
    machine: str
    device: Path
    kernel: Path
    pins: Path
    nsm: Path | None = None
    data: tuple[Path, ...] = ()


def find_tools(
    *,
    kernel: Path | None,
    pins: Path,
    qemu: str = QEMU,
    device: str = DEVICE,
    machine: str | None = None,
    nsm: Path | None = None,
    data: tuple[Path, ...] = (),
) -> Tools:
    """Find everything.

    Args:
        kernel: a pinned kernel; there is no usual place for one.
        pins: the file that pins it.
        qemu: name or path of the emulator.
        device: name or path of the vsock device.
        machine: `microvm` or `nitro-enclave`; None takes the latter where QEMU has it.
        nsm: a pinned driver.
        data: folders of QEMU's firmware.

    Raises:
        MissingError: with all that is not here.
    """
    missing = []
    if platform.machine() != "x86_64":
        missing.append(f"a machine of x86_64 (this is {platform.machine()})")
    found_qemu = shutil.which(qemu)
    if found_qemu is None:
        missing.append(f"{qemu} (Debian: qemu-system-x86; or QEMU=FILE)")
    found_device = shutil.which(device)
    if found_device is None:
        missing.append(f"{device} (Debian: {DEVICE}, in sid and forky; or DEVICE=FILE)")
    if kernel is None:
        missing.append("a kernel (KERNEL=FILE, pinned by PINS=FILE; see docs/how-to)")
    elif not kernel.is_file():
        missing.append(f"a kernel ({kernel} is no file)")
    chosen = None if found_qemu is None else choose_machine(_machines(found_qemu), machine)
    if found_qemu is not None and chosen is None:
        missing.append(f"a QEMU with the machine {machine or MICROVM} ({found_qemu} has none)")
    if missing or not (found_qemu and found_device and kernel and chosen):
        raise MissingError(missing)
    return Tools(
        qemu=Path(found_qemu),
        machine=chosen,
        device=Path(found_device),
        kernel=kernel,
        pins=pins,
        nsm=nsm,
        data=data,
    )


def choose_machine(listed: frozenset[str], asked: str | None) -> str | None:
    """Give the asked machine, else the one that attests, else the plain one; None without any."""
    wanted = (asked,) if asked else (NITRO, MICROVM)
    return next((name for name in wanted if name in listed), None)


def read_machines(text: str) -> frozenset[str]:
    """Give the names that `qemu -machine help` prints, one a line, each before its description."""
    return frozenset(line.split()[0] for line in text.splitlines() if line.strip())


def _machines(qemu: str) -> frozenset[str]:
    """Ask a QEMU for its machines.

    Raises:
        BootError: it does not run.
    """
    try:
        done = subprocess.run(
            [qemu, "-machine", "help"], capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BootError(f"{qemu} does not run: {error}") from error
    if done.returncode != 0:
        raise BootError(f"{qemu} does not run: {done.stderr.strip()[-400:]}")
    return read_machines(done.stdout)
