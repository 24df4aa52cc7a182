"""The enclave's first process: mounts, heartbeat, the service, and the end of the enclave.

The kernel starts this file as /init through its first line (`boot.py` writes it), so it is a script
of the image's own Python, and building an image needs no C compiler whose output would have to be
reproduced; the kernel needs CONFIG_BINFMT_SCRIPT, which those of AWS's enclaves have. It uses the
standard library alone and runs with `-I -S`: no environment and no packages decide what it does.

In order: mount what a process expects to find, open the console, load the driver of the security
module where the image holds one (`/nsm.ko`; kernels since 6.8 have it built in), say to the
hypervisor that the enclave has booted (a byte to port 9000 of the parent and back, without which it
is killed), start the service, collect orphaned processes, and reboot when the service ends, which
ends the enclave: the parent's unit starts another one.

The files of an image lie in the initial root file system, which is memory, and stay there: /tmp is
an ordinary folder of it, so a compiler may load libraries that it writes there.

This has run in a Linux name space with the image's own files, and as process 1 of Linux 6.12 on
QEMU's machines microvm and nitro-enclave (TCG), where the service that it started answered a compile
(docs/how-to/boot-the-image.md). It has never run on a Nitro machine.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import sys
from collections.abc import Callable
from typing import NamedTuple

PYTHON = "/opt/luma/python/bin/python3"
SERVICE = (PYTHON, "-s", "-P", "-m", "enclave_image.service")
ENVIRONMENT = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PATH": "/opt/luma/python/bin",
    "PYTHONPATH": "/opt/luma/code",
    "PYTHONUNBUFFERED": "1",
    "TMPDIR": "/tmp",  # noqa: S108 (the image's own root file system)
    "USER": "root",  # there is no /etc/passwd to look it up in
}

HEARTBEAT_PORT = 9000
HEARTBEAT = b"\xb7"
# The parent is 3 on Nitro, 2 behind vhost-device-vsock, where 3 is answered by nobody.
PARENT_CIDS = (3, 2)
_HEARTBEAT_TIMEOUT_S = 5.0

_NSM_DRIVER = "/nsm.ko"
_FINIT_MODULE = {"x86_64": 313, "aarch64": 273}
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_SAFE = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
_REBOOT = 0x01234567


class Mount(NamedTuple):
    """A file system and where it goes."""

    kind: str
    path: str
    flags: int
    options: str = ""


MOUNTS = (
    Mount("devtmpfs", "/dev", _MS_NOSUID),
    Mount("proc", "/proc", _SAFE),
    Mount("sysfs", "/sys", _SAFE),
    Mount("devpts", "/dev/pts", _MS_NOSUID | _MS_NOEXEC),
    Mount("tmpfs", "/dev/shm", _MS_NOSUID | _MS_NODEV, "mode=1777"),  # noqa: S108
    Mount("tmpfs", "/run", _SAFE, "mode=0755"),
)


def log(text: str) -> None:
    """Write a line to the console; nothing reads it outside of debug mode."""
    try:
        os.write(2, f"luma-init: {text}\n".encode())
    except OSError:
        return


def mount_all(mount: Callable[[Mount], int], mounts: tuple[Mount, ...] = MOUNTS) -> list[str]:
    """Mount file systems; give the paths of those that could not be, which is logged.

    Args:
        mount: mounts one, gives 0 or an errno.
        mounts: what and where.
    """
    failed = []
    for item in mounts:
        try:
            os.makedirs(item.path, exist_ok=True)  # noqa: PTH103 (pathlib is needed for nothing else)
        except OSError as error:
            log(f"{item.path}: {error.strerror}")
        code = mount(item)
        if code != 0:
            log(f"{item.kind} on {item.path}: {os.strerror(code)}")
            failed.append(item.path)
    return failed


def open_console(path: str = "/dev/console") -> bool:
    """Make the console standard input, output and error; say whether there is one.

    An initial root file system without device nodes leaves these three closed.
    """
    try:
        console = os.open(path, os.O_RDWR)
    except OSError:
        return False
    for number in (0, 1, 2):
        if number != console:
            os.dup2(console, number)
    if console > 2:
        os.close(console)
    return True


def heartbeat(connect: Callable[[int], socket.socket], cids: tuple[int, ...] = PARENT_CIDS) -> bool:
    """Tell the hypervisor's side that the enclave has booted; say whether it answered.

    Args:
        connect: connects to the heartbeat port of a CID, or raises OSError.
        cids: who may answer, in this order.
    """
    for cid in cids:
        try:
            with connect(cid) as peer:
                peer.sendall(HEARTBEAT)
                if peer.recv(1) == HEARTBEAT:
                    return True
                log(f"heartbeat: CID {cid} gave another answer")
        except OSError as error:
            log(f"heartbeat: CID {cid}: {error}")
    return False


def reap_until(child: int, wait: Callable[[], tuple[int, int]] = os.wait) -> int:
    """Collect processes that end until `child` is among them; give its wait status."""
    while True:
        pid, status = wait()
        if pid == child:
            return status


def start_service() -> int:
    """Start the service in a session of its own; give its process id."""
    return os.posix_spawn(SERVICE[0], SERVICE, ENVIRONMENT, setsid=True)


def _mount_one(item: Mount) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    words = (item.kind.encode(), item.path.encode(), item.kind.encode())
    code = libc.mount(*words, ctypes.c_ulong(item.flags), item.options.encode() or None)
    return 0 if code == 0 else ctypes.get_errno()


def _load_driver(path: str = _NSM_DRIVER) -> None:
    """Load the security module's driver where the image holds one."""
    if not os.path.exists(path):  # noqa: PTH110 (likewise)
        return
    number = _FINIT_MODULE.get(platform.machine())
    if number is None:
        log(f"{path}: no number of finit_module for {platform.machine()}")
        return
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.syscall(ctypes.c_long(number), descriptor, b"", 0) != 0:
            log(f"{path}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)


def _connect(cid: int) -> socket.socket:
    peer = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    peer.settimeout(_HEARTBEAT_TIMEOUT_S)
    try:
        peer.connect((cid, HEARTBEAT_PORT))
    except OSError:
        peer.close()
        raise
    return peer


def main() -> int:
    """Boot; never returns in an enclave."""
    if os.getpid() != 1:
        log("this boots an enclave, and is for process 1 alone")
        return 2
    os.umask(0o022)
    os.chdir("/")
    mount_all(_mount_one)
    open_console()
    _load_driver()
    if not heartbeat(_connect):
        log("heartbeat: nobody answered; going on, as under an emulator")
    try:
        service = start_service()
    except OSError as error:
        log(f"service: cannot start: {error.strerror}")
    else:
        status = reap_until(service)
        log(f"service: ended with exit code {os.waitstatus_to_exitcode(status)}")
    os.sync()
    ctypes.CDLL(None).reboot(_REBOOT)
    return 1


if __name__ == "__main__":
    sys.exit(main())
