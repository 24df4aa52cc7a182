"""The software NSM answers in the shapes of the device (facts of aws-nitro-enclaves-nsm-api)."""

from __future__ import annotations

import hashlib

import cbor2
import pytest

from runtime.artifact.attestation import PcrPolicy, TrustRoots, verify_attestation
from tests.attestation_support import SoftwareNsm
from tests.attestation_support.documents import MEASURED
from tests.attestation_support.pki import EPOCH

NONCE = bytes(range(32))


@pytest.fixture
def nsm(pki):
    return SoftwareNsm(pki=pki, clock=lambda: EPOCH)


def ask(nsm, request):
    return cbor2.loads(nsm(cbor2.dumps(request)))


def test_it_describes_itself(nsm):
    assert ask(nsm, "DescribeNSM") == {
        "DescribeNSM": {
            "version_major": 1,
            "version_minor": 0,
            "version_patch": 0,
            "module_id": "i-0test-enc0test",
            "max_pcrs": 32,
            "locked_pcrs": list(range(16)),
            "digest": "SHA384",
        }
    }


def test_it_gives_256_random_bytes(nsm):
    first, second = (ask(nsm, "GetRandom")["GetRandom"]["random"] for _ in range(2))
    assert len(first) == len(second) == 256
    assert first != second


def test_pcrs_are_extended_described_and_locked(nsm):
    assert ask(nsm, {"DescribePCR": {"index": 0}}) == {
        "DescribePCR": {"lock": True, "data": MEASURED[0]}
    }
    new = hashlib.sha384(bytes(48) + b"more").digest()
    assert ask(nsm, {"ExtendPCR": {"index": 16, "data": b"more"}}) == {"ExtendPCR": {"data": new}}
    assert ask(nsm, {"LockPCR": {"index": 16}}) == "LockPCR"
    assert ask(nsm, {"DescribePCR": {"index": 16}}) == {"DescribePCR": {"lock": True, "data": new}}
    assert ask(nsm, {"LockPCRs": {"range": 20}}) == "LockPCRs"
    assert ask(nsm, "DescribeNSM")["DescribeNSM"]["locked_pcrs"] == list(range(20))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ("Nothing", "InvalidOperation"),
        ({"Nothing": {}}, "InvalidOperation"),
        ({"LockPCR": {"index": 16}, "LockPCRs": {"range": 1}}, "InvalidOperation"),
        ({"Attestation": None}, "InvalidArgument"),
        ({"Attestation": {"nonce": b""}}, "InvalidArgument"),
        ({"Attestation": {"nonce": "n", "user_data": None, "public_key": None}}, "InvalidArgument"),
        (
            {"Attestation": {"nonce": bytes(513), "user_data": None, "public_key": None}},
            "InputTooLarge",
        ),
        (
            {"Attestation": {"nonce": None, "user_data": None, "public_key": bytes(1025)}},
            "InputTooLarge",
        ),
        ({"DescribePCR": {"index": 32}}, "InvalidIndex"),
        ({"DescribePCR": {"index": "0"}}, "InvalidArgument"),
        ({"ExtendPCR": {"index": 15, "data": b"x"}}, "ReadOnlyIndex"),
        ({"ExtendPCR": {"index": 16, "data": "x"}}, "InvalidArgument"),
        ({"LockPCR": {"index": 3}}, "ReadOnlyIndex"),
        ({"LockPCRs": {"range": 33}}, "InvalidIndex"),
        ("x" * 5000, "InputTooLarge"),
    ],
)
def test_it_refuses_with_the_devices_codes(nsm, request_, code):
    assert ask(nsm, request_) == {"Error": code}


def test_it_refuses_bytes_that_are_not_cbor(nsm):
    assert cbor2.loads(nsm(b"\x9f")) == {"Error": "InvalidArgument"}


def test_its_documents_verify_under_its_own_root(nsm, roots, policy):
    asked = {"nonce": NONCE, "user_data": b"d" * 48, "public_key": b"k" * 294}
    document = ask(nsm, {"Attestation": asked})["Attestation"]["document"]
    found = verify_attestation(document, policy=policy, nonce=NONCE, roots=roots, at=EPOCH)
    assert (found.user_data, found.public_key) == (b"d" * 48, b"k" * 294)
    assert sorted(found.pcrs) == list(range(16))


def test_locked_measurements_of_the_user_stand_in_documents(nsm, roots):
    value = ask(nsm, {"ExtendPCR": {"index": 16, "data": b"x"}})["ExtendPCR"]["data"]
    ask(nsm, {"LockPCR": {"index": 16}})
    policy = PcrPolicy.of("nitro-enclave", {0: [MEASURED[0].hex()], 16: [value.hex()]})
    document = nsm.attest(nonce=NONCE)
    found = verify_attestation(document, policy=policy, nonce=NONCE, roots=roots, at=EPOCH)
    assert sorted(found.pcrs) == list(range(17))


def test_as_a_nitrotpm_it_gives_the_other_kind():
    nsm = SoftwareNsm(kind="nitrotpm", measured={4: b"\x04" * 48, 7: b"\x07" * 48})
    roots = TrustRoots.of_certificates([nsm.pki.cabundle[0]])
    policy = PcrPolicy.of("nitrotpm", {7: ["07" * 48]})
    document = nsm.attest(nonce=NONCE)
    found = verify_attestation(document, policy=policy, nonce=NONCE, roots=roots)
    assert found.kind == "nitrotpm"
