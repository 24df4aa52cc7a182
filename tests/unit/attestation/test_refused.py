"""Every rule of a document has a case that breaks it alone, and says so exactly."""

from __future__ import annotations

import warnings

import pytest

from runtime.artifact.attestation import Rule, authenticate, verify_attestation
from runtime.spec import ArtifactError, AttestationError
from tests.attestation_support import make_document, payload_fields
from tests.attestation_support.pki import EPOCH
from tests.unit.attestation import cases

NONCE = bytes(range(32))

ELSEWHERE = {
    "fresh.nonce": "test_binding.py",
    "bound.user_data": "test_binding.py",
    "measured.debug": "test_measurements.py",
    "measured.kind": "test_measurements.py",
    "measured.pcr": "test_measurements.py",
    "policy": "test_measurements.py",
    "roots": "test_trust_roots.py",
    "moment": "test_time.py",
}
"""Rules of what a caller asks, and where their tests are."""


@pytest.mark.parametrize("case", cases.ALL, ids=lambda case: f"{case.rule}-{case.name}")
def test_a_document_that_breaks_a_rule_is_refused(case, pki, roots):
    document = case.build(pki)
    with pytest.raises(AttestationError) as refused:
        authenticate(document, roots=roots, at=EPOCH)
    assert refused.value.rule == case.rule
    assert refused.value.message == case.message


def test_every_rule_has_a_test():
    covered = {case.rule for case in cases.ALL} | ELSEWHERE.keys()
    assert covered == {str(rule) for rule in Rule}


def test_the_names_of_cases_are_unique():
    names = [f"{case.rule}-{case.name}" for case in cases.ALL]
    assert len(names) == len(set(names))


def test_a_refusal_is_an_artifact_error_with_a_remedy(pki, roots, policy):
    with pytest.raises(ArtifactError) as refused:
        verify_attestation(
            make_document(pki, payload_fields(pki, later=1, nonce=NONCE)),
            policy=policy,
            nonce=NONCE,
            roots=roots,
            at=EPOCH,
        )
    assert refused.value.exit_code == 1
    assert refused.value.diagnostics() == (
        "payload: 'later' is not allowed; expected only the fields that this version knows\n"
        "  remedy: a newer version of Luma may know the field; it is not safe to skip it"
    )


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("foreign-root", "documents of test hardware are verified with the test's own roots"),
        ("too-old", "ask for a new document"),
        ("from-the-future", "set the clock of this host"),
        (
            "payload-of-another",
            "the document was changed, or put together from parts of others",
        ),
    ],
)
def test_refusals_say_what_to_do(name, remedy, pki, roots):
    [case] = [case for case in cases.ALL if case.name == name]
    with pytest.raises(AttestationError) as refused:
        authenticate(case.build(pki), roots=roots, at=EPOCH)
    assert refused.value.remedy == remedy


@pytest.mark.parametrize("case", cases.ALL[::7], ids=lambda case: case.name)
def test_verifying_refuses_what_authenticating_refuses(case, pki, roots, policy):
    with pytest.raises(AttestationError) as refused:
        verify_attestation(case.build(pki), policy=policy, nonce=NONCE, roots=roots, at=EPOCH)
    assert refused.value.rule == case.rule


@pytest.mark.parametrize(("action", "rule"), [("error", "chain.der"), ("ignore", "chain.issuer")])
def test_a_warning_of_the_library_is_a_refusal_too(action, rule, pki, roots):
    """A process may make errors of warnings; cryptography warns of a negative serial number."""
    serial = int.from_bytes(b"\x7fa serial number", "big")
    leaf = pki.with_leaf(EPOCH, serial=serial).leaf
    leaf = leaf.replace(b"\x7fa serial number", b"\xffa serial number")
    document = make_document(pki, payload_fields(pki, certificate=leaf))
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        with pytest.raises(AttestationError) as refused:
            authenticate(document, roots=roots, at=EPOCH)
    assert refused.value.rule == rule
