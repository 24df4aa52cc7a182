"""The client's own rules: contexts, errors with remedies, credentials, endpoints, and secrecy."""

from __future__ import annotations

import base64
import contextlib
import io
import logging
import socket
import subprocess
import sys

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from enclave_image.nsm import Nsm
from runtime.artifact import KeyReference
from runtime.artifact.kms import (
    AwsAccess,
    AwsCredentials,
    KeyServiceError,
    KmsKeys,
    encryption_context,
)
from runtime.artifact.kms import client as client_module
from runtime.artifact.kms.errors import of_answer
from runtime.spec import ArtifactError
from tests.support.fake_kms import Refusal, Server

DIGEST = b"\x0d" * 48
ARN = "arn:aws:kms:eu-west-1:123456789012:key/11111111-2222-3333-4444-555555555555"


def refused(reason: str, call, *arguments) -> KeyServiceError:
    with pytest.raises(KeyServiceError) as caught:
        call(*arguments)
    assert caught.value.reason == reason
    return caught.value


@contextlib.contextmanager
def failing(app, *failures: Refusal):
    """Let the next requests fail."""
    app.failures[:] = failures
    try:
        yield
        assert not app.failures
    finally:
        app.failures.clear()


def test_context_is_exactly_two_entries():
    assert encryption_context("acme", DIGEST) == {
        "luma:customer": "acme",
        "luma:artifact": "0d" * 48,
    }
    with pytest.raises(ArtifactError, match="artifact digest: 32 bytes; expected 48"):
        encryption_context("acme", bytes(32))


@pytest.mark.parametrize(
    ("arn", "customer"),
    [
        ("", "acme"),
        ("alias/acme", "acme"),
        ("arn:aws:kms:eu-west-1:123456789012:alias/acme", "acme"),
        ("arn:aws:kms:eu-west-1:12345678901:key/x", "acme"),
        ("arn:aws:s3:eu-west-1:123456789012:key/x", "acme"),
        (ARN + "\n", "acme"),
        (None, "acme"),
        (ARN, ""),
        (ARN, "Acme"),
        (ARN, "a" * 64),
        (ARN, "acme/other"),
        (ARN, "-acme"),
        (ARN, None),
    ],
)
def test_references_are_strict(arn, customer):
    with pytest.raises(ArtifactError, match=r"key_arn|customer"):
        KeyReference(arn=arn, customer=customer)


def test_reference_tells_the_region():
    assert KeyReference(arn=ARN, customer="a").region == "eu-west-1"
    china = ARN.replace("arn:aws:", "arn:aws-cn:").replace("eu-west-1", "cn-north-1")
    assert KeyReference(arn=china, customer="a.b-c_1").region == "cn-north-1"


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        ("AccessDeniedException", "denied", "policy"),
        ("InvalidCiphertextException", "context", "customer"),
        ("IncorrectKeyException", "context", "customer"),
        ("DisabledException", "disabled", "enable the key"),
        ("KMSInvalidStateException", "disabled", "enable the key"),
        ("NotFoundException", "missing", "ARN"),
        ("ThrottlingException", "throttled", "later"),
        ("ExpiredTokenException", "credentials", "AWS_PROFILE"),
        ("UnrecognizedClientException", "credentials", "AWS_PROFILE"),
        ("KMSInternalException", "unavailable", "later"),
        ("SomethingNewException", "request", "message of KMS"),
    ],
)
def test_each_refusal_of_kms_has_a_reason_and_a_remedy(tenant, code, reason, said):
    made = tenant("L1")
    with failing(made.cloud.app, Refusal(code, "because\nof this")):
        error = refused(reason, made.keys("sealer").generate, DIGEST)
    assert said in error.diagnostics()
    assert f"({code}: becauseof this); key {made.arn}" in error.message
    assert error.message.startswith("kms GenerateDataKey: ")


def test_long_messages_of_kms_are_cut():
    answer = {"Error": {"Code": "X", "Message": "m" * 10_000}}
    assert len(of_answer("Decrypt", ARN, answer).message) < 600


def test_throttling_is_tried_again_and_a_denial_is_not(tenant, monkeypatch):
    from botocore.retries import standard

    monkeypatch.setattr(standard.ExponentialBackoff, "delay_amount", lambda *_: 0)
    made = tenant("L1")
    keys = made.keys("sealer", access=made.cloud.access(made.roles["sealer"], attempts=3))
    slow = Refusal("ThrottlingException", "slow down")
    with failing(made.cloud.app, slow, slow):
        assert len(keys.generate(DIGEST).plain) == 32
    with failing(made.cloud.app, slow, slow, slow):
        refused("throttled", keys.generate, DIGEST)
    before = len(made.cloud.app.requests)
    with failing(made.cloud.app, Refusal("AccessDeniedException", "no")):
        refused("denied", keys.generate, DIGEST)
    assert len(made.cloud.app.requests) == before + 1


def free_port() -> tuple[socket.socket, str]:
    """Give a port that is held and not listened on: connecting to it is refused."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held, f"http://127.0.0.1:{held.getsockname()[1]}"


def test_no_answer_is_told_from_a_refusal(tenant):
    made = tenant("L1")
    held, url = free_port()
    with held:
        access = made.cloud.access(made.roles["sealer"], endpoint_url=url)
        error = refused("unreachable", made.keys("sealer", access=access).generate, DIGEST)
    assert "EndpointConnectionError" in error.message
    assert "vsock proxy" in error.remedy


def test_a_silent_server_ends_in_a_time_out(tenant):
    made = tenant("L1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        access = made.cloud.access(made.roles["sealer"], endpoint_url=url, read_timeout_s=0.2)
        error = refused("unreachable", made.keys("sealer", access=access).generate, DIGEST)
    assert "ReadTimeoutError" in error.message


def test_without_credentials_no_metadata_service_is_asked(tenant, monkeypatch):
    made = tenant("L1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    # As on an instance, in a container: the metadata service is there and would be asked.
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    asked = []

    class Metadata:
        """Gives the sealer's credentials, and remembers that it was asked."""

        def __init__(self, *_arguments, **_more):
            pass

        def __getattr__(self, name):
            def give(*_arguments, **_more):
                asked.append(name)
                key = made.roles["sealer"]
                expiry = "2099-01-01T00:00:00Z"
                return {
                    "AccessKeyId": key,
                    "SecretAccessKey": "s",
                    "Token": "t",
                    "Expiration": expiry,
                }

            return give

    monkeypatch.setattr("botocore.credentials.InstanceMetadataFetcher", Metadata)
    monkeypatch.setattr("botocore.credentials.ContainerMetadataFetcher", Metadata)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:9/credentials")
    bare = AwsAccess(endpoint_url=made.cloud.url, attempts=1)
    error = refused("credentials", made.keys("sealer", access=bare).generate, DIGEST)
    assert "NoCredentialsError" in error.message
    assert asked == []
    role = AwsAccess(endpoint_url=made.cloud.url, attempts=1, instance_role=True)
    assert made.keys("sealer", access=role).generate(DIGEST).plain
    assert asked


@pytest.mark.parametrize("url", ["http://kms.example.com", "http://169.254.169.254", "no url"])
def test_keys_travel_in_the_open_only_on_loopback(url):
    access = AwsAccess(endpoint_url=url, credentials=AwsCredentials(access_key="a", secret_key="b"))
    error = refused(
        "request", lambda: KmsKeys(KeyReference(arn=ARN, customer="acme"), access=access)
    )
    assert "kms" in error.message


def test_the_environments_endpoint_is_judged_too(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "http://kms.example.com")
    given = AwsCredentials(access_key="a", secret_key="b")
    error = refused(
        "request",
        lambda: KmsKeys(KeyReference(arn=ARN, customer="a"), access=AwsAccess(credentials=given)),
    )
    assert "is not https" in error.message
    monkeypatch.delenv("AWS_ENDPOINT_URL_KMS")
    KmsKeys(KeyReference(arn=ARN, customer="a"), access=AwsAccess(credentials=given))


def test_without_botocore_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "botocore.config", None)
    error = refused("extra", lambda: KmsKeys(KeyReference(arn=ARN, customer="acme")))
    assert "luma[aws]" in error.remedy


def test_importing_the_package_needs_no_botocore():
    script = (
        "import sys, runtime.artifact, runtime.artifact.kms;"
        "sys.exit(any(name.split('.')[0] in ('botocore', 'boto3') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)


def test_a_service_that_ignores_the_document_is_refused(tenant):
    # moto itself, without what FakeKms adds: it answers an attested request in the open.
    made = tenant("L2")
    with Server(DomainDispatcherApplication(create_backend_app)) as moto:
        access = made.cloud.access("anyone", endpoint_url=moto.url)
        attested = made.keys("sealer", made.cloud.nsm(), access=access)
        error = refused("answer", attested.generate, DIGEST)
    assert "a key in the open" in error.message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"KeyId": ARN}, "an answer about another key"),
        ({"Plaintext": base64.b64decode("AAAA")}, "a key of 3 bytes"),
        ({"Plaintext": None}, "a key of 0 bytes"),
        ({"CiphertextBlob": b""}, "no wrapped key"),
        ({"CiphertextBlob": bytes(6145)}, "no wrapped key"),
    ],
)
def test_answers_that_kms_does_not_make_are_refused(tenant, monkeypatch, change, said):
    made = tenant("L1")
    keys = made.keys("sealer")
    (real,) = keys._clients.values()

    class Changed:
        """KMS, with one field of its answers changed."""

        def generate_data_key(self, **request):
            return real.generate_data_key(**request) | change

    monkeypatch.setattr(keys, "_clients", {made.reference.region: Changed()})
    assert said in refused("answer", keys.generate, DIGEST).message


def test_a_key_in_the_open_beside_the_sealed_one_is_refused(tenant, monkeypatch):
    made = tenant("L2")
    keys = made.keys("sealer", made.cloud.nsm())
    (real,) = keys._clients.values()

    class Talkative:
        """KMS, which answers an attested request in both ways."""

        def generate_data_key(self, **request):
            return real.generate_data_key(**request) | {"Plaintext": bytes(32)}

    monkeypatch.setattr(keys, "_clients", {made.reference.region: Talkative()})
    assert "a key in the open" in refused("answer", keys.generate, DIGEST).message


def test_no_key_is_logged_even_at_debug(tenant):
    made = tenant("L1")
    sealing, opening = made.keys("sealer"), made.keys("agent")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        released = sealing.generate(DIGEST)
        opened = opening.unwrap(made.reference, released.wrapped, DIGEST)
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
    text = stream.getvalue()
    assert "GenerateDataKey" in text  # the log was heard
    key = bytes(opened)
    for form in (key.hex(), base64.b64encode(key).decode(), repr(key)[2:-1]):
        assert form not in text
        assert form not in repr(released)


def test_secrets_are_in_no_repr(tenant):
    made = tenant("L1")
    given = AwsCredentials(access_key="AKIA", secret_key="very-secret", token="tokentoken")
    shown = repr(AwsAccess(credentials=given)) + repr(made.keys("sealer"))
    assert "very-secret" not in shown
    assert "tokentoken" not in shown
    assert "AKIA" in shown


def test_a_recipient_cannot_read_anothers_answer(tenant, stranger):
    from runtime.artifact.kms import Recipient

    made = tenant("L2")
    mine = Recipient(Nsm(made.cloud.nsm()), key=stranger)

    class Misdirected(Recipient):
        """Sends a document of another key pair."""

        def document(self, digest):
            return mine.document(digest)

    keys = made.keys("sealer", recipient=Misdirected(Nsm(made.cloud.nsm())))
    with pytest.raises(ArtifactError, match="cms: does not open"):
        keys.generate(DIGEST)


def test_the_loader_of_service_descriptions_is_shared():
    assert client_module._loader() is client_module._loader()


def test_no_defaults_mode_asks_the_instance_for_its_region(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULTS_MODE", "auto")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    asked = []
    for name in ("_get_request", "_fetch_metadata_token"):
        monkeypatch.setattr(
            f"botocore.utils.IMDSFetcher.{name}", lambda *_a, **_k: asked.append(1) or ""
        )
    given = AwsCredentials(access_key="a", secret_key="b")
    KmsKeys(KeyReference(arn=ARN, customer="a"), access=AwsAccess(credentials=given))
    assert asked == []
