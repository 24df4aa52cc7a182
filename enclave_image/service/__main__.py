"""`python -m enclave_image.service`: what the enclave's first process starts.

    python -m enclave_image.service                          in an enclave: vsock, its own NSM
    python -m enclave_image.service --listen unix:/run/luma/compile.sock

Without a security module it is a local service, level L1, and says so.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from enclave_image.nsm import security_module
from enclave_image.service.address import DEFAULT_PORT, Address, listen
from enclave_image.service.limits import Limits, total_memory
from enclave_image.service.logs import log, log_to
from enclave_image.service.server import CompileService
from enclave_image.service.session import Identity
from runtime.spec.errors import LumaError

__all__ = ["main", "serve"]

_ENCLAVE_ADDRESS = f"vsock:any:{DEFAULT_PORT}"
_FIRST_CHILD_USER = 20_000
_FOR_THE_SERVICE = 2 << 30
"""Memory that no compiling process is given: packages and artifacts of the service itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; give the exit code."""
    options = _parser().parse_args(arguments)
    try:
        serve(Address.parse(options.listen), compiles=options.compiles, queue=options.queue)
    except LumaError as error:
        sys.stderr.write(f"{error.diagnostics()}\n")
        return error.exit_code
    return 0


def serve(address: Address, *, compiles: int, queue: int) -> None:
    """Serve on an address until SIGTERM or SIGINT; for a process's main thread.

    Args:
        address: where to listen.
        compiles: compiling processes at once.
        queue: requests that may wait beside those.

    Raises:
        ServiceError: the address cannot be listened on.
        NsmError: there is a security module, but it cannot be used.
    """
    log_to()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold keys and graphs
    attester = security_module()
    limits = Limits(
        compiles=compiles,
        queue=queue,
        child_bytes=_child_bytes(compiles),
        # In an enclave the service is root, and what compiles a customer's graph must not be.
        child_user=None if attester is None else _FIRST_CHILD_USER,
    )
    service = CompileService(listen(address), Identity(attester), limits)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    log("listening", address=str(address))
    try:
        service.serve()
    finally:
        if address.family == "unix":
            Path(address.path).unlink(missing_ok=True)


def _child_bytes(compiles: int) -> int:
    """Share the memory out, and keep some for the service."""
    total = total_memory()
    return max(total // 2, total - _FOR_THE_SERVICE) // compiles


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="enclave_image.service", description=__doc__)
    parser.add_argument("--listen", default=_ENCLAVE_ADDRESS)
    parser.add_argument("--compiles", type=int, default=1)
    parser.add_argument("--queue", type=int, default=8)
    return parser


if __name__ == "__main__":
    sys.exit(main())
