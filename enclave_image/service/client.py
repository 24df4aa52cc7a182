"""The customer's side: judge the service, send it a package, and take the sealed artifact.

    request = CompileOrder(package=data, targets=("cpu",), micro_shards=16, level="L1", data_key=key)
    made = compile_in_service(Address.parse("unix:/run/luma.sock"), request, output=path)

Whatever ends the call, Ctrl-C included, closes the connection, and the service then ends the job.
The artifact appears in its place only after it was checked: signed by the attested service, of this
very package and, from an enclave, with that image's document of it.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import socket
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric import ec

from enclave_image.service.address import Address, connect
from enclave_image.service.blobs import receive_blob, send_blob
from enclave_image.service.errors import ServiceError
from enclave_image.service.fields import MessageFields
from enclave_image.service.messages import (
    CustomerPolicy,
    Request,
    TargetResult,
)
from enclave_image.service.protocol import VERSION, Connection, Deadline, Frame
from enclave_image.service.release import ask_kms
from enclave_image.service.session import Peer, Session, Trust, answer, open_session
from runtime.artifact import Artifact, KeyReference, Level, open_artifact
from runtime.artifact.attestation import verify_attestation
from runtime.artifact.kms import AwsAccess

__all__ = [
    "CompileOrder",
    "CompiledInService",
    "compile_in_service",
    "compile_over",
    "read_metrics",
]

Progress = Callable[[Mapping[str, object]], None]

_MAX_ARTIFACT_BYTES = 1 << 36
_DIGEST_BYTES = 48
_MAX_DOCUMENT = (16 << 10) + 128
_CONNECT_S = 30.0
_FRAME_S = 120.0
_TOTAL_S = 5 * 3600.0
_SCRAPE_S = 30.0
_LOCAL_TRUST = Trust()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOrder:
    """What a customer asks for.

    Attributes:
        package: canonical bytes of the graph package.
        targets: what to compile for.
        micro_shards: M of the job.
        level: "L0", "L1"; "L2" and "L3" of an enclave alone.
        data_key: the customer's 32-byte key, or
        kms: whose KMS key seals; this side asks KMS, and never has the data key of an enclave.
        access: how KMS is reached.
        statistics: public figures for the manifest.
        policy: default: just what is ordered here.
    """

    package: bytes = field(repr=False)
    targets: tuple[str, ...]
    micro_shards: int
    level: Level
    data_key: bytes | None = field(default=None, repr=False)
    kms: KeyReference | None = None
    access: AwsAccess = field(default_factory=AwsAccess)
    statistics: Mapping[str, int | float | str | bool] = field(default_factory=dict)
    policy: CustomerPolicy | None = None

    def request(self) -> Request:
        """Give it as the message."""
        policy = self.policy or CustomerPolicy(
            targets=self.targets, level=self.level, max_package_bytes=len(self.package)
        )
        return Request(
            targets=self.targets,
            micro_shards=self.micro_shards,
            level=self.level,
            data_key=self.data_key,
            kms=self.kms,
            statistics=self.statistics,
            policy=policy,
            package_bytes=len(self.package),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledInService:
    """What came back.

    Attributes:
        artifact: the checked file, opened with the data key where there is one.
        targets: how each target's compile ended, in the order of the request.
        signer: the service's signing key of this boot.
        attested: whether an enclave made it.
    """

    artifact: Artifact
    targets: tuple[TargetResult, ...]
    signer: ec.EllipticCurvePublicKey
    attested: bool

    @property
    def label(self) -> str:
        """The way it was made, as it is printed."""
        return "attested enclave" if self.attested else "L1 (local service)"


def compile_in_service(
    address: Address,
    order: CompileOrder,
    *,
    output: Path,
    trust: Trust = _LOCAL_TRUST,
    progress: Progress | None = None,
    said: Callable[[TargetResult], None] | None = None,
) -> CompiledInService:
    """Have a package compiled and sealed by the service at an address.

    Args:
        address: where it listens.
        order: what is asked for.
        output: the artifact; an existing file is replaced.
        trust: what is accepted on the other side. Default: a local process, no enclave.
        progress: called with each event of the compile.
        said: called with the result of each target as it comes.

    Raises:
        AttestationError: the service's document is refused.
        ServiceBusyError: it takes no more requests.
        ServiceError: it refused the request, or is not what was expected.
        PeerGoneError: it cannot be reached, or went away.
        CompileError: no target compiled.
        ArtifactError: what came back is not what was ordered.
    """
    if address.family == "vsock" and trust.policy is None:
        raise ServiceError(
            f"service {address}: an enclave must be judged, and no measurements were given",
            reason="trust",
            remedy="give its measurements with --measurements FILE",
        )
    peer = connect(address, timeout_s=_CONNECT_S)
    return compile_over(peer, order, output=output, trust=trust, progress=progress, said=said)


def compile_over(
    peer: socket.socket,
    order: CompileOrder,
    *,
    output: Path,
    trust: Trust = _LOCAL_TRUST,
    progress: Progress | None = None,
    said: Callable[[TargetResult], None] | None = None,
) -> CompiledInService:
    """Do the same over a socket that is connected already; it is closed at the end."""
    results: dict[str, TargetResult] = {}

    def take(result: TargetResult) -> None:
        results[result.target] = result
        if said is not None:
            said(result)

    with Connection(peer, deadline=Deadline.after(_TOTAL_S), idle_s=_FRAME_S) as connection:
        session, judged = open_session(connection, trust)
        session.send("request", **order.request().fields())
        session.receive("go")
        send_blob(session, io.BytesIO(order.package), len(order.package))
        fields = MessageFields(_follow(session, order, trust, progress, take), "artifact")
        digest = fields.text("digest", 128)
        size = fields.integer("bytes", 1, _MAX_ARTIFACT_BYTES)
        fields.end()
        with _hidden(output) as (file, path):
            receive_blob(session, size, file.write)
            file.flush()
            artifact = _checked(path, order, judged, trust, digest, results)
            path.replace(output)
    return CompiledInService(
        artifact=open_artifact(output, trusted_signer=judged.signer, key=order.data_key),
        targets=tuple(results[target] for target in order.targets if target in results),
        signer=judged.signer,
        attested=artifact.attestation is not None,
    )


def read_metrics(address: Address) -> str:
    """Give the service's figures, in Prometheus's text format.

    Raises:
        ServiceError: what answers is no such service.
        PeerGoneError: nobody answers.
    """
    peer = connect(address, timeout_s=_SCRAPE_S)
    with Connection(peer, deadline=Deadline.after(_SCRAPE_S), idle_s=_SCRAPE_S) as connection:
        connection.send("scrape", version=VERSION)
        fields = MessageFields(answer(connection, "metrics"), "metrics")
        text = fields.text("text", 64 << 10)
        fields.end()
    return text


def _follow(
    session: Session,
    order: CompileOrder,
    trust: Trust,
    progress: Progress | None,
    take: Callable[[TargetResult], None],
) -> Frame:
    """Take what the service tells until it has the artifact; give that message."""
    while True:
        kind, message = session.receive("alive", "progress", "target", "release", "artifact")
        if kind == "artifact":
            return message
        if kind == "target":
            take(TargetResult.read(message))
        elif kind == "release":
            _release(session, order, trust, message)
        elif kind == "progress" and progress is not None:
            event = MessageFields(message, "progress").plain("event")
            if isinstance(event, dict):
                progress(event)


def _release(session: Session, order: CompileOrder, trust: Trust, message: Frame) -> None:
    """Ask KMS for the data key, after holding an enclave's document against what was agreed."""
    fields = MessageFields(message, "release")
    digest = fields.octets("digest", _DIGEST_BYTES, _DIGEST_BYTES)
    document = fields.optional_octets("document", 1, _MAX_DOCUMENT)
    fields.end()
    if order.kms is None:
        raise ServiceError("release: no KMS key was named in the request", reason="frame")
    if (document is None) != (trust.policy is None):
        raise ServiceError("release.document: only an enclave has one", reason="frame")
    if document is not None:
        _check_document(document, trust, digest)
    wrapped, sealed = ask_kms(order.kms, order.access, digest, document)
    session.send("released", wrapped=wrapped, sealed=sealed)


def _check_document(document: bytes, trust: Trust, digest: bytes) -> None:
    """Judge a document of an artifact: by its own time, since its nonce is not the client's."""
    if trust.policy is not None:
        verify_attestation(
            document,
            policy=trust.policy,
            nonce=None,
            user_data=digest,
            roots=trust.roots,
            at="timestamp",
        )


def _checked(
    path: Path,
    order: CompileOrder,
    judged: Peer,
    trust: Trust,
    digest: str,
    results: Mapping[str, TargetResult],
) -> Artifact:
    """Hold the artifact against what was ordered.

    Raises:
        ArtifactError: it is not signed by the service, or does not open.
        AttestationError: its document is not that of the image for this artifact.
        ServiceError: it is of another package, or of other targets.
    """
    artifact = open_artifact(path, trusted_signer=judged.signer, key=order.data_key)
    manifest = artifact.manifest
    compiled = tuple(sorted(name for name, result in results.items() if result.error is None))
    wanted = {
        "digest": (artifact.digest, digest),
        "graph_digest": (manifest.graph_digest, blake3(order.package).hexdigest()),
        "targets": (manifest.targets, compiled),
        "key": (None if manifest.seal is None else manifest.seal.kms, order.kms),
        "sealed": (manifest.seal is not None, order.level != "L0"),
    }
    for name, (found, expected) in wanted.items():
        if found != expected:
            raise ServiceError(f"artifact.{name}: is not what was ordered", reason="artifact")
    if judged.attestation is not None:
        if artifact.attestation is None:
            raise ServiceError(
                "artifact.attestation: is missing, though an enclave made it", reason="artifact"
            )
        _check_document(
            artifact.attestation, trust, bytes.fromhex(artifact.digest.removeprefix("sha384:"))
        )
    if artifact.can_read_payloads:
        for target in manifest.targets:
            artifact.target_payload(target)
    return artifact


@contextlib.contextmanager
def _hidden(output: Path) -> Generator[tuple[BinaryIO, Path]]:
    """Give a hidden file beside the output, which is gone at the end unless it was moved."""
    path = output.with_name(f".{output.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError as error:
        raise ServiceError(
            f"artifact {output}: cannot be written: {error.strerror}", reason="artifact"
        ) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file, path
    finally:
        path.unlink(missing_ok=True)
