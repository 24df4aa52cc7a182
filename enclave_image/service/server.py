"""The service's process: takes connections, and serves one request on each.

Nothing that a client sends, and nothing that a compiler does, ends it. A connection has deadlines
from its first byte; one that breaks a rule is told so and closed, and what it had sent is freed.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import tempfile
import threading
import traceback
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from enclave_image.nsm import NsmError
from enclave_image.service.blobs import receive_blob, send_blob
from enclave_image.service.errors import PeerGoneError, ServiceBusyError, ServiceError
from enclave_image.service.fields import MessageFields
from enclave_image.service.jobs import Job, SealedArtifact
from enclave_image.service.limits import LimitedChildren, Limits, Places, Turns
from enclave_image.service.logs import log
from enclave_image.service.mailbox import Ask, Mailbox
from enclave_image.service.messages import Request, error_fields
from enclave_image.service.metrics import Metrics
from enclave_image.service.protocol import Connection, Deadline
from enclave_image.service.session import (
    Identity,
    Session,
    accept_session,
    check_version,
    read_hello,
)
from runtime.spec.errors import CompileError, LumaError

__all__ = ["CompileService"]

_SPARE_CONNECTIONS = 16
"""Connections beside those with a place: to be told that the service is busy, or its figures."""

_ACCEPT_PAUSE_S = 0.05

_ALIVE_EVERY_S = 15.0
"""A silent compile says so often that it goes on; a client waits longer for a frame than that."""

_OPEN_REASONS = frozenset({"frame", "session", "version"})
"""What a client without a session is told; all else just closes the connection."""


@dataclass(slots=True)
class _Done:
    """How a job's thread ended."""

    artifact: SealedArtifact | None = None
    error: LumaError | None = None


class CompileService:
    """The service on a listening socket.

    Args:
        listener: the socket, which belongs to the service from now on.
        identity: this boot's keys.
        limits: what it takes.
        folder: for jobs; default: the system's own.
    """

    def __init__(
        self,
        listener: socket.socket,
        identity: Identity,
        limits: Limits | None = None,
        *,
        folder: Path | None = None,
    ) -> None:
        self.metrics = Metrics()
        self._listener = listener
        self._identity = identity
        self._limits = limits or Limits()
        self._folder = folder
        self._places = Places(self._limits.places)
        self._turns = Turns(self._limits.compiles)
        self._lock = threading.Lock()
        self._threads: dict[threading.Thread, Connection] = {}
        self._jobs: set[LimitedChildren] = set()
        self._stopping = threading.Event()
        self._waker, self._wake = socket.socketpair()
        self._count = 0

    def serve(self) -> None:
        """Serve until `stop`; then end all jobs, and return when nothing of them is left."""
        log(
            "started",
            level=self._identity.label,
            compiles=self._limits.compiles,
            queue=self._limits.queue,
        )
        try:
            with selectors.DefaultSelector() as ready:
                ready.register(self._listener, selectors.EVENT_READ)
                ready.register(self._waker, selectors.EVENT_READ)
                while not self._stopping.is_set():
                    if any(key.fileobj is self._listener for key, _ in ready.select()):
                        self._accept()
        finally:
            self._listener.close()
            self._end_all()
            self._waker.close()
            self._wake.close()
            log("stopped")

    def stop(self) -> None:
        """End `serve`; may be called from a signal handler or another thread."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def gauges(self) -> dict[str, int]:
        """Give what is true now."""
        return {
            "connections": len(self._threads),
            "places_taken": self._places.taken,
            "queue_length": self._turns.waiting,
        }

    def _accept(self) -> None:
        """Take a connection, and serve it in a thread of its own."""
        try:
            peer, _ = self._listener.accept()
        except OSError:  # no descriptor is left, say: do not ask again at once
            self._stopping.wait(_ACCEPT_PAUSE_S)
            return
        with self._lock:
            if len(self._threads) >= self._limits.places + _SPARE_CONNECTIONS:
                peer.close()
                self.metrics.refused("busy")
                return
            self._count += 1
            deadline = Deadline.after(self._limits.opening_s)
            connection = Connection(peer, deadline=deadline, idle_s=self._limits.frame_s)
            thread = threading.Thread(
                target=self._serve_one, args=(connection, self._count), name="luma-connection"
            )
            self._threads[thread] = connection
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            with self._lock:
                del self._threads[thread]
            connection.close()
            self._refused(self._count, "busy")

    def _serve_one(self, connection: Connection, number: int) -> None:
        """Serve a connection; whatever happens on it stays on it."""
        try:
            with connection:
                self._serve_first(connection, number)
        except ServiceError as error:
            self._refused(number, "stopped" if self._stopping.is_set() else error.reason)
        except NsmError:
            self._refused(number, "attestation")
        except LumaError as error:
            self._refused(number, "compile" if isinstance(error, CompileError) else "seal")
        except Exception as error:  # noqa: BLE001 (a mistake of ours must not end the service)
            self._refused(number, "fault", fault=_place_of(error))
        finally:
            with self._lock:
                self._threads.pop(threading.current_thread(), None)

    def _retry_after_s(self) -> int:
        return self.metrics.retry_after_s(self._turns.waiting)

    def _refused(self, number: int, reason: str, **fields: str) -> None:
        self.metrics.refused(reason)
        log("refused", severity=logging.WARNING, connection=number, reason=reason, **fields)

    def _serve_first(self, connection: Connection, number: int) -> None:
        """Answer the first frame: figures, or a session."""
        with _told_in_the_open(connection):
            first = connection.receive("hello", "scrape")
            if first["kind"] == "scrape":
                fields = MessageFields(first, "scrape")
                check_version(fields)
                fields.end()
                connection.send("metrics", text=self.metrics.text(self.gauges()))
                return
            read_hello(first)
            with contextlib.ExitStack() as inside:
                inside.enter_context(self._places.take(self._retry_after_s))
                session = accept_session(connection, self._identity, first)
                inside.enter_context(_told_in_the_session(session))
                self._serve_request(session, number)

    def _serve_request(self, session: Session, number: int) -> None:
        """Take the request and its package, run it, and send what came out."""
        _, message = session.receive("request")
        request = Request.read(message)
        request.check(
            attested=self._identity.attester is not None,
            max_package_bytes=self._limits.package_bytes,
        )
        session.connection.limit(self._limits.request_s)
        session.send("go")
        package = _receive_package(session, request)
        log(
            "request",
            connection=number,
            targets=len(request.targets),
            package_bytes=request.package_bytes,
        )
        with tempfile.TemporaryDirectory(prefix="luma-job-", dir=self._folder) as name:
            made = self._run(session, request, package, Path(name), number)
            session.send("artifact", digest=made.digest, bytes=made.size)
            with made.path.open("rb") as file:
                send_blob(session, file, made.size)
        self.metrics.done()
        log("done", connection=number, artifact_bytes=made.size)

    def _run(
        self, session: Session, request: Request, package: bytes, folder: Path, number: int
    ) -> SealedArtifact:
        """Run a job in a thread of its own, while this one watches the connection."""
        children = LimitedChildren(self._limits.child_bytes, self._limits.user_of(number))
        with self._known(children), Mailbox() as mailbox:
            job = Job(
                request,
                package,
                identity=self._identity,
                limits=self._limits,
                turns=self._turns,
                children=children,
                mailbox=mailbox,
                metrics=self.metrics,
            )
            done = _Done()
            thread = threading.Thread(
                target=_work, args=(job, folder, mailbox, done), name="luma-job"
            )
            thread.start()
            try:
                _follow(session, mailbox)
            finally:
                children.end()
                self._turns.wake()
                mailbox.close()
                thread.join()
        if done.error is not None:
            raise done.error
        if done.artifact is None:
            raise PeerGoneError("the job was ended", reason="stopped")
        return done.artifact

    @contextlib.contextmanager
    def _known(self, children: LimitedChildren) -> Generator[None]:
        """Let `stop` find a job's processes while they may run."""
        with self._lock:
            self._jobs.add(children)
        try:
            if self._stopping.is_set():
                children.end()
            yield
        finally:
            with self._lock:
                self._jobs.discard(children)

    def _end_all(self) -> None:
        """End every connection and job, and wait for their threads.

        Connections go first: a client must not take the end of its job for the job's own failure.
        """
        with self._lock:
            waiting = dict(self._threads)
        for connection in waiting.values():
            connection.interrupt()
        with self._lock:
            for children in self._jobs:
                children.end()
        self._turns.wake()
        for thread in waiting:
            thread.join()


def _receive_package(session: Session, request: Request) -> bytes:
    package = bytearray()
    receive_blob(session, request.package_bytes, package.extend)
    return bytes(package)


def _work(job: Job, folder: Path, mailbox: Mailbox, done: _Done) -> None:
    """Run a job; its thread's whole life."""
    try:
        done.artifact = job.run(folder)
    except LumaError as error:
        done.error = error
    except Exception as error:  # noqa: BLE001 (likewise)
        log("fault", severity=logging.ERROR, fault=_place_of(error))
        done.error = ServiceError(
            f"the service failed with {type(error).__name__}; its log names the place",
            reason="fault",
        )
    finally:
        mailbox.end()


def _follow(session: Session, mailbox: Mailbox) -> None:
    """Pass a job's messages on until it ends.

    Raises:
        PeerGoneError: the client left, or takes nothing.
        ServiceError: it spoke out of turn.
    """
    with selectors.DefaultSelector() as ready:
        ready.register(session.connection, selectors.EVENT_READ)
        ready.register(mailbox, selectors.EVENT_READ)
        while True:
            left_s = session.connection.left_s()
            found = [key.fileobj for key, _ in ready.select(min(left_s, _ALIVE_EVERY_S))]
            if mailbox not in found:
                if session.connection in found:
                    session.connection.check_quiet()
                session.send("alive")
                continue
            for item in mailbox.take():
                if item is None:
                    return
                if isinstance(item, Ask):
                    _pass_on(session, item)
                else:
                    session.send(item.kind, **item.fields)


def _pass_on(session: Session, asked: Ask) -> None:
    """Have the client answer; whoever asked must not wait for an answer that does not come."""
    found = None
    try:
        session.send(asked.kind, **asked.fields)
        _, found = session.receive(asked.answer)
    finally:
        asked.reply.put(found)


@contextlib.contextmanager
def _told_in_the_open(connection: Connection) -> Generator[None]:
    """Tell a client without a session why it is refused, in words that hold nothing of it."""
    try:
        yield
    except ServiceBusyError as error:
        with contextlib.suppress(PeerGoneError):
            connection.send("busy", retry_after_s=error.retry_after_s)
        raise
    except _ToldError as told:
        raise told.error from told.error.__cause__
    except ServiceError as error:
        if error.reason in _OPEN_REASONS:
            with contextlib.suppress(PeerGoneError):
                connection.send("refused", reason=error.reason)
        raise


class _ToldError(Exception):
    """An error that the client has been told of, in the session."""

    def __init__(self, error: LumaError) -> None:
        super().__init__()
        self.error = error


@contextlib.contextmanager
def _told_in_the_session(session: Session) -> Generator[None]:
    """Tell a client with a session all of an error, encrypted."""
    try:
        yield
    except PeerGoneError as error:
        raise _ToldError(error) from None
    except LumaError as error:
        with contextlib.suppress(PeerGoneError):
            session.send("error", **error_fields(error))
        raise _ToldError(error) from None


def _place_of(error: BaseException) -> str:
    """Name a mistake of the program without its text, which may hold a client's data."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
