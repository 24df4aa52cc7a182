"""One request's work: compile each target in a process of its own, seal, and attest.

The package is parsed here, strictly, and compiled in child processes, whose crash or hunger for
memory is an error of that target alone. Compiled payloads lie sealed under a key of this job's in a
folder of this job's, which is removed with it: no request ever finds what another one compiled. Only
a service inside its client's own process keeps them, in that machine's cache.
"""

from __future__ import annotations

import os
import platform
import secrets
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from enclave_image.service.errors import ServiceError
from enclave_image.service.fields import MessageFields
from enclave_image.service.limits import Limits, Turns
from enclave_image.service.mailbox import Mailbox
from enclave_image.service.messages import MAX_TEXT, Request, TargetResult
from enclave_image.service.metrics import Metrics
from enclave_image.service.release import ReleasedKeys
from enclave_image.service.session import Identity
from runtime.artifact import KeyService, TargetPayload, write_artifact
from runtime.artifact.key_service import MAX_WRAPPED_BYTES
from runtime.compiler.child import Children
from runtime.compiler.graph import GraphPackage
from runtime.compiler.service import compile_package
from runtime.spec.errors import CompileError, LumaError

__all__ = ["Job", "SealedArtifact"]

_ARTIFACT = "artifact.luma"
_CACHE = "payloads"
_NONCE_BYTES = 32
_MAX_SEALED_BYTES = 6144
_PACKAGES = ("luma", "jax", "jaxlib", "numpy")


@dataclass(frozen=True, slots=True)
class SealedArtifact:
    """What a job made.

    Attributes:
        path: the file, in the job's folder.
        digest: "sha384:" and hex.
        size: bytes.
    """

    path: Path
    digest: str
    size: int


class Job:
    """A request with its package.

    Args:
        request: checked against its policy.
        package: the package's bytes.
        identity: this boot's keys.
        limits: the service's.
        turns: the compiles of all jobs.
        children: this job's compiling processes, for whoever ends it.
        mailbox: told of progress, and asked for KMS's answer.
        metrics: counts compiles.
    """

    def __init__(
        self,
        request: Request,
        package: bytes,
        *,
        identity: Identity,
        limits: Limits,
        turns: Turns,
        children: Children,
        mailbox: Mailbox,
        metrics: Metrics,
    ) -> None:
        self._request = request
        self._package = _read_package(package)
        self._identity = identity
        self._limits = limits
        self._turns = turns
        self._children = children
        self._mailbox = mailbox
        self._metrics = metrics

    def run(self, folder: Path) -> SealedArtifact:
        """Compile all targets, and seal those that compiled.

        Args:
            folder: of this job; payloads are gone from it when this returns.

        Raises:
            LumaError: no target compiled, or the artifact cannot be sealed.
        """
        machine = self._identity.machine
        if machine is not None:
            payloads = self._compile_all(machine.cache_dir, machine.cache_key)
        else:
            with tempfile.TemporaryDirectory(dir=folder) as name:
                payloads = self._compile_all(Path(name) / _CACHE, secrets.token_bytes(32))
        if not payloads:
            raise CompileError(
                "no target compiled, so there is no artifact", remedy="see each target's error"
            )
        return self._seal(payloads, folder / _ARTIFACT)

    def _compile_all(self, cache: Path, key: bytes) -> dict[str, TargetPayload]:
        """Compile, as many at once as there are turns."""
        targets = self._request.targets
        with ThreadPoolExecutor(max_workers=min(self._limits.compiles, len(targets))) as pool:
            compiled = list(pool.map(lambda target: self._compile(target, cache, key), targets))
        return {
            target: payload
            for target, payload in zip(targets, compiled, strict=True)
            if payload is not None
        }

    def _compile(self, target: str, cache: Path, key: bytes) -> TargetPayload | None:
        """Compile one target; tell how it ended."""
        with self._turns.turn(self._children.ended):
            started = time.perf_counter()
            made, failure = None, None
            try:
                made = compile_package(
                    self._package,
                    target=target,
                    micro_shards=self._request.micro_shards,
                    cache_dir=cache,
                    data_key=key,
                    progress=lambda event: self._tell(target, event),
                    children=self._children,
                )
            except LumaError as error:
                failure = error
            seconds = time.perf_counter() - started
            self._metrics.compiled(seconds, failed=failure is not None)
        result = TargetResult(
            target=target,
            seconds=seconds,
            cached=made is not None and made.cached,
            error=failure,
        )
        self._mailbox.say("target", **result.fields())
        return None if made is None else made.payload

    def _tell(self, target: str, event: Mapping[str, object]) -> None:
        """Pass on a compiler's event; its texts are cut to what a record holds."""
        plain = {
            name: value[:MAX_TEXT] if isinstance(value, str) else value
            for name, value in event.items()
            if isinstance(value, str | int | float | bool)
        }
        self._mailbox.say("progress", event={**plain, "target": target})

    def _seal(self, payloads: dict[str, TargetPayload], path: Path) -> SealedArtifact:
        """Write the artifact, with this image's document of it where there is a module."""
        request, attester = self._request, self._identity.attester
        key: bytes | KeyService | None = request.data_key
        attest = None
        if request.kms is not None:
            # The document that KMS releases the key to is the artifact's as well.
            recipient = None if attester is None else self._identity.recipient()
            key = ReleasedKeys(request.kms, recipient, self._release)
        elif attester is not None:

            def attest(digest: bytes) -> bytes:
                return attester.attestation(user_data=digest, nonce=os.urandom(_NONCE_BYTES))

        digest = write_artifact(
            path,
            payloads,
            level=request.level,
            signing_key=self._identity.signing_key,
            data_key=key,
            graph_digest=self._package.digest(),
            statistics=dict(request.statistics) | self._figures(payloads),
            versions=_versions(),
            attest=attest,
        )
        return SealedArtifact(path, digest, path.stat().st_size)

    def _figures(
        self, payloads: Mapping[str, TargetPayload]
    ) -> dict[str, int | float | str | bool]:
        """Give the client's own figures; an enclave knows none of its machine or prices."""
        machine = self._identity.machine
        return {} if machine is None else dict(machine.statistics(payloads))

    def _release(self, digest: bytes, document: bytes | None) -> tuple[bytes, bytes]:
        """Have the client ask KMS."""
        message = self._mailbox.ask("release", answer="released", digest=digest, document=document)
        fields = MessageFields(message, "released")
        wrapped = fields.octets("wrapped", 1, MAX_WRAPPED_BYTES)
        sealed = fields.octets("sealed", 1, _MAX_SEALED_BYTES)
        fields.end()
        return wrapped, sealed


def _read_package(data: bytes) -> GraphPackage:
    try:
        return GraphPackage.from_bytes(data)
    except CompileError as error:
        raise ServiceError(error.message, reason="package", remedy=error.remedy) from None


def _versions() -> dict[str, str]:
    """Give the versions of what compiles here."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
