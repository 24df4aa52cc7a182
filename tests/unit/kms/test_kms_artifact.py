"""Artifacts whose content key is wrapped under a key in (emulated) KMS."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.artifact import load_or_create_keys, open_artifact, verify_artifact
from runtime.artifact._evidence import (
    MAX_EVIDENCE_BYTES,
    AttachedEvidence,
    KmsEvidence,
)
from runtime.artifact.attestation import PcrPolicy, verify_attestation
from runtime.artifact.attestation.document import MAX_DOCUMENT_BYTES
from runtime.artifact.kms import KeyServiceError
from runtime.artifact.sealing import unwrap_content_key, wrap_content_key
from runtime.spec import ArtifactError
from tests.unit.artifact.conftest import Bench, make_payload
from tests.unit.kms.conftest import AMI, IMAGE, Parts


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Bench:
    folder = tmp_path_factory.mktemp("kms-artifacts")
    return Bench(folder=folder, keys=load_or_create_keys(folder / "home"))


def write(bench, made, name: str, **changes):
    nsm = None if made.level == "L1" else made.cloud.nsm()
    path = bench.write(name, "L1", data_key=made.keys("sealer", nsm), **changes)
    return path, Parts(path.read_bytes())


def opens(bench, path, keys):
    return open_artifact(path, trusted_signer=bench.keys.public_key, key=keys)


def refused(bench, data: bytes, keys, match: str):
    path = bench.folder / "refused.luma"
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=match):
        opens(bench, path, keys)


@pytest.mark.parametrize("level", ["L1", "L2", "L3"])
def test_sealed_and_opened(bench, tenant, level):
    made = tenant(level)
    path, _ = write(bench, made, f"sealed-{level}.luma")
    nsm = made.cloud.nsm(AMI, kind="nitrotpm") if level == "L3" else None
    artifact = opens(bench, path, made.keys("agent", nsm))
    assert artifact.target_payload("cpu") == make_payload("cpu", 1)
    assert artifact.target_payload("tpu") == make_payload("tpu", 2)
    # The digest that KMS binds is the artifact's.
    _, request = made.cloud.app.requests[-1]
    assert "sha384:" + request["EncryptionContext"]["luma:artifact"] == artifact.digest


def test_verification_tells_the_source_of_the_key(bench, tenant):
    made = tenant("L1")
    path, _ = write(bench, made, "label.luma")
    trusted = bench.keys.public_key
    found = verify_artifact(path, trusted_signer=trusted, key=made.keys("agent"))
    assert found.label == "L1 (KMS)"
    assert found.complete
    report = found.to_json()
    assert report["key_source"] == "kms"
    assert any(made.arn in item["detail"] for item in report["evidence"])
    without = verify_artifact(path, trusted_signer=trusted)
    assert without.label.startswith("L0 (claims L1: the seal was not checked")
    assert not without.complete


def test_manifest_names_the_key_and_the_customer(bench, tenant):
    made = tenant("L1")
    path, _ = write(bench, made, "named.luma")
    manifest = open_artifact(path, trusted_signer=bench.keys.public_key).manifest
    assert manifest.seal.key_source == "kms"
    assert manifest.seal.kms == made.reference
    assert manifest.to_json()["seal"] == {
        "cipher": "AES-256-GCM",
        "kdf": "HKDF-SHA-384",
        "key_source": "kms",
        "key_arn": made.arn,
        "customer": made.customer,
    }


def test_equal_payloads_have_different_digests_and_chunks(bench, tenant):
    made = tenant("L1")
    files = [write(bench, made, f"equal-{i}.luma") for i in range(2)]
    manifests = [open_artifact(path, trusted_signer=None).manifest for path, _ in files]
    digests = [set(manifest.payloads[0].digests) for manifest in manifests]
    assert not digests[0] & digests[1]
    assert files[0][1].chunks != files[1][1].chunks


def test_the_document_that_got_the_key_travels_along(bench, tenant):
    made = tenant("L2")
    path, _ = write(bench, made, "attested.luma")
    artifact = open_artifact(path, trusted_signer=bench.keys.public_key)
    found = verify_attestation(
        artifact.attestation,
        policy=PcrPolicy.of("nitro-enclave", {0: [IMAGE[0].hex()]}),
        nonce=None,
        user_data=bytes.fromhex(artifact.digest.removeprefix("sha384:")),
        roots=made.cloud.app.roots,
        at="timestamp",
    )
    assert found.pcrs[8] == IMAGE[8]
    plain, _ = write(bench, tenant("L1"), "unattested.luma")
    assert open_artifact(plain, trusted_signer=None).attestation is None


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_a_document_can_be_asked_for_without_kms(bench, level):
    asked = []
    path = bench.write(
        f"asked-{level}.luma", level, attest=lambda digest: asked.append(digest) or b"document"
    )
    artifact = open_artifact(path, trusted_signer=bench.keys.public_key)
    assert artifact.attestation == b"document"
    assert ["sha384:" + digest.hex() for digest in asked] == [artifact.digest]


def test_an_asked_document_goes_before_the_key_services(bench, tenant):
    path, _ = write(bench, tenant("L2"), "both.luma", attest=lambda _: b"document")
    assert open_artifact(path, trusted_signer=None).attestation == b"document"


@pytest.mark.parametrize("document", [b"", bytes(MAX_DOCUMENT_BYTES + 1)])
def test_a_document_that_no_reader_takes_is_not_written(bench, document):
    with pytest.raises(ArtifactError, match=r"evidence\.attestation"):
        bench.write("never.luma", "L1", attest=lambda _: document)
    assert not (bench.folder / "never.luma").exists()


def test_key_file_and_kms_are_told_apart(bench, tenant):
    made = tenant("L1")
    path, _ = write(bench, made, "kms.luma")
    with pytest.raises(ArtifactError, match="key_source: kms; a key file cannot open what arn"):
        opens(bench, path, bench.keys.data_key)
    by_file = bench.write("file.luma", "L1")
    with pytest.raises(ArtifactError, match="key_source: key-file; a key service cannot open"):
        opens(bench, by_file, made.keys("agent"))


def test_untrusted_signer_is_refused_before_kms_is_asked(bench, tenant):
    made = tenant("L1")
    path, _ = write(bench, made, "signer.luma")
    stranger = load_or_create_keys(bench.folder / "stranger").public_key
    asked = len(made.cloud.app.requests)
    with pytest.raises(ArtifactError, match=r"manifest\.signer"):
        open_artifact(path, trusted_signer=stranger, key=made.keys("agent"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="file size"):
        opens(bench, path, made.keys("agent"))
    assert len(made.cloud.app.requests) == asked


def test_another_customers_artifact_is_refused(bench, tenant):
    made, other = tenant("L1"), tenant("L1")
    path, _ = write(bench, made, "theirs.luma")
    with pytest.raises(KeyServiceError, match=r"manifest\.seal\.customer") as caught:
        opens(bench, path, other.keys("agent"))
    assert caught.value.reason == "context"


def test_wrapped_keys_of_another_artifact_are_refused(bench, tenant):
    made = tenant("L1")
    _, one = write(bench, made, "one.luma")
    _, two = write(bench, made, "two.luma")
    keys = made.keys("agent")
    # Whole: KMS refuses, since its context names the other artifact.
    refused(bench, one.with_evidence(two.evidence), keys, "InvalidCiphertextException")
    # Half: KMS releases the right data key, and the content key does not open under it.
    mine, theirs = cbor2.loads(one.evidence), cbor2.loads(two.evidence)
    mixed = {"kms": mine["kms"] | {"content_key": theirs["kms"]["content_key"]}}
    mixed = cbor2.dumps(mixed, canonical=True)
    refused(bench, one.with_evidence(mixed), keys, r"evidence\.kms\.content_key: does not open")


def test_a_sealers_other_content_key_is_refused(bench, tenant):
    # Whoever may ask for a data key for this digest still cannot change what the manifest signed.
    made = tenant("L1")
    path, parts = write(bench, made, "forged.luma")
    artifact = open_artifact(path, trusted_signer=bench.keys.public_key)
    digest = bytes.fromhex(artifact.digest.removeprefix("sha384:"))
    released = made.keys("sealer").generate(digest)
    forged = wrap_content_key(bytes(32), released.plain, artifact.manifest.seal.salt, digest)
    evidence = AttachedEvidence(
        kms=KmsEvidence(wrapped_key=released.wrapped, content_key=forged)
    ).to_bytes()
    refused(bench, parts.with_evidence(evidence), made.keys("agent"), r"manifest\.seal\.check")


@settings(max_examples=25)
@given(data=st.data())
def test_changed_wrapped_keys_are_refused(bench, kms_sample, data):
    made, parts = kms_sample
    name = data.draw(st.sampled_from(["wrapped_key", "content_key"]))
    kms = cbor2.loads(parts.evidence)["kms"]
    changed = bytearray(kms[name])
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    evidence = cbor2.dumps({"kms": kms | {name: bytes(changed)}}, canonical=True)
    refused(bench, parts.with_evidence(evidence), made.keys("agent"), "kms")


@pytest.fixture(scope="module")
def kms_sample(bench, tenant_maker):
    """One artifact under KMS for tests that only change it."""
    made = tenant_maker("L1")
    return made, write(bench, made, "sample.luma")[1]


KMS_PART = {"wrapped_key": b"w", "content_key": bytes(48)}


@pytest.mark.parametrize(
    ("evidence", "match"),
    [
        ({}, r"evidence\.kms: 'nothing' is not allowed"),
        ([], "evidence: .* expected a map"),
        ({"kms": None}, r"evidence\.kms: None"),
        ({"kms": KMS_PART | {"wrapped_key": b""}}, r"evidence\.kms\.wrapped_key: 0 bytes"),
        ({"kms": KMS_PART | {"wrapped_key": bytes(6145)}}, r"kms\.wrapped_key: 6145 bytes"),
        ({"kms": KMS_PART | {"wrapped_key": "w"}}, r"evidence\.kms\.wrapped_key"),
        ({"kms": KMS_PART | {"content_key": bytes(47)}}, r"kms\.content_key: 47 bytes"),
        ({"kms": KMS_PART | {"more": 1}}, r"evidence\.kms\.more: unknown"),
        ({"kms": {"wrapped_key": b"w"}}, r"evidence\.kms\.content_key: missing"),
        ({"kms": KMS_PART, "attestation": b""}, r"evidence\.attestation: 0 bytes"),
        ({"kms": KMS_PART, "attestation": 7}, r"evidence\.attestation"),
        (
            {"kms": KMS_PART, "attestation": bytes(MAX_DOCUMENT_BYTES + 1)},
            rf"evidence\.attestation: {MAX_DOCUMENT_BYTES + 1} bytes",
        ),
        ({"kms": KMS_PART, "receipt": b"x"}, r"evidence\.receipt: unknown"),
        ({"kms": {"wrapped_key": [[[]]]}}, "evidence"),
    ],
)
def test_other_evidence_is_refused(bench, kms_sample, evidence, match):
    made, parts = kms_sample
    data = parts.with_evidence(cbor2.dumps(evidence, canonical=True))
    for keys in (made.keys("agent"), None):
        refused(bench, data, keys, match)


def test_evidence_must_be_canonical_and_small(bench, kms_sample):
    made, parts = kms_sample
    plain = cbor2.loads(parts.evidence)
    swapped = cbor2.dumps({"kms": dict(reversed(plain["kms"].items()))})
    assert swapped != parts.evidence
    keys = made.keys("agent")
    refused(bench, parts.with_evidence(swapped), keys, "evidence: CBOR is not in canonical form")
    refused(bench, parts.with_evidence(parts.evidence + b"\0"), keys, "evidence: 1 bytes follow")
    refused(bench, parts.with_evidence(bytes(MAX_EVIDENCE_BYTES + 1)), keys, "evidence size")


def test_evidence_at_its_largest_is_read(bench, kms_sample):
    largest = AttachedEvidence(
        kms=KmsEvidence(wrapped_key=bytes(6144), content_key=bytes(48)),
        attestation=bytes(MAX_DOCUMENT_BYTES),
    )
    data = largest.to_bytes()
    assert len(data) <= MAX_EVIDENCE_BYTES
    assert AttachedEvidence.from_bytes(data) == largest


def test_wrapped_keys_where_the_manifest_speaks_of_none(bench, kms_sample):
    _, parts = kms_sample
    for level in ("L0", "L1"):
        by_file = Parts(bench.write(f"added-{level}.luma", level).read_bytes())
        data = by_file.with_evidence(parts.evidence)
        refused(bench, data, bench.key_for(level), r"evidence\.kms: 'wrapped keys'")


def test_a_document_added_by_anyone_changes_no_level(bench):
    # Evidence must prove itself: whoever adds bytes to a file adds no level to it.
    by_file = bench.write("document.luma", "L1")
    parts = Parts(by_file.read_bytes())
    by_file.write_bytes(parts.with_evidence(AttachedEvidence(attestation=b"any").to_bytes()))
    found = verify_artifact(by_file, trusted_signer=bench.keys.public_key, key=bench.keys.data_key)
    assert found.level == "L1"


def test_refusal_leaves_no_file(bench, tenant):
    made = tenant("L2")
    path = bench.folder / "never.luma"
    with pytest.raises(KeyServiceError):
        bench.write(path.name, "L1", data_key=made.keys("sealer"))
    assert not path.exists()


def test_revoked_customers_artifact_does_not_open_and_a_rotated_keys_does(bench, tenant):
    made = tenant("L2")
    path, _ = write(bench, made, "life.luma")
    made.admin.rotate_key_on_demand(KeyId=made.arn)
    assert opens(bench, path, made.keys("agent")).payload("cpu")
    made.admin.disable_key(KeyId=made.key_id)
    with pytest.raises(KeyServiceError) as caught:
        opens(bench, path, made.keys("agent"))
    assert caught.value.reason == "disabled"
    # What it is can still be read.
    assert open_artifact(path, trusted_signer=bench.keys.public_key).manifest.targets


def test_wrapping_as_documented():
    # Written out from docs/reference/artifact-format.md, so that another reader can be made.
    import hashlib
    import hmac

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    content, data_key, salt, digest = bytes(range(32)), b"\x07" * 32, b"\x09" * 32, b"\x0b" * 48
    wrapped = wrap_content_key(content, data_key, salt, digest)
    prk = hmac.digest(salt, data_key, "sha384")
    key = hmac.digest(prk, b"luma/1 wrap" + digest + b"\x01", hashlib.sha384)[:32]
    associated = b"\x82\x6bluma/wrap/1\x58\x30" + digest
    assert AESGCM(key).decrypt(bytes(12), wrapped, associated) == content
    assert unwrap_content_key(wrapped, data_key, salt, digest) == content
    for changed in ((bytes(32), salt, digest), (data_key, bytes(32), digest)):
        with pytest.raises(ArtifactError, match="does not open"):
            unwrap_content_key(wrapped, *changed)
    with pytest.raises(ArtifactError, match="does not open"):
        unwrap_content_key(wrapped, data_key, salt, bytes(48))


def test_no_key_stays_in_reach_of_the_writer(bench, tenant, monkeypatch):
    # Best effort, and checked where it can be: what the service gave, and the content key.
    from runtime.artifact import writer

    made = tenant("L1")
    keys = made.keys("sealer")
    given, wiped = [], []
    generate, wipe = keys.generate, writer.wipe
    monkeypatch.setattr(keys, "generate", lambda digest: given.append(generate(digest)) or given[0])
    monkeypatch.setattr(writer, "wipe", lambda secret: wiped.append(secret) or wipe(secret))
    path = bench.write("wiped.luma", "L1", data_key=keys)
    assert given[0].plain == bytes(32)
    assert len(wiped) == 2
    assert all(secret == bytes(32) for secret in wiped)
    assert opens(bench, path, made.keys("agent")).payload("cpu")
    assert "plain" not in repr(given[0])
