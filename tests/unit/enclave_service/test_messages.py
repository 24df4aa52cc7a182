"""The request: read strictly, and held against the customer's policy field by field."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enclave_image.service.errors import ServiceError
from enclave_image.service.messages import (
    MAX_TEXT,
    CustomerPolicy,
    Request,
    TargetResult,
    error_fields,
    read_error,
)
from runtime.artifact import KeyReference
from runtime.artifact.canonical import decode, encode
from runtime.spec import CompileError, LoweringError

ARN = "arn:aws:kms:eu-central-1:123456789012:key/k-1"
POLICY = CustomerPolicy(targets=("cpu", "tpu-v5e"), level="L1", max_package_bytes=1000)
KMS = KeyReference(arn=ARN, customer="acme")


def request(**changes) -> Request:
    given_ = {
        "targets": ("cpu",),
        "micro_shards": 4,
        "level": "L1",
        "data_key": b"k" * 32,
        "statistics": {"parameters": 7, "packing": True},
        "policy": POLICY,
        "package_bytes": 1000,
    }
    return Request(**given_ | changes)


def over_the_wire(message: dict) -> object:
    return decode(encode(message), what="message", max_bytes=1 << 20)


def check(found: Request, *, attested=False, largest=1 << 20) -> None:
    found.check(attested=attested, max_package_bytes=largest)


names = st.text(min_size=1, max_size=64)
levels = st.sampled_from(["L0", "L1", "L2", "L3"])


@given(
    targets=st.lists(names, min_size=1, max_size=64, unique=True),
    shards=st.integers(1, 1 << 20),
    level=levels,
    asked=levels,
    key=st.sampled_from(["none", "data_key", "kms"]),
    statistics=st.dictionaries(
        st.text(max_size=64), st.booleans() | st.integers(-9, 9) | st.text(max_size=64), max_size=9
    ),
    size=st.integers(1, 1 << 30),
)
def test_every_request_is_read_as_it_was_sent(targets, shards, level, asked, key, statistics, size):
    sent = request(
        targets=tuple(targets),
        micro_shards=shards,
        level=level,
        data_key=b"k" * 32 if key == "data_key" else None,
        kms=KMS if key == "kms" else None,
        statistics=statistics,
        policy=CustomerPolicy(targets=tuple(targets), level=asked, max_package_bytes=size),
        package_bytes=size,
    )
    assert Request.read(over_the_wire(sent.fields())) == sent


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"targets": ()}, "request.targets"),
        ({"targets": ("cpu", "cpu")}, "request.targets"),
        ({"targets": ("",)}, "request.targets"),
        ({"targets": tuple(f"t{i}" for i in range(65))}, "request.targets"),
        ({"micro_shards": 0}, "request.micro_shards"),
        ({"micro_shards": True}, "request.micro_shards"),
        ({"level": "L4"}, "request.level"),
        ({"data_key": b"short"}, "request.key.data_key"),
        ({"package_bytes": 0}, "request.package_bytes"),
        ({"package_bytes": (1 << 30) + 1}, "request.package_bytes"),
        ({"statistics": {"x": "y" * 65}}, "request.statistics"),
        ({"statistics": {f"s{i}": 1 for i in range(65)}}, "request.statistics"),
        ({"statistics": {"x": [1]}}, "request.statistics"),
        ({"policy": dataclasses.replace(POLICY, level="L9")}, "request.policy.level"),
        ({"policy": dataclasses.replace(POLICY, targets=())}, "request.policy.targets"),
        ({"policy": dataclasses.replace(POLICY, max_package_bytes=0)}, "max_package_bytes"),
    ],
)
def test_a_field_out_of_bounds_is_named(changes, named):
    with pytest.raises(ServiceError) as caught:
        Request.read(over_the_wire(request(**changes).fields()))
    assert named in caught.value.message


@pytest.mark.parametrize("name", sorted(request().fields()))
def test_a_missing_field_is_named(name):
    fields = request().fields()
    del fields[name]
    with pytest.raises(ServiceError, match=f"request.{name}: is missing"):
        Request.read(fields)


def test_unknown_fields_are_refused():
    with pytest.raises(ServiceError, match=r"request.extra"):
        Request.read(request().fields() | {"extra": 1})
    fields = request().fields()
    fields["policy"] = {**fields["policy"], "extra": 1}
    with pytest.raises(ServiceError, match=r"request.policy.extra"):
        Request.read(fields)
    with pytest.raises(ServiceError, match=r"request.key.extra"):
        Request.read(request().fields() | {"key": {"data_key": b"k" * 32, "extra": 1}})
    with pytest.raises(ServiceError, match=r"request.key"):
        Request.read(request().fields() | {"key": {"kms_arn": "arn:aws:s3:::b", "customer": "c"}})


def test_the_allowed_requests_are_allowed():
    check(request())
    check(request(targets=("tpu-v5e", "cpu")))
    for level in ("L1", "L2"):
        check(request(level=level), attested=True)
    for level in ("L1", "L2", "L3"):
        check(request(level=level, data_key=None, kms=KMS), attested=True)
    check(request(data_key=None, kms=KMS))  # a local service, at L1
    open_policy = dataclasses.replace(POLICY, level="L0")
    check(request(level="L0", data_key=None, policy=open_policy))


@pytest.mark.parametrize(
    ("changes", "attested", "named"),
    [
        ({"targets": ("cpu", "trn2")}, False, "request.targets: 'trn2'"),
        ({"level": "L0", "data_key": None}, False, "request.level: 'L0'"),
        ({"package_bytes": 1001}, False, "request.package_bytes: 1001"),
        ({"level": "L2"}, False, "request.level: 'L2'"),
        ({"level": "L3", "data_key": None, "kms": KMS}, False, "request.level: 'L3'"),
        ({"data_key": None}, False, "request.key: 'none'"),
        ({"level": "L3"}, True, "request.key: 'data_key'"),
        ({"level": "L2", "data_key": None}, True, "request.key: 'none'"),
        (
            {"policy": dataclasses.replace(POLICY, level="L2")},
            True,
            "request.level: 'L1' is not allowed; expected L2 or higher",
        ),
        (
            {"level": "L0", "policy": dataclasses.replace(POLICY, level="L0")},
            False,
            "request.key: 'data_key'",
        ),
    ],
)
def test_what_the_policy_does_not_allow_is_named(changes, attested, named):
    with pytest.raises(ServiceError) as caught:
        check(request(**changes), attested=attested)
    assert caught.value.reason == "policy"
    assert named in caught.value.message
    assert caught.value.remedy


def test_the_services_own_limit_holds_whatever_the_policy_says():
    with pytest.raises(ServiceError, match="at most 999, which is what this service takes"):
        check(request(), largest=999)


def test_a_key_is_not_shown():
    assert "k" * 8 not in repr(request(data_key=b"k" * 32))


@pytest.mark.parametrize("kind", [CompileError, LoweringError])
def test_errors_keep_their_kind_text_and_remedy(kind):
    result = TargetResult(target="cpu", seconds=1.5, error=kind("op aten.x", remedy="leave out"))
    read = TargetResult.read(over_the_wire(result.fields()))
    assert type(read.error) is kind
    assert (read.error.message, read.error.remedy) == ("op aten.x", "leave out")
    assert (read.target, read.seconds) == ("cpu", 1.5)


def test_a_long_error_is_cut_to_what_a_record_holds():
    fields = error_fields(CompileError("x" * 100_000, remedy="y" * 100_000))
    assert len(read_error(fields).message) == MAX_TEXT


def test_an_error_of_an_unknown_kind_is_the_services():
    read = read_error({"error": "OSError", "reason": "fault", "message": "m", "remedy": None})
    assert isinstance(read, ServiceError)
    assert read.reason == "fault"
