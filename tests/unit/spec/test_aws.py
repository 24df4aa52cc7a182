"""Clients of AWS and what becomes of their errors."""

from __future__ import annotations

import builtins
import os
import socket
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from botocore import exceptions
from botocore.exceptions import ClientError

from runtime.spec import aws
from runtime.spec.aws import AwsError, aws_client, aws_errors, error_code, is_loopback

_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "eu-central-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with patch.dict(os.environ, kept | _ENVIRONMENT, clear=True):
        yield


def _answer(code: str, message: str = "why", status: int = 400) -> ClientError:
    answer: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, "GetItem")


def _told(error: Exception) -> AwsError:
    with pytest.raises(AwsError) as caught, aws_errors("dynamodb GetItem of table 't'"):
        raise error
    assert caught.value.__cause__ is None
    return caught.value


# --------------------------------------------------------------------- clients


def test_the_region_is_what_instances_call_it() -> None:
    assert aws_client("dynamodb").meta.region_name == "eu-central-1"
    assert aws_client("dynamodb", region="us-west-2").meta.region_name == "us-west-2"


def test_the_older_name_of_the_region_holds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    assert aws_client("sqs").meta.region_name == "us-west-2"


def test_no_region_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(AwsError, match="sqs: no client") as caught:
        aws_client("sqs")
    assert "AWS_REGION" in caught.value.diagnostics()


def test_throttled_requests_are_slowed_down() -> None:
    retries = aws_client("s3").meta.config.retries
    assert retries["mode"] == "adaptive"
    assert retries["total_max_attempts"] == aws._ATTEMPTS


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_loopback_endpoint_may_be_plain(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:5000")
    assert aws_client("s3").meta.endpoint_url == f"http://{host}:5000"


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_any_other_plain_endpoint_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "http://10.0.0.7:5000")
    with pytest.raises(AwsError, match="not https"):
        aws_client("s3")


def test_an_endpoint_that_is_no_url_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "no url")
    with pytest.raises(AwsError, match="s3: no client"):
        aws_client("s3")


def test_a_missing_boto3_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "boto3":
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(AwsError) as caught:
        aws_client("s3")
    assert "luma[aws]" in caught.value.diagnostics()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_what_stays_on_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.7", "0.0.0.0", "::", "example.com", "", "127.0.0.1.x.y"])
def test_what_does_not(host: str) -> None:
    assert not is_loopback(host)


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("code", "reason", "transient"),
    [
        ("AccessDeniedException", "denied", False),
        ("ResourceNotFoundException", "missing", False),
        ("NoSuchBucket", "missing", False),
        ("ThrottlingException", "throttled", True),
        ("ProvisionedThroughputExceededException", "throttled", True),
        ("SlowDown", "throttled", True),
        ("ExpiredTokenException", "credentials", False),
        ("InternalServerError", "unavailable", True),
        ("ValidationException", "request", False),
    ],
)
def test_an_answer_has_a_reason(code: str, reason: str, transient: bool) -> None:
    error = _told(_answer(code))
    assert error.reason == reason
    assert error.transient is transient
    assert error.elsewhere is (transient or reason == "credentials")
    assert error.message == f"dynamodb GetItem of table 't': {reason} ({code}: why)"
    assert error.remedy


def test_an_unknown_failure_on_aws_s_side_may_pass() -> None:
    assert _told(_answer("NewCode", status=502)).reason == "unavailable"
    assert _told(_answer("NewCode", status=400)).reason == "request"


def test_what_aws_says_is_shown_without_control_characters() -> None:
    shown = _told(_answer("X", "a\x1b[31m\nb" + "c" * 1000)).message
    assert "\x1b" not in shown
    assert "\n" not in shown
    assert len(shown) < 400


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (exceptions.NoCredentialsError(), "credentials"),
        (exceptions.PartialCredentialsError(provider="env", cred_var="x"), "credentials"),
        (exceptions.EndpointConnectionError(endpoint_url="https://x"), "unreachable"),
        (exceptions.ReadTimeoutError(endpoint_url="https://x"), "unreachable"),
        (exceptions.ParamValidationError(report="a secret was here"), "request"),
    ],
)
def test_no_answer_has_a_reason(error: Exception, reason: str) -> None:
    told = _told(error)
    assert told.reason == reason
    assert "secret" not in told.message


def test_missing_credentials_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    client = aws_client("dynamodb")
    with pytest.raises(AwsError) as caught, aws_errors("dynamodb ListTables"):
        client.list_tables()
    assert caught.value.reason == "credentials"


def test_a_closed_port_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(aws, "_ATTEMPTS", 1)
    with pytest.raises(AwsError) as caught, aws_errors("dynamodb ListTables"):
        aws_client("dynamodb").list_tables()
    assert caught.value.reason == "unreachable"


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), aws_errors("x"):
        raise KeyError("k")


def test_a_code_is_read_from_the_answer() -> None:
    assert error_code(_answer("PreconditionFailed")) == "PreconditionFailed"
    assert error_code(ClientError({}, "X")) == "unknown"
