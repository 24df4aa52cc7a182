"""When a document is judged: fresh ones by this host's clock, archived ones by their own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from runtime.artifact.attestation import (
    Freshness,
    TrustRoots,
    authenticate,
    verify_attestation,
)
from runtime.spec import AttestationError
from tests.attestation_support import Pki, SoftwareNsm, make_document, payload_fields
from tests.attestation_support.documents import milliseconds
from tests.attestation_support.pki import EPOCH

NONCE = bytes(range(32))


def made_at(pki, seconds, **changes):
    when = EPOCH + timedelta(seconds=seconds)
    return make_document(pki, payload_fields(pki, timestamp=milliseconds(when), **changes))


@pytest.mark.parametrize("seconds", [-300, -1, 0, 30])
def test_the_window_is_300_seconds_back_and_30_ahead(seconds, pki, roots):
    # The leaf must have been valid when the document was made, or later.
    found = authenticate(made_at(pki, seconds), roots=roots, at=EPOCH)
    assert found.timestamp == EPOCH + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("seconds", "rule"), [(-10.001, "fresh.age"), (2.001, "fresh.clock"), (-10, None), (2, None)]
)
def test_the_window_can_be_chosen(seconds, rule, pki, roots):
    window = Freshness(max_age_s=10, max_ahead_s=2)
    if rule is None:
        authenticate(made_at(pki, seconds), roots=roots, at=EPOCH, freshness=window)
        return
    with pytest.raises(AttestationError) as refused:
        authenticate(made_at(pki, seconds), roots=roots, at=EPOCH, freshness=window)
    assert refused.value.rule == rule


def test_the_window_reaches_the_whole_verification(pki, roots, policy):
    document = made_at(pki, -11, nonce=NONCE)
    asked = {"policy": policy, "nonce": NONCE, "roots": roots, "at": EPOCH}
    assert verify_attestation(document, **asked).nonce == NONCE
    with pytest.raises(AttestationError) as refused:
        verify_attestation(document, **asked, freshness=Freshness(max_age_s=10))
    assert refused.value.rule == "fresh.age"


def test_the_time_zone_of_the_clock_does_not_matter(pki, roots):
    at = EPOCH.astimezone(timezone(timedelta(hours=-7)))
    assert authenticate(make_document(pki), roots=roots, at=at).timestamp == EPOCH


def test_the_clock_of_this_host_is_the_default():
    nsm = SoftwareNsm()
    found = authenticate(nsm.attest(), roots=TrustRoots.of_certificates([nsm.pki.cabundle[0]]))
    assert abs(found.timestamp - datetime.now(UTC)) < timedelta(minutes=5)


def test_an_old_document_is_refused_by_default(pki, roots):
    old = Pki.create(datetime(2020, 1, 1, tzinfo=UTC))
    trusted = TrustRoots.of_certificates([old.cabundle[0]])
    fields = payload_fields(old, timestamp=milliseconds(datetime(2020, 1, 1, tzinfo=UTC)))
    with pytest.raises(AttestationError) as refused:
        authenticate(make_document(old, fields), roots=trusted)
    assert refused.value.rule == "fresh.age"


def test_a_leaf_that_our_slow_clock_has_not_reached_is_accepted(pki, roots):
    """Made 20 s ahead of this clock, by a leaf that is valid from then on."""
    later = EPOCH + timedelta(seconds=20)
    made = pki.with_leaf(later, first=later)
    fields = payload_fields(made, timestamp=milliseconds(later))
    assert authenticate(make_document(made, fields), roots=roots, at=EPOCH).timestamp == later


def test_a_slow_clock_does_not_make_a_certificate_live_longer(pki, roots):
    """The document is from after the leaf's end; this clock has not reached that end yet."""
    later = EPOCH + timedelta(seconds=20)
    made = pki.with_leaf(EPOCH, last=EPOCH + timedelta(seconds=10))
    fields = payload_fields(made, timestamp=milliseconds(later))
    with pytest.raises(AttestationError) as refused:
        authenticate(make_document(made, fields), roots=roots, at=EPOCH)
    assert refused.value.rule == "chain.validity"


def test_a_leaf_that_has_ended_since_the_document_was_made_is_refused_live(pki, roots):
    made = pki.with_leaf(EPOCH - timedelta(hours=1), last=EPOCH - timedelta(seconds=1))
    when = EPOCH - timedelta(seconds=60)
    document = make_document(made, payload_fields(made, timestamp=milliseconds(when)))
    with pytest.raises(AttestationError) as refused:
        authenticate(document, roots=roots, at=EPOCH)
    assert refused.value.rule == "chain.validity"
    assert authenticate(document, roots=roots, at="timestamp").timestamp == when


def test_an_archived_document_is_judged_at_its_own_time(pki, roots, policy):
    document = made_at(pki, 7200)
    found = verify_attestation(document, policy=policy, nonce=None, roots=roots, at="timestamp")
    assert found.timestamp == EPOCH + timedelta(hours=2)


@pytest.mark.parametrize("hours", [-1, 3.001])
def test_an_archived_document_from_outside_its_leafs_life_is_refused(hours, pki, roots):
    with pytest.raises(AttestationError) as refused:
        authenticate(made_at(pki, hours * 3600), roots=roots, at="timestamp")
    assert refused.value.rule == "chain.validity"


@pytest.mark.parametrize("at", [datetime(2026, 7, 1, 12), "yesterday", None, 0])  # noqa: DTZ001
def test_a_moment_without_a_time_zone_is_refused(at, pki, roots):
    with pytest.raises(AttestationError) as refused:
        authenticate(make_document(pki), roots=roots, at=at)
    assert refused.value.rule == "moment"
    assert refused.value.message == (
        f"at: {at!r} is not allowed; expected 'now', 'timestamp' or a datetime with a time zone"
    )


@pytest.mark.parametrize("name", ["max_age_s", "max_ahead_s"])
@pytest.mark.parametrize("value", [-0.001, 86_400.001, float("nan"), float("inf")])
def test_a_window_that_would_accept_any_age_is_refused(name, value):
    with pytest.raises(AttestationError) as refused:
        Freshness(**{name: value})
    assert refused.value.rule == "moment"
    assert refused.value.message == (
        f"freshness.{name}: {value!r} is not allowed; expected 0 to 86400 seconds"
    )


@pytest.mark.parametrize("value", [0, 86_400])
def test_the_ends_of_a_window_are_allowed(value):
    assert Freshness(max_age_s=value, max_ahead_s=value).max_age_s == value
