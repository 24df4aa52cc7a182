"""The level that an artifact reaches, for every piece of evidence missing, wrong and right.

One artifact is sealed by an attested compiler under a key of level L3. It claims L3; the verifier is
given more or less, and the file is changed. Its document is of the software NSM, so the roots of the
tests are given explicitly: production's trust none of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.artifact import (
    LEVELS,
    AcceptedMeasurements,
    KeyPolicy,
    Verification,
    load_or_create_keys,
    verify_artifact,
)
from runtime.artifact.attestation import PRODUCTION_ROOTS, TrustRoots
from runtime.artifact.levels import EVIDENCE
from runtime.spec import ArtifactError
from tests.attestation_support import Pki
from tests.unit.artifact.conftest import Bench
from tests.unit.kms.conftest import AMI, IMAGE, OTHER_IMAGE, Parts

ORDER = ["none", *LEVELS]


def measurements(image=IMAGE, ami=AMI, **changes) -> dict:
    whole = {
        "schema": "luma/measurements/1",
        "images": {"compiler": {f"PCR{i}": value.hex() for i, value in image.items()}},
        "amis": {"node": {f"PCR{i}": ami[i].hex() for i in (4, 12)}},
    }
    return whole | changes


@dataclass
class Chain:
    """An artifact, and all that a verifier is given; `changed` gives one that differs."""

    bench: Bench
    made: object
    parts: Parts
    digest: bytes
    given: dict = field(default_factory=dict)

    def file(self, **evidence) -> Path:
        """Write the artifact with parts of its evidence replaced, or with None removed."""
        plain = cbor2.loads(self.parts.evidence) | evidence
        kept = {name: value for name, value in plain.items() if value is not None}
        path = self.bench.folder / "verified.luma"
        path.write_bytes(self.parts.with_evidence(cbor2.dumps(kept, canonical=True)))
        return path

    def verify(self, path: Path | None = None, **changes) -> Verification:
        return verify_artifact(path or self.file(), **self.given | changes)

    def document(self, measured=IMAGE, *, digest=None, **changes) -> bytes:
        """Give a document of this artifact's digest."""
        nsm = self.made.cloud.nsm(measured, **changes)
        return nsm.attest(user_data=digest or self.digest, nonce=bytes(32))


@pytest.fixture(scope="module")
def chain(tmp_path_factory, tenant_maker) -> Chain:
    folder = tmp_path_factory.mktemp("levels")
    bench = Bench(folder=folder, keys=load_or_create_keys(folder / "home"))
    made = tenant_maker("L3")
    sealing = made.keys("sealer", made.cloud.nsm())
    path = bench.write("whole.luma", "L3", data_key=sealing)
    given = {
        "trusted_signer": bench.keys.public_key,
        "key": made.keys("agent", made.cloud.nsm(AMI, kind="nitrotpm")),
        "accepted": AcceptedMeasurements.from_json(measurements()),
        "key_policy": KeyPolicy.from_json(made.policy()),
        "roots": made.cloud.app.roots,
    }
    digest = verify_artifact(path, trusted_signer=None).digest
    return Chain(
        bench=bench,
        made=made,
        parts=Parts(path.read_bytes()),
        digest=bytes.fromhex(digest.removeprefix("sha384:")),
        given=given,
    )


def states(found: Verification) -> dict[str, str]:
    return {item.name: item.state for item in found.evidence}


def detail(found: Verification, name: str) -> str:
    return next(item.detail for item in found.evidence if item.name == name)


def test_all_evidence_reaches_l3(chain):
    found = chain.verify()
    assert set(states(found).values()) == {"holds"}
    assert tuple(item.name for item in found.evidence) == EVIDENCE
    assert (found.level, found.claimed) == ("L3", "L3")
    assert found.complete
    assert found.label == "L3 (KMS; by the key policy that was given)"
    assert [found.failed(level) for level in LEVELS] == [()] * 4
    assert all(item.needed is None for item in found.evidence)


@pytest.mark.parametrize(
    ("missing", "level", "failed"),
    [
        ({"trusted_signer": None}, "none", {"signer"}),
        ({"key": None}, "L0", {"seal"}),
        ({"accepted": None}, "L1", {"image", "key-policy"}),
        ({"key_policy": None}, "L2", {"key-policy"}),
        ({"accepted": None, "key_policy": None}, "L1", {"image", "key-policy"}),
        ({"key": None, "accepted": None}, "L0", {"seal", "image", "key-policy"}),
    ],
)
def test_what_was_not_given_is_told_and_costs_its_level(chain, missing, level, failed):
    found = chain.verify(**missing)
    assert found.level == level
    assert set(found.failed("L3")) == failed
    assert {states(found)[name] for name in failed} == {"not given"}
    assert not found.complete
    assert found.label.startswith(level + " (")
    assert "claims L3: " in found.label
    for item in found.evidence:
        assert (item.needed is not None) == (item.name in failed)


def test_a_key_that_is_not_released_costs_the_seal_alone(chain):
    made = chain.made
    # At L3 nobody but an accepted machine is given the key, a verifier neither.
    found = chain.verify(key=made.keys("agent"))
    assert (found.level, found.failed()) == ("L0", ("seal",))
    assert states(found)["seal"] == "not given"
    assert "the key's policy does not allow it" in detail(found, "seal")
    # A wrapped key of another artifact is not only a closed door.
    sealing = made.keys("sealer", made.cloud.nsm())
    other = Parts(chain.bench.write("theirs.luma", "L3", data_key=sealing).read_bytes())
    found = chain.verify(chain.file(kms=cbor2.loads(other.evidence)["kms"]))
    assert (found.level, found.failed()) == ("L0", ("seal",))
    assert states(found)["seal"] == "does not hold"


def test_an_artifact_without_its_document_reaches_l1(chain):
    found = chain.verify(chain.file(attestation=None))
    assert found.level == "L1"
    assert found.label.startswith("L1 (KMS; claims L3: the artifact carries no attestation")
    assert states(found)["attestation"] == states(found)["image"] == "not given"
    assert found.failed() == ("attestation", "image")


OLD = datetime.now(UTC) - timedelta(days=900)


def test_an_old_document_is_judged_at_its_own_time(chain):
    pki = Pki.create(OLD)
    document = chain.document(pki=pki, clock=lambda: OLD)
    roots = TrustRoots.of_certificates([pki.cabundle[0]])
    found = chain.verify(chain.file(attestation=document), roots=roots)
    assert found.level == "L3"
    assert OLD.strftime("%Y-%m-%dT%H:%M") in detail(found, "attestation")


def flipped(chain) -> bytes:
    document = bytearray(chain.document())
    document[len(document) // 2] ^= 1
    return bytes(document)


WRONG_DOCUMENTS = {
    "no document": (lambda chain: b"document", "document"),
    "changed": (flipped, ""),
    "cut": (lambda chain: chain.document()[:-1], ""),
    "unknown root": (lambda chain: chain.document(pki=Pki.create()), r"cabundle\[0\]"),
    "debug": (lambda chain: chain.document({}), "debug mode"),
    "another artifact": (lambda chain: chain.document(digest=b"\x07" * 48), "made for another"),
    "a longer digest": (
        lambda chain: chain.document(digest=chain.digest + b"\0"),
        "made for another",
    ),
    "no digest": (
        lambda chain: chain.made.cloud.nsm().attest(nonce=bytes(32)),
        "made for another",
    ),
    "who opens": (lambda chain: chain.document(AMI, kind="nitrotpm"), "kind nitrotpm"),
    "an opener that measures the image": (
        lambda chain: chain.document(IMAGE, kind="nitrotpm"),
        "kind nitrotpm",
    ),
}


@pytest.mark.parametrize("name", WRONG_DOCUMENTS)
def test_a_wrong_document_costs_l2_and_is_told(chain, name):
    make, said = WRONG_DOCUMENTS[name]
    found = chain.verify(chain.file(attestation=make(chain)))
    assert found.level == "L1"
    assert states(found)["attestation"] == "does not hold"
    assert states(found)["image"] == "not given"
    assert re.search(said, detail(found, "attestation"))
    assert found.failed("L2") == ("attestation", "image")


def test_documents_of_two_artifacts_cannot_be_swapped(chain):
    sealing = chain.made.keys("sealer", chain.made.cloud.nsm())
    other = Parts(chain.bench.write("other.luma", "L3", data_key=sealing).read_bytes())
    theirs = cbor2.loads(other.evidence)["attestation"]
    found = chain.verify(chain.file(attestation=theirs))
    assert found.level == "L1"
    assert "made for another" in detail(found, "attestation")


def test_an_attested_artifact_cannot_be_signed_anew(chain, tmp_path):
    # The document covers the digest, and the digest the signer's key: another signature is another
    # artifact, and the document is not its own.
    thief = load_or_create_keys(tmp_path)
    document = cbor2.loads(chain.parts.evidence)["attestation"]
    path = chain.bench.write(
        "again.luma",
        "L2",
        signing_key=thief.signing_key,
        attest=lambda _: document,
    )
    given = {"trusted_signer": thief.public_key, "key": chain.bench.keys.data_key}
    found = chain.verify(path, **given)
    assert found.level == "L1"
    assert states(found)["attestation"] == "does not hold"


def test_who_runs_the_image_for_himself_is_not_the_signer(chain, tmp_path):
    # Anyone may run the published image for a graph of his own, so a true document does not make
    # up for the signer.
    stranger = load_or_create_keys(tmp_path)
    path = chain.bench.write(
        "stranger.luma",
        "L2",
        signing_key=stranger.signing_key,
        attest=lambda digest: chain.document(digest=digest),
    )
    given = {"key": chain.bench.keys.data_key}
    assert chain.verify(path, trusted_signer=stranger.public_key, **given).level == "L2"
    assert chain.verify(path, trusted_signer=None, **given).level == "none"
    with pytest.raises(ArtifactError, match=r"manifest\.signer"):
        chain.verify(path, **given)


@pytest.mark.parametrize(
    ("accepted", "state", "level"),
    [
        (measurements(OTHER_IMAGE), "does not hold", "L1"),
        (measurements(IMAGE | {0: OTHER_IMAGE[0]}), "does not hold", "L1"),
        (measurements(IMAGE | {8: OTHER_IMAGE[8]}), "does not hold", "L1"),
        (measurements(IMAGE | {5: b"\5" * 48}), "does not hold", "L1"),
        # A revoked image is one that the list no longer has.
        (measurements(images={}), "not given", "L1"),
        (measurements({i: IMAGE[i] for i in (0, 1, 2)}), "holds", "L3"),
    ],
)
def test_images(chain, accepted, state, level):
    found = chain.verify(accepted=AcceptedMeasurements.from_json(accepted))
    assert states(found)["image"] == state
    assert found.level == level
    facts = next(item.facts for item in found.evidence if item.name == "image")
    assert facts["PCR0"] == IMAGE[0].hex()
    assert ("name" in facts) == (state == "holds")


def test_zeros_among_the_measurements_are_refused():
    with pytest.raises(ArtifactError, match="48 zero bytes"):
        AcceptedMeasurements.from_json(measurements(IMAGE | {0: bytes(48)}))


@pytest.mark.parametrize(
    ("level", "changes", "state", "said"),
    [
        ("L1", {}, "does not hold", "all but the accepted AMIs"),
        ("L2", {}, "does not hold", "all but the accepted AMIs"),
        ("L3", {}, "holds", ""),
        ("L3", {"customer": "someone-else"}, "does not hold", "another key's policy"),
    ],
)
def test_key_policies(chain, level, changes, state, said):
    weaker = replace(chain.made, level=level)
    policy = KeyPolicy.from_json(weaker.policy(**changes))
    found = chain.verify(key_policy=policy)
    assert states(found)["key-policy"] == state
    assert said in detail(found, "key-policy")
    assert found.level == ("L3" if state == "holds" else "L2")


def test_amis_that_the_verifier_does_not_accept(chain):
    for wrong in (
        measurements(ami=AMI | {4: b"\1" * 48}),
        measurements(ami=AMI | {12: b"\1" * 48}),
    ):
        found = chain.verify(accepted=AcceptedMeasurements.from_json(wrong))
        assert (found.level, states(found)["key-policy"]) == ("L2", "does not hold")
    none = AcceptedMeasurements.from_json(measurements(amis={}))
    found = chain.verify(accepted=none)
    assert (found.level, states(found)["key-policy"]) == ("L2", "not given")


@pytest.mark.parametrize("claimed", LEVELS)
def test_no_more_is_told_than_the_claim_allows(chain, claimed):
    # The image signs what it promises: an artifact that it calls L1 is no more. Who may open is not
    # its to know.
    made = chain.made
    given = {"level": claimed, "attest": lambda digest: chain.document(digest=digest)}
    given["data_key"] = None if claimed == "L0" else made.keys("sealer", made.cloud.nsm())
    path = chain.bench.write(f"claims-{claimed}.luma", **given)
    changes = {"key": None} if claimed == "L0" else {}
    found = chain.verify(path, **changes)
    most = "L3" if claimed == "L2" else claimed
    assert (found.level, found.claimed) == (most, claimed)
    assert found.complete
    assert ("claims" in found.label) == (most != claimed)
    for asked in LEVELS:
        assert found.reaches(asked) == (asked <= most)
        assert bool(found.failed(asked)) == (asked > most)
        assert ("claim" in found.failed(asked)) == (asked > most)


def test_a_key_file_serves_l2_and_not_l3(chain):
    path = chain.bench.write("file.luma", "L2", attest=lambda digest: chain.document(digest=digest))
    found = chain.verify(path, key=chain.bench.keys.data_key)
    assert found.level == "L2"
    assert found.label == "L2 (key file)"
    assert "no KMS key" in detail(found, "key-policy")
    assert states(found)["key-policy"] == "does not hold"


def test_production_roots_accept_nothing_of_the_tests(chain):
    changed = {name: value for name, value in chain.given.items() if name != "roots"}
    for roots in ({}, {"roots": PRODUCTION_ROOTS}):
        found = verify_artifact(chain.file(), **changed | roots)
        assert found.level == "L1"
        assert "production trusts AWS's Nitro root alone" in detail(found, "attestation")


def test_claims_need_their_evidence_when_written(chain):
    made = chain.made
    with pytest.raises(ArtifactError, match="L2 needs an attestation document"):
        chain.bench.write("never.luma", "L2")
    with pytest.raises(ArtifactError, match="L3 needs a key service"):
        chain.bench.write("never.luma", "L3", attest=lambda _: b"document")
    plain = replace(made, level="L1")
    plain.put_policy(plain.policy())
    try:
        with pytest.raises(ArtifactError, match="L3 needs an attestation document"):
            chain.bench.write("never.luma", "L3", data_key=made.keys("sealer"))
    finally:
        made.put_policy(made.policy())
    assert not (chain.bench.folder / "never.luma").exists()


def test_json_has_each_link_and_what_failed(chain):
    found = chain.verify(accepted=None)
    document = json.loads(json.dumps(found.to_json(asked="L2")))
    assert (document["level"], document["failed"]) == ("L1", ["image"])
    assert document["level_required"] == "L2"
    links = {item["name"]: item for item in document["evidence"]}
    assert list(links) == list(EVIDENCE)
    assert links["attestation"]["facts"]["module"] == "i-0test-enc0test"
    assert len(links["attestation"]["facts"]["chain"]) >= 3
    assert links["seal"]["facts"]["key"] == chain.made.arn
    assert links["image"]["state"] == "not given"
    assert "measurements" in links["image"]["needed"]


# Each piece of evidence, right, missing or wrong; what the level is at most without it.
PIECES = {
    "trusted_signer": ("right", "missing"),
    "key": ("right", "missing"),
    "document": ("right", "missing", "wrong"),
    "accepted": ("right", "missing", "wrong"),
    "key_policy": ("right", "missing", "wrong"),
}
AT_MOST = {
    "trusted_signer": "none",
    "key": "L0",
    "document": "L1",
    "accepted": "L1",
    "key_policy": "L2",
}


def verified(chain, pieces: dict[str, str]) -> Verification:
    wrong = {
        "accepted": AcceptedMeasurements.from_json(measurements(OTHER_IMAGE)),
        "key_policy": KeyPolicy.from_json(replace(chain.made, level="L2").policy()),
    }
    changes = {}
    for name in set(pieces) - {"document"}:
        if pieces[name] != "right":
            changes[name] = None if pieces[name] == "missing" else wrong[name]
    documents = {
        "right": chain.document,
        "missing": lambda: None,
        "wrong": lambda: chain.document(digest=b"\x07" * 48),
    }
    return chain.verify(chain.file(attestation=documents[pieces["document"]]()), **changes)


choices = st.fixed_dictionaries({name: st.sampled_from(PIECES[name]) for name in PIECES})


@settings(max_examples=40)
@given(choices)
def test_the_level_is_what_the_weakest_piece_allows(chain, pieces):
    expected = min(
        (AT_MOST[name] for name, state in pieces.items() if state != "right"),
        key=ORDER.index,
        default="L3",
    )
    assert verified(chain, pieces).level == expected


@settings(max_examples=15)
@given(choices, st.sampled_from(list(PIECES)), st.data())
def test_taking_a_piece_away_or_spoiling_it_never_raises_the_level(chain, pieces, name, data):
    worse = data.draw(st.sampled_from(PIECES[name][1:]))
    before = verified(chain, pieces | {name: "right"}).level
    after = verified(chain, pieces | {name: worse}).level
    assert ORDER.index(after) <= ORDER.index(before)
    assert ORDER.index(after) <= ORDER.index(AT_MOST[name])
