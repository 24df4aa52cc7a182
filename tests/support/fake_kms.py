"""KMS for tests: a moto server on loopback that also does what moto leaves out.

moto keeps keys, makes data keys and binds them to their EncryptionContext. It ignores key policies,
grants, disabled keys, `Recipient`, and rotation's new key material. `FakeKms` stands in front of it
in the same process, as WSGI middleware, and adds those five, for every cryptographic operation:

1. the caller, by the access key's id (signatures are not checked);
2. the attestation document, if there is one: authentic under the *test* root, fresh, with a nonce
   that was not seen before. (AWS publishes no age limit, and is not known to look at nonces.)
3. the key policy with the condition keys of context and attestation; a grant where the policy says
   nothing. A debug document is authentic, and left to the policy, as on AWS;
4. the key's state;
5. the answer: `CiphertextForRecipient`, CMS of indefinite lengths, in place of `Plaintext`.

Administration passes to moto unjudged. Which error AWS gives for a bad document is not known here:
it is `ValidationException`.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import threading
from collections.abc import Mapping
from typing import Self

from cryptography.hazmat.primitives import serialization
from moto.kms.models import kms_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.test import run_wsgi_app

from runtime.artifact.attestation import Attestation, Freshness, TrustRoots, authenticate
from runtime.spec import LumaError
from tests.support.cms_sealer import seal_enveloped
from tests.support.iam_policy import decide

ACCOUNT, REGION = "123456789012", "us-east-1"
CRYPTOGRAPHIC = {
    "Decrypt",
    "DeriveSharedSecret",
    "Encrypt",
    "GenerateDataKey",
    "GenerateDataKeyPair",
    "GenerateDataKeyPairWithoutPlaintext",
    "GenerateDataKeyWithoutPlaintext",
    "GenerateRandom",
    "ReEncrypt",
}
_TARGET = "HTTP_X_AMZ_TARGET"


class Refusal(Exception):
    """An error answer of KMS."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


class FakeKms:
    """The WSGI application.

    Args:
        roots: the test roots whose documents are believed.
        freshness: how old a document may be.
    """

    def __init__(self, roots: TrustRoots, freshness: Freshness | None = None) -> None:
        self.roots = roots
        self.freshness = freshness or Freshness()
        self.principals: dict[str, str] = {}
        self.failures: list[Refusal] = []
        self.requests: list[tuple[str, dict]] = []
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._nonces: set[bytes] = set()
        self._materials: dict[str, list[bytes]] = {}
        self._lock = threading.RLock()

    def __call__(self, environ, start_response):
        """Answer a request."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        operation = environ.get(_TARGET, "").removeprefix("TrentService.")
        try:
            with self._lock:
                status, answer = self._answer(environ, operation, body)
        except Refusal as refusal:
            status = refusal.status
            answer = json.dumps({"__type": refusal.code, "message": refusal.message}).encode()
        start_response(
            f"{status} KMS",
            [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(answer)))],
        )
        return [answer]

    def _answer(self, environ, operation: str, body: bytes) -> tuple[int, bytes]:
        if operation in CRYPTOGRAPHIC:
            request = json.loads(body)
            self.requests.append((operation, request))
            if self.failures:
                raise self.failures.pop(0)
            return 200, json.dumps(self._cryptographic(environ, operation, request)).encode()
        status, answer = self._pass_on(environ, operation, body)
        if operation == "RotateKeyOnDemand" and status == 200:
            self._rotate(json.loads(body)["KeyId"])
        return status, answer

    def _cryptographic(self, environ, operation: str, request: dict) -> dict:
        """Judge a request, let moto do it, and seal the answer to the recipient."""
        principal = self._principal(environ)
        recipient = request.pop("Recipient", None)
        document = None if recipient is None else self._document(operation, recipient)
        # Without a KeyId only the ciphertext tells the key, and only moto can read it.
        arn = request.get("KeyId") or self._ask(environ, operation, **request)["KeyId"]
        described = self._ask(environ, "DescribeKey", KeyId=arn)["KeyMetadata"]
        self._authorise(environ, described["Arn"], principal, operation, request, document)
        if described["KeyState"] == "PendingDeletion":
            raise Refusal("KMSInvalidStateException", f"{arn} is pending deletion.")
        if described["KeyState"] != "Enabled":
            raise Refusal("DisabledException", f"{arn} is disabled.")
        if operation == "Decrypt":
            reply = self._decrypt(environ, described["KeyId"], request)
        else:
            reply = self._ask(environ, operation, **request)
        if document is not None:
            self._nonces.add(document.nonce)
            plain = base64.b64decode(reply.pop("Plaintext"))
            key = serialization.load_der_public_key(document.public_key)
            reply["CiphertextForRecipient"] = base64.b64encode(seal_enveloped(plain, key)).decode()
        return reply

    def _principal(self, environ) -> str:
        found = re.search(r"Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        principal = self.principals.get(found[1]) if found else None
        if principal is None:
            raise Refusal("UnrecognizedClientException", "The security token is invalid.")
        return principal

    def _document(self, operation: str, recipient: dict) -> Attestation:
        if operation not in ("Decrypt", "GenerateDataKey", "GenerateRandom"):
            raise Refusal("ValidationException", f"{operation} takes no Recipient.")
        if recipient.get("KeyEncryptionAlgorithm") != "RSAES_OAEP_SHA_256":
            raise Refusal("ValidationException", "KeyEncryptionAlgorithm is not supported.")
        try:
            document = authenticate(
                base64.b64decode(recipient["AttestationDocument"]),
                roots=self.roots,
                freshness=self.freshness,
            )
        except LumaError as error:
            raise Refusal("ValidationException", f"Attestation document: {error}") from error
        if document.nonce is None or document.nonce in self._nonces:
            raise Refusal("ValidationException", "Attestation document: its nonce is not fresh.")
        if document.public_key is None:
            raise Refusal("ValidationException", "Attestation document: no public key.")
        return document

    def _authorise(self, environ, arn, principal, operation, request, document) -> None:
        context = request.get("EncryptionContext", {})
        keys = {f"kms:EncryptionContext:{name}": value for name, value in context.items()}
        keys |= attestation_keys(document)
        policy = self._ask(environ, "GetKeyPolicy", KeyId=arn, PolicyName="default")["Policy"]
        policy = json.loads(policy) if isinstance(policy, str) else policy
        decision = decide(policy, principal=principal, action=f"kms:{operation}", keys=keys)
        if decision == "none":
            grants = self._ask(environ, "ListGrants", KeyId=arn)["Grants"]
            if any(_grants(grant, principal, operation, context) for grant in grants):
                return
        if decision != "allow":
            because = "an explicit deny" if decision == "deny" else "no statement allowing it"
            raise Refusal(
                "AccessDeniedException",
                f"User: {principal} is not authorized to perform: kms:{operation} on resource: "
                f"{arn} with {because} in a resource-based policy",
            )

    def _decrypt(self, environ, key_id: str, request: dict) -> dict:
        """Let moto decrypt, with the newest version of the key's material that fits."""
        key = kms_backends[ACCOUNT][REGION].keys[key_id]
        newest = key.key_material
        try:
            for key.key_material in (newest, *reversed(self._materials.get(key_id, []))):
                try:
                    return self._ask(environ, "Decrypt", **request)
                except Refusal as refusal:
                    if refusal.code != "InvalidCiphertextException":
                        raise
                    last = refusal
            raise last
        finally:
            key.key_material = newest

    def _rotate(self, key_id: str) -> None:
        """Give the key new material, and keep the old for what was sealed under it."""
        backend = kms_backends[ACCOUNT][REGION]
        key = backend.keys[backend.get_key_id(key_id)]
        self._materials.setdefault(key.id, []).append(key.key_material)
        key.key_material = os.urandom(len(key.key_material))

    def _ask(self, environ, operation: str, **request) -> dict:
        """Ask moto; its errors become refusals."""
        status, answer = self._pass_on(environ, operation, json.dumps(request).encode())
        reply = json.loads(answer)
        if status != 200:
            code = reply.get("__type", "KMSInternalException").split("#")[-1]
            raise Refusal(code, reply.get("message", ""), status)
        return reply

    def _pass_on(self, environ, operation: str, body: bytes) -> tuple[int, bytes]:
        """Hand a request to moto, as from the same caller."""
        changed = dict(environ)
        changed[_TARGET] = f"TrentService.{operation}"
        changed["wsgi.input"] = io.BytesIO(body)
        changed["CONTENT_LENGTH"] = str(len(body))
        for name in [name for name in changed if name.startswith("werkzeug.")]:
            del changed[name]
        chunks, status, _ = run_wsgi_app(self._moto, changed)
        return int(status.split()[0]), b"".join(chunks)


def attestation_keys(document: Attestation | None) -> dict[str, str]:
    """Give the condition keys of a document: of an enclave or of a NitroTPM, never both."""
    if document is None:
        return {}
    if document.kind == "nitrotpm":
        return {
            f"kms:RecipientAttestation:NitroTPMPCR{i}": value.hex()
            for i, value in document.pcrs.items()
        }
    keys = {f"kms:RecipientAttestation:PCR{i}": value.hex() for i, value in document.pcrs.items()}
    if 0 in document.pcrs:
        keys["kms:RecipientAttestation:ImageSha384"] = document.pcrs[0].hex()
    return keys


def _grants(grant: Mapping, principal: str, operation: str, context: Mapping[str, str]) -> bool:
    """Tell whether a grant covers a request."""
    subset = grant.get("Constraints", {}).get("EncryptionContextSubset", {})
    return (
        grant["GranteePrincipal"] == principal
        and operation in grant["Operations"]
        and subset.items() <= context.items()
    )


class _Quiet(WSGIRequestHandler):
    """Logs nothing."""

    def log(self, *_arguments) -> None:
        """Drop a log line."""


class Server:
    """The application on a loopback port that the system chose, in a thread."""

    def __init__(self, application: FakeKms) -> None:
        self._server = make_server(
            "127.0.0.1", 0, application, threaded=True, request_handler=_Quiet
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
