"""`luma enclave serve` and `metrics`: run the compile service, read its figures."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from runtime.cli.output import note, write
from runtime.spec.errors import SpecError


def register(app: App) -> None:
    """Add the commands to the group `enclave`."""
    app["enclave"].command(serve)
    app["enclave"].command(metrics)


def serve(*, listen: str, compiles: int = 1, queue: int = 8) -> int:
    """Run the compile service as a plain process of this machine, until Ctrl-C.

    Its level is L1: whoever has root here can look into it. The same service in the enclave's
    image is what level L2 needs.

    For example:

        luma enclave serve --listen unix:/run/luma/compile.sock

    Args:
        listen: unix:/path; the socket is for this user alone
        compiles: compiling processes at once
        queue: requests that may wait beside those; what is more is told to come back
    """
    from enclave_image.service.__main__ import serve as serve_until_signal
    from enclave_image.service.address import Address

    for name, value in (("--compiles", compiles), ("--queue", queue)):
        if not 0 < value <= 256:
            raise SpecError(f"{name}: {value} is not allowed; expected 1 to 256")
    address = Address.parse(listen)
    if address.family == "unix" and not Path(address.path).absolute().parent.is_dir():
        raise SpecError(f"--listen: the folder '{Path(address.path).parent}' does not exist")
    note(f"L1 (local service) on {address}; Ctrl-C ends it")
    serve_until_signal(address, compiles=compiles, queue=queue)
    return 0


def metrics(service: str, /) -> int:
    """Print the figures of a running compile service, as Prometheus reads them.

    For example:

        luma enclave metrics unix:/run/luma/compile.sock

    Args:
        service: unix:/path or vsock:CID:PORT
    """
    from enclave_image.service.address import Address
    from enclave_image.service.client import read_metrics

    write(read_metrics(Address.parse(service)).removesuffix("\n"))
    return 0
