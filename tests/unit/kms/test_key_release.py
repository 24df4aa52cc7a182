"""Who is given a key: the emulated KMS judges the very JSON that `luma_constructs` makes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from enclave_image.nsm import Nsm
from luma_constructs.key_policy import AcceptedImages
from runtime.artifact import KeyReference
from runtime.artifact.attestation import TrustRoots
from runtime.artifact.kms import KeyServiceError, Recipient
from tests.attestation_support import Pki
from tests.unit.kms.conftest import AMI, IMAGE, OTHER_IMAGE

DIGEST, OTHER_DIGEST = b"\x0d" * 48, b"\x0e" * 48
LEVELS = ("L1", "L2", "L3")


def sealer(made, **changes):
    """Give the key service of the accepted compiler at the tenant's level."""
    return made.keys("sealer", None if made.level == "L1" else made.cloud.nsm(), **changes)


def agent(made, **changes):
    """Give the key service of an accepted node at the tenant's level."""
    nsm = made.cloud.nsm(AMI, kind="nitrotpm") if made.level == "L3" else None
    return made.keys("agent", nsm, **changes)


def refused(reason: str, call, *arguments):
    with pytest.raises(KeyServiceError) as caught:
        call(*arguments)
    assert caught.value.reason == reason
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("level", LEVELS)
def test_the_accepted_sides_seal_and_open(tenant, level):
    made = tenant(level)
    released = sealer(made).generate(DIGEST)
    assert len(released.plain) == 32
    assert (released.attestation is not None) == (level != "L1")
    opened = agent(made).unwrap(made.reference, released.wrapped, DIGEST)
    assert opened == released.plain
    operation, request = made.cloud.app.requests[-1]
    assert operation == "Decrypt"
    assert request["EncryptionContext"] == {
        "luma:customer": made.customer,
        "luma:artifact": DIGEST.hex(),
    }


def test_policy_stored_is_the_policy_made(tenant):
    made = tenant("L3")
    stored = made.admin.get_key_policy(KeyId=made.arn, PolicyName="default")["Policy"]
    assert json.loads(stored) == made.policy()


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_another_image_is_refused(tenant, level):
    made = tenant(level)
    other = made.keys("sealer", made.cloud.nsm(OTHER_IMAGE))
    refused("denied", other.generate, DIGEST)


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_debug_enclave_is_refused(tenant, level):
    made = tenant(level)
    debug = made.keys("sealer", made.cloud.nsm({}))
    refused("denied", debug.generate, DIGEST)


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_sealing_without_a_document_is_refused(tenant, level):
    made = tenant(level)
    refused("denied", made.keys("sealer").generate, DIGEST)


def test_l3_opens_on_no_other_ami_and_not_without_a_document(tenant):
    made = tenant("L3")
    wrapped = sealer(made).generate(DIGEST).wrapped
    override = AMI | {12: b"\x01" * 48}
    kernel = AMI | {4: b"\x02" * 48}
    for measured in (override, kernel):
        keys = made.keys("agent", made.cloud.nsm(measured, kind="nitrotpm"))
        refused("denied", keys.unwrap, made.reference, wrapped, DIGEST)
    refused("denied", made.keys("agent").unwrap, made.reference, wrapped, DIGEST)
    # An enclave that measures the same numbers is no attested AMI.
    enclave = made.keys("agent", made.cloud.nsm(AMI))
    refused("denied", enclave.unwrap, made.reference, wrapped, DIGEST)


@pytest.mark.parametrize("level", LEVELS)
def test_roles_do_only_their_part(tenant, level):
    made = tenant(level)
    wrapped = sealer(made).generate(DIGEST).wrapped
    nsm = made.cloud.nsm(AMI, kind="nitrotpm") if level == "L3" else None
    refused("denied", made.keys("sealer", nsm).unwrap, made.reference, wrapped, DIGEST)
    refused("denied", made.keys("other", nsm).unwrap, made.reference, wrapped, DIGEST)
    image = None if level == "L1" else made.cloud.nsm()
    refused("denied", made.keys("agent", image).generate, DIGEST)
    refused("denied", made.keys("other", image).generate, DIGEST)
    made.roles["admin"] = "ADMIN"
    refused("denied", made.keys("admin", nsm).unwrap, made.reference, wrapped, DIGEST)
    refused("denied", made.keys("admin", image).generate, DIGEST)


def test_another_artifact_does_not_open(tenant):
    made = tenant("L2")
    wrapped = sealer(made).generate(DIGEST).wrapped
    error = refused("context", agent(made).unwrap, made.reference, wrapped, OTHER_DIGEST)
    assert "InvalidCiphertextException" in error.message


def test_another_customers_wrapped_key_does_not_open(tenant):
    made, other = tenant("L2"), tenant("L2")
    wrapped = sealer(made).generate(DIGEST).wrapped
    # As one's own: the ciphertext is of another key.
    refused("context", agent(other).unwrap, other.reference, wrapped, DIGEST)
    # As what it is: this side refuses before it asks, and the key's policy would too.
    asked = len(made.cloud.app.requests)
    refused("context", agent(other).unwrap, made.reference, wrapped, DIGEST)
    assert len(made.cloud.app.requests) == asked


def test_one_key_serves_one_customer_on_this_side_too(tenant):
    made = tenant("L1")
    wrapped = sealer(made).generate(DIGEST).wrapped
    someone = KeyReference(arn=made.arn, customer="someone-else")
    asked = len(made.cloud.app.requests)
    error = refused(
        "context", agent(made, reference=someone).unwrap, made.reference, wrapped, DIGEST
    )
    assert "this side opens artifacts of 'someone-else'" in error.message
    assert len(made.cloud.app.requests) == asked


def test_the_policy_refuses_another_customers_context(tenant):
    made = tenant("L1")
    client = made.cloud.client(made.roles["sealer"])
    for context in (
        {"luma:customer": "someone-else", "luma:artifact": DIGEST.hex()},
        {"luma:artifact": DIGEST.hex()},
        {"luma:customer": made.customer},
        {},
    ):
        with pytest.raises(client.exceptions.ClientError) as caught:
            client.generate_data_key(KeyId=made.arn, KeySpec="AES_256", EncryptionContext=context)
        assert caught.value.response["Error"]["Code"] == "AccessDeniedException"


@pytest.mark.parametrize(
    ("clock_s", "said"), [(-600, "payload.timestamp"), (600, "payload.timestamp")]
)
def test_stale_and_future_documents_are_refused(tenant, clock_s, said):
    made = tenant("L2")
    nsm = made.cloud.nsm(clock=lambda: datetime.now(UTC) + timedelta(seconds=clock_s))
    error = refused("request", made.keys("sealer", nsm).generate, DIGEST)
    assert said in error.message


def test_replayed_document_is_refused(tenant):
    made = tenant("L2")
    keys = sealer(made)
    document = keys.generate(DIGEST).attestation

    class Replay(Recipient):
        """Sends the document that was used before."""

        def document(self, digest):
            return document

    replaying = made.keys("sealer", recipient=Replay(Nsm(made.cloud.nsm())))
    error = refused("request", replaying.generate, DIGEST)
    assert "nonce is not fresh" in error.message


def test_document_without_a_nonce_or_key_is_refused(tenant):
    made = tenant("L2")
    for missing in ("nonce", "public_key"):

        class Lacking:
            """Leaves a field out."""

            def attestation(self, missing=missing, **fields):
                return made.cloud.nsm().attest(**fields | {missing: None})

        keys = made.keys("sealer", recipient=made.cloud.recipient(Lacking()))
        refused("request", keys.generate, DIGEST)


def test_document_of_another_root_is_refused(tenant):
    made = tenant("L2")
    forged = made.cloud.nsm(pki=Pki.create())
    error = refused("request", made.keys("sealer", forged).generate, DIGEST)
    assert "Attestation document" in error.message


def test_changed_document_is_refused(tenant):
    made = tenant("L2")

    class Liar:
        """Claims the accepted image in a document of another one."""

        def attestation(self, **fields):
            honest = made.cloud.nsm(OTHER_IMAGE).attest(**fields)
            return honest.replace(OTHER_IMAGE[0], IMAGE[0])

    refused("request", made.keys("sealer", recipient=made.cloud.recipient(Liar())).generate, DIGEST)


def test_production_roots_do_not_trust_the_documents_of_tests(cloud):
    from runtime.artifact.attestation import PRODUCTION_ROOTS

    assert not PRODUCTION_ROOTS.holds(cloud.pki.cabundle[0])
    assert TrustRoots.of_certificates([cloud.pki.cabundle[0]]) == cloud.app.roots


def test_pinning_the_signer_survives_a_rebuild(tenant):
    made = tenant("L2", images=AcceptedImages(pcrs={"PCR8": [IMAGE[8].hex()]}))
    rebuilt = OTHER_IMAGE | {8: IMAGE[8]}
    made.keys("sealer", made.cloud.nsm(rebuilt)).generate(DIGEST)
    refused("denied", made.keys("sealer", made.cloud.nsm(OTHER_IMAGE)).generate, DIGEST)


def test_image_and_signer_pinned_together_must_both_match(tenant):
    pcrs = {"PCR0": [IMAGE[0].hex().upper()], "PCR8": [IMAGE[8].hex()]}
    made = tenant("L2", images=AcceptedImages(pcrs=pcrs))
    made.keys("sealer", made.cloud.nsm()).generate(DIGEST)
    for measured in (IMAGE | {0: OTHER_IMAGE[0]}, IMAGE | {8: OTHER_IMAGE[8]}):
        refused("denied", made.keys("sealer", made.cloud.nsm(measured)).generate, DIGEST)


def test_an_unconditional_allow_does_not_undo_the_deny(tenant):
    made = tenant("L3")
    wrapped = sealer(made).generate(DIGEST).wrapped
    policy = made.policy()
    policy["Statement"].append(
        {"Effect": "Allow", "Principal": "*", "Action": "kms:*", "Resource": "*"}
    )
    made.put_policy(policy)
    refused("denied", made.keys("sealer").generate, DIGEST)
    refused("denied", made.keys("sealer", made.cloud.nsm(OTHER_IMAGE)).generate, DIGEST)
    refused("denied", made.keys("agent").unwrap, made.reference, wrapped, DIGEST)
    # Nor does Encrypt, by which a key of one's own choice would be wrapped.
    client = made.cloud.client(made.roles["sealer"])
    context = {"luma:customer": made.customer, "luma:artifact": DIGEST.hex()}
    with pytest.raises(client.exceptions.ClientError, match="AccessDenied"):
        client.encrypt(KeyId=made.arn, Plaintext=bytes(32), EncryptionContext=context)


def test_rotated_key_opens_what_it_sealed_before(tenant):
    made = tenant("L2")
    before = sealer(made).generate(DIGEST)
    made.admin.rotate_key_on_demand(KeyId=made.arn)
    made.admin.rotate_key_on_demand(KeyId=made.arn)
    assert agent(made).unwrap(made.reference, before.wrapped, DIGEST) == before.plain
    after = sealer(made).generate(DIGEST)
    assert agent(made).unwrap(made.reference, after.wrapped, DIGEST) == after.plain
    refused("context", agent(made).unwrap, made.reference, after.wrapped, OTHER_DIGEST)


def test_replaced_key_opens_where_it_is_named_among_the_older(tenant):
    made = tenant("L1")
    old = made.reference
    wrapped = sealer(made).generate(DIGEST).wrapped
    made.arn = made.admin.create_key()["KeyMetadata"]["Arn"]
    made.put_policy(made.policy())
    refused("context", agent(made).unwrap, old, wrapped, DIGEST)
    assert len(agent(made, older=[old.arn]).unwrap(old, wrapped, DIGEST)) == 32


def test_revoked_by_disabling_or_deleting_the_key(tenant):
    made = tenant("L2")
    wrapped = sealer(made).generate(DIGEST).wrapped
    made.admin.disable_key(KeyId=made.key_id)
    refused("disabled", agent(made).unwrap, made.reference, wrapped, DIGEST)
    refused("disabled", sealer(made).generate, DIGEST)
    made.admin.enable_key(KeyId=made.key_id)
    assert agent(made).unwrap(made.reference, wrapped, DIGEST)
    made.admin.schedule_key_deletion(KeyId=made.key_id, PendingWindowInDays=7)
    refused("disabled", agent(made).unwrap, made.reference, wrapped, DIGEST)


def test_revoked_by_policy(tenant):
    made = tenant("L2")
    wrapped = sealer(made).generate(DIGEST).wrapped
    assert agent(made).unwrap(made.reference, wrapped, DIGEST)
    other = made.cloud.app.principals[made.roles["other"]]
    made.put_policy(made.policy(agents=[other]))
    refused("denied", agent(made).unwrap, made.reference, wrapped, DIGEST)


def test_revoked_by_taking_a_grant_back(tenant):
    made = tenant("L2")
    wrapped = sealer(made).generate(DIGEST).wrapped
    other = made.keys("other")
    refused("denied", other.unwrap, made.reference, wrapped, DIGEST)
    grant = made.admin.create_grant(
        KeyId=made.arn,
        GranteePrincipal=made.cloud.app.principals[made.roles["other"]],
        Operations=["Decrypt"],
        Constraints={"EncryptionContextSubset": {"luma:customer": made.customer}},
    )
    assert len(other.unwrap(made.reference, wrapped, DIGEST)) == 32
    made.admin.revoke_grant(KeyId=made.arn, GrantId=grant["GrantId"])
    refused("denied", other.unwrap, made.reference, wrapped, DIGEST)


def test_a_grant_does_not_undo_the_deny(tenant):
    made = tenant("L3")
    wrapped = sealer(made).generate(DIGEST).wrapped
    made.admin.create_grant(
        KeyId=made.arn,
        GranteePrincipal=made.cloud.app.principals[made.roles["other"]],
        Operations=["Decrypt"],
    )
    refused("denied", made.keys("other").unwrap, made.reference, wrapped, DIGEST)
