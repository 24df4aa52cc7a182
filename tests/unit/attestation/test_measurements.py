"""The PCR policy, and the refusal of debug mode that no policy can lift."""

from __future__ import annotations

import dataclasses

import pytest

from runtime.artifact.attestation import PcrPolicy, authenticate, verify_attestation
from runtime.spec import AttestationError
from tests.attestation_support import ABSENT, make_document, payload_fields
from tests.attestation_support.documents import MEASURED, pcr_bank
from tests.attestation_support.pki import EPOCH

NONCE = bytes(range(32))
A, B, C = "aa" * 48, "bb" * 48, "cc" * 48
ZEROS = "00" * 48


@pytest.fixture
def verify(pki, roots):
    """Verify a document with these PCRs against a policy."""

    def verify(policy, bank, field="pcrs"):
        fields = payload_fields(pki, nonce=NONCE, **({"pcrs": ABSENT} | {field: bank}))
        return verify_attestation(
            make_document(pki, fields), policy=policy, nonce=NONCE, roots=roots, at=EPOCH
        )

    return verify


def bank(**values):
    """Give an enclave's bank with some PCRs replaced, named as pcr0."""
    return pcr_bank(MEASURED) | {int(n[3:]): bytes.fromhex(v) for n, v in values.items()}


def test_each_pcr_may_have_any_of_its_values(verify):
    policy = PcrPolicy.of("nitro-enclave", {0: [A, B], 8: [C]})
    assert verify(policy, bank(pcr0=A, pcr8=C)).pcrs[0] == bytes.fromhex(A)
    assert verify(policy, bank(pcr0=B, pcr8=C)).pcrs[0] == bytes.fromhex(B)


@pytest.mark.parametrize(
    ("pcrs", "message"),
    [
        ({"pcr0": C, "pcr8": C}, f"PCR0: {C} is not allowed; expected {A} or {B}"),
        ({"pcr0": A, "pcr8": A}, f"PCR8: {A} is not allowed; expected {C}"),
        ({"pcr0": A, "pcr8": ZEROS}, f"PCR8: {ZEROS} is not allowed; expected {C}"),
    ],
)
def test_any_other_value_is_refused(verify, pcrs, message):
    policy = PcrPolicy.of("nitro-enclave", {8: [C], 0: [B, A]})
    with pytest.raises(AttestationError) as refused:
        verify(policy, bank(**pcrs))
    assert refused.value.rule == "measured.pcr"
    assert refused.value.message == message
    assert refused.value.remedy == (
        "the image that was measured is not one that the policy accepts"
    )


def test_a_pcr_that_is_not_in_the_document_is_refused(verify):
    policy = PcrPolicy.of("nitro-enclave", {0: [A], 8: [C]})
    pcrs = {i: v for i, v in bank(pcr0=A).items() if i != 8}
    with pytest.raises(AttestationError) as refused:
        verify(policy, pcrs)
    assert refused.value.rule == "measured.pcr"
    assert refused.value.message == f"PCR8: absent is not allowed; expected {C}"


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("there", [True, False])
def test_an_enclave_in_debug_mode_is_refused_before_its_policy(verify, pki, roots, index, there):
    policy = PcrPolicy.of("nitro-enclave", {8: [MEASURED[8].hex()]})
    pcrs = pcr_bank(MEASURED) | {index: bytes(48)}
    if not there:
        del pcrs[index]
    with pytest.raises(AttestationError) as refused:
        verify(policy, pcrs)
    assert refused.value.rule == "measured.debug"
    assert refused.value.message == (
        f"payload.pcrs: ['PCR{index}'] is not allowed; expected measurements that are not zero"
    )
    assert refused.value.remedy == (
        "the enclave runs in debug mode, where its parent reads its console; start it without "
        "--debug-mode"
    )
    found = authenticate(make_document(pki, payload_fields(pki, pcrs=pcrs)), roots=roots, at=EPOCH)
    assert found.debug


def test_zeros_elsewhere_are_not_debug_mode(verify):
    """PCR3 was zero in a real production document."""
    policy = PcrPolicy.of("nitro-enclave", {0: [MEASURED[0].hex()]})
    assert not verify(policy, pcr_bank({i: MEASURED[i] for i in (0, 1, 2)})).debug


@pytest.mark.parametrize("accepted", [{7: [A]}, {4: [A], 12: [ZEROS]}, {4: [A], 12: [B], 7: [A]}])
def test_a_nitrotpm_policy_accepts_its_document(verify, accepted):
    measured = {0: ZEROS, 1: ZEROS, 2: ZEROS} | {i: v[0] for i, v in accepted.items()}
    pcrs = {i: bytes.fromhex(v) for i, v in measured.items()}
    found = verify(PcrPolicy.of("nitrotpm", accepted), pcrs, "nitrotpm_pcrs")
    assert found.kind == "nitrotpm"
    assert not found.debug


def test_a_document_of_the_other_kind_is_refused(verify):
    enclave = PcrPolicy.of("nitro-enclave", {0: [A]})
    with pytest.raises(AttestationError) as refused:
        verify(enclave, bank(pcr0=A), "nitrotpm_pcrs")
    assert refused.value.rule == "measured.kind"
    assert refused.value.message == (
        "document: 'nitrotpm' is not allowed; expected a document of nitro-enclave"
    )
    with pytest.raises(AttestationError) as refused:
        verify(PcrPolicy.of("nitrotpm", {7: [A]}), bank(pcr7=A))
    assert refused.value.rule == "measured.kind"


@pytest.mark.parametrize("value", [A, A.upper(), "sha384:" + A])
def test_hex_is_read_in_either_case_and_with_its_algorithm(value):
    policy = PcrPolicy.of("nitro-enclave", {0: [value]})
    assert policy.accepted == {0: frozenset({bytes.fromhex(A)})}


DIGITS = "96 hex digits"


@pytest.mark.parametrize(
    ("kind", "accepted", "message"),
    [
        ("nitro-enclave", {0: [ZEROS]}, "policy.PCR0: '48 zero bytes' X expected a measurement"),
        ("nitro-enclave", {0: [A, ZEROS]}, "policy.PCR0: '48 zero bytes' X expected a measurement"),
        (
            "nitro-enclave",
            {0: [A], 12: [ZEROS]},
            "policy.PCR12: '48 zero bytes' X expected a measurement",
        ),
        ("nitrotpm", {7: [ZEROS]}, "policy.PCR7: '48 zero bytes' X expected a measurement"),
        ("nitro-enclave", {0: []}, "policy.PCR0: [] X expected at least one value"),
        ("nitro-enclave", {0: A}, f"policy.PCR0: '{A[:59]}... X expected a list of values"),
        ("nitro-enclave", {0: ["aa"]}, f"policy.PCR0: 'aa' X expected {DIGITS}"),
        ("nitro-enclave", {0: [7]}, f"policy.PCR0: 7 X expected {DIGITS}"),
        ("nitro-enclave", {0: [A + "\n"]}, f"policy.PCR0: '{A[:59]}... X expected {DIGITS}"),
        ("nitro-enclave", {0: ["zz" * 48]}, f"policy.PCR0: '{'z' * 59}... X expected {DIGITS}"),
        ("nitro-enclave", {0: [A], 32: [A]}, "policy: 32 X expected PCRs from 0 to 31"),
        ("nitro-enclave", {0: [A], -1: [A]}, "policy: -1 X expected PCRs from 0 to 31"),
        ("nitro-enclave", {0: [A], True: [A]}, "policy: True X expected PCRs from 0 to 31"),
        ("nitro-enclave", {"0": [A]}, "policy: '0' X expected PCRs from 0 to 31"),
        ("nitro-enclave", {}, "policy: [] X expected PCR0 or PCR8 among the PCRs"),
        (
            "nitro-enclave",
            {4: [A], 3: [A]},
            "policy: [3, 4] X expected PCR0 or PCR8 among the PCRs",
        ),
        ("nitrotpm", {4: [A]}, "policy: [4] X expected PCR7 or PCR4 with PCR12 among the PCRs"),
        (
            "nitrotpm",
            {12: [ZEROS]},
            "policy: [12] X expected PCR7 or PCR4 with PCR12 among the PCRs",
        ),
        (
            "nitrotpm",
            {0: [A], 8: [A]},
            "policy: [0, 8] X expected PCR7 or PCR4 with PCR12 among the PCRs",
        ),
        ("tpm", {0: [A]}, "policy.kind: 'tpm' X expected nitro-enclave or nitrotpm"),
    ],
)
def test_a_policy_that_pins_no_image_is_refused(kind, accepted, message):
    with pytest.raises(AttestationError) as refused:
        PcrPolicy.of(kind, accepted)
    assert refused.value.rule == "policy"
    assert refused.value.message == message.replace(" X ", " is not allowed; ")
    if "zero" in message:
        assert refused.value.remedy == (
            "zeros would accept every debug enclave; list the image's own value"
        )


@pytest.mark.parametrize("value", [b"\x01" * 47, b"\x01" * 49, "ab"])
def test_a_value_of_another_size_is_refused(value):
    with pytest.raises(AttestationError) as refused:
        PcrPolicy("nitro-enclave", {0: frozenset({value})})
    assert refused.value.rule == "policy"
    shown = f"{len(value)} bytes" if isinstance(value, bytes) else repr(value)
    assert refused.value.message == (
        f"policy.PCR0: {shown} is not allowed; expected values of 48 bytes"
    )


@pytest.mark.parametrize("index", [0, 31])
def test_the_first_and_last_pcr_can_be_named(index):
    assert index in PcrPolicy.of("nitro-enclave", {8: [A], index: [A]}).accepted


def test_a_policy_cannot_be_changed():
    mine = {0: frozenset({bytes.fromhex(A)})}
    policy = PcrPolicy("nitro-enclave", mine)
    mine[0] = frozenset({bytes(48)})
    assert policy.accepted[0] == frozenset({bytes.fromhex(A)})
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.kind = "nitrotpm"
    with pytest.raises(TypeError):
        policy.accepted[0] = frozenset()
