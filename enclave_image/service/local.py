"""The service as a part of the process that asks it: what `luma compile` uses without an address.

    with local_service(OwnMachine(signing_key=key, cache_dir=folder, cache_key=key)) as address:
        compile_in_service(address, order, output=path)

The same sockets, messages and jobs as everywhere, level L1. Since nobody else reaches it, it may
sign with this machine's own key and keep compiled payloads in this machine's cache.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

from enclave_image.service.address import Address, listen
from enclave_image.service.limits import Limits, total_memory
from enclave_image.service.own_machine import OwnMachine
from enclave_image.service.server import CompileService
from enclave_image.service.session import Identity

__all__ = ["OwnMachine", "local_service"]

_LONGEST = 90
"""Characters of a folder that leave room for a socket's name in its 107 bytes, unix(7)."""


@contextlib.contextmanager
def local_service(machine: OwnMachine, *, compiles: int = 1) -> Generator[Address]:
    """Run the service in a thread, reachable by this user alone, until the context ends.

    Args:
        machine: what it may use of this machine.
        compiles: compiling processes at once.

    Raises:
        ServiceError: no socket can be made.
    """
    with _short_folder() as folder:
        address = Address.parse(f"unix:{Path(folder) / 's'}")
        identity = Identity(None, machine=machine)
        # A limit at which nothing else would fit either: the memory is the user's own.
        limits = Limits(compiles=compiles, queue=0, child_bytes=total_memory())
        service = CompileService(listen(address), identity, limits)
        thread = threading.Thread(target=service.serve, name="luma-service")
        thread.start()
        try:
            yield address
        finally:
            service.stop()
            thread.join()


def _short_folder() -> tempfile.TemporaryDirectory[str]:
    """Give a new folder of this user's alone, of a name that a socket's address can hold."""
    usual = tempfile.gettempdir()
    short = len(os.fsencode(usual)) <= _LONGEST
    return tempfile.TemporaryDirectory(prefix="luma-", dir=usual if short else "/tmp")  # noqa: S108
