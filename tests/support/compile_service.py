"""A compile service on a unix socket of a short path, and both ends of its protocol for tests."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from enclave_image.service.address import Address, listen
from enclave_image.service.client import CompileOrder
from enclave_image.service.limits import Limits
from enclave_image.service.protocol import Connection, Deadline
from enclave_image.service.server import CompileService
from enclave_image.service.session import Identity, Trust, open_session
from runtime.compiler import CompileResult
from runtime.compiler.child import Children
from runtime.compiler.graph import GraphPackage
from runtime.spec import CompileError

PATIENCE_S = 90.0
"""Longer than anything here takes on a busy machine; nothing waits for it but a failing test."""

DATA_KEY = b"\x5d" * 32


def patient(**changes) -> Limits:
    """Give limits that no machine is too slow for, but for what a test is about."""
    return Limits(**{"opening_s": PATIENCE_S, "frame_s": PATIENCE_S} | changes)


@contextlib.contextmanager
def short_folder() -> Generator[Path]:
    """Give a folder whose name leaves room in a unix socket's 107 bytes."""
    name = tempfile.mkdtemp(prefix="ls-")
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name)


@dataclass
class Running:
    """A service in a thread of this process."""

    service: CompileService
    address: Address
    jobs: Path

    def connect(self) -> socket.socket:
        """Connect, as anybody can."""
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.settimeout(PATIENCE_S)
        peer.connect(self.address.path)
        return peer

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that the service's threads are about to do."""
        limit = Deadline.after(PATIENCE_S)
        while not holds():
            limit.left_s()
            threading.Event().wait(0.005)

    def wait_for_refusal(self, reason: str, count: int = 1) -> None:
        """Wait until a reason was counted so often, and no connection is left."""
        line = f'luma_service_refusals_total{{reason="{reason}"}} {count}'
        self.wait_until(lambda: line in self.service.metrics.text({}).splitlines())
        self.wait_until(lambda: self.service.gauges()["connections"] == 0)


@contextlib.contextmanager
def running(
    key: rsa.RSAPrivateKey, *, attester=None, limits: Limits | None = None
) -> Generator[Running]:
    """Run a service while the block runs; all of its threads are gone at the end."""
    with short_folder() as folder:
        jobs = folder / "jobs"
        jobs.mkdir()
        address = Address.parse(f"unix:{folder / 's'}")
        service = CompileService(
            listen(address), Identity(attester, key=key), limits or patient(), folder=jobs
        )
        thread = threading.Thread(target=service.serve, name="luma-test-service")
        thread.start()
        try:
            yield Running(service, address, jobs)
        finally:
            service.stop()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
            assert list(jobs.iterdir()) == []


def order(package: GraphPackage | bytes, **changes) -> CompileOrder:
    """Give an order at L1 for the CPU."""
    data = package if isinstance(package, bytes) else package.to_bytes()
    given = {
        "package": data,
        "targets": ("cpu",),
        "micro_shards": 4,
        "level": "L1",
        "data_key": DATA_KEY,
    }
    return CompileOrder(**given | changes)


@contextlib.contextmanager
def client_session(peer: socket.socket, trust: Trust | None = None):
    """Open a session as a client does, and leave the rest to the test."""
    deadline = Deadline.after(PATIENCE_S)
    with Connection(peer, deadline=deadline, idle_s=PATIENCE_S) as connection:
        session, _ = open_session(connection, trust or Trust())
        yield session


class Gate:
    """Stands in the place of the compiler: waits for the test, then gives a payload made before."""

    def __init__(self, result: CompileResult) -> None:
        self.result = result
        self.started = threading.Semaphore(0)
        self.go = threading.Event()
        self.running = 0
        self.most = 0
        self.users: list[int | None] = []
        self._lock = threading.Lock()

    def __call__(self, _package, *, children: Children, **_options) -> CompileResult:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.users.append(children.user)
        self.started.release()
        try:
            while not self.go.wait(0.005):
                if children.ended():
                    raise CompileError("the compiling process was killed")
            return self.result
        finally:
            with self._lock:
                self.running -= 1

    def wait_started(self) -> None:
        """Wait until one more compile has begun."""
        assert self.started.acquire(timeout=PATIENCE_S)


def in_thread(work: Callable[[], object]) -> Callable[[], object]:
    """Start work in a thread; the result joins it, and gives or raises what it did."""
    outcome: list[tuple[bool, object]] = []

    def run() -> None:
        try:
            outcome.append((True, work()))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=run)
    thread.start()

    def join() -> object:
        thread.join(PATIENCE_S)
        assert outcome, "the thread still runs"
        fine, value = outcome[0]
        if not fine:
            raise value
        return value

    return join
