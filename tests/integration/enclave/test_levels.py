"""From the service in an (emulated) enclave to the level that a verifier reaches.

The security module and KMS are emulated, with a hierarchy of their own; all else is the real code,
and the KMS key's policy is the JSON that `luma_constructs` makes.
"""

from __future__ import annotations

import pytest

from enclave_image.nsm import Nsm
from enclave_image.service import jobs
from enclave_image.service.client import compile_in_service
from enclave_image.service.session import Trust
from runtime.artifact import AcceptedMeasurements, KeyPolicy, open_artifact, verify_artifact
from runtime.artifact.attestation import PcrPolicy, TrustRoots
from runtime.artifact.kms import KeyServiceError
from runtime.spec import ArtifactError
from tests.support.compile_service import DATA_KEY, Gate, order, running
from tests.unit.kms.conftest import AMI, IMAGE, OTHER_IMAGE

MEASUREMENTS = {
    "schema": "luma/measurements/1",
    "images": {"compiler": {f"PCR{i}": value.hex() for i, value in IMAGE.items()}},
    "amis": {"node": {f"PCR{i}": AMI[i].hex() for i in (4, 12)}},
}


@pytest.fixture
def roots(cloud):
    return TrustRoots.of_certificates([cloud.pki.cabundle[0]])


@pytest.fixture
def trust(roots):
    return Trust(
        policy=PcrPolicy.of("nitro-enclave", {0: [IMAGE[0].hex()], 8: [IMAGE[8].hex()]}),
        roots=roots,
    )


@pytest.fixture
def ready(compiled, monkeypatch):
    """Put a payload that was compiled before in the compiler's place."""
    gate = Gate(compiled)
    gate.go.set()
    monkeypatch.setattr(jobs, "compile_package", gate)


@pytest.fixture
def enclave(rsa_key, cloud, ready):
    """Run the service as in the accepted image."""
    with running(rsa_key, attester=Nsm(cloud.nsm())) as service:
        yield service


def verify(made, roots, **given):
    return verify_artifact(
        made.artifact.path,
        trusted_signer=made.signer,
        accepted=AcceptedMeasurements.from_json(MEASUREMENTS),
        roots=roots,
        **given,
    )


def test_a_local_service_reaches_l1(rsa_key, ready, package, roots, tmp_path):
    with running(rsa_key) as service:
        made = compile_in_service(service.address, order(package), output=tmp_path / "a.luma")
    assert verify(made, roots, key=DATA_KEY).level == "L1"
    assert made.artifact.attestation is None


def test_an_enclave_reaches_l2_with_a_key_file(enclave, package, trust, roots, tmp_path):
    made = compile_in_service(
        enclave.address, order(package, level="L2"), output=tmp_path / "a.luma", trust=trust
    )
    assert made.attested
    assert verify(made, roots, key=DATA_KEY).level == "L2"
    # Production does not believe the module of tests.
    found = verify_artifact(
        made.artifact.path,
        trusted_signer=made.signer,
        key=DATA_KEY,
        accepted=AcceptedMeasurements.from_json(MEASUREMENTS),
    )
    assert found.level == "L1"


def test_at_level_l1_the_enclaves_document_travels_too(enclave, package, trust, tmp_path):
    made = compile_in_service(
        enclave.address, order(package), output=tmp_path / "a.luma", trust=trust
    )
    assert made.artifact.attestation is not None


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_kms_releases_the_key_to_the_enclave_alone(
    enclave, package, trust, roots, tenant, level, tmp_path, compiled
):
    customer = tenant(level)
    wanted = order(
        package,
        level=level,
        data_key=None,
        kms=customer.reference,
        access=customer.cloud.access(customer.roles["sealer"]),
    )
    path = tmp_path / "a.luma"
    made = compile_in_service(enclave.address, wanted, output=path, trust=trust)
    assert not made.artifact.can_read_payloads  # the client never had the key
    operation, asked = customer.cloud.app.requests[-1]
    assert operation == "GenerateDataKey"
    assert asked["EncryptionContext"] == {
        "luma:customer": customer.customer,
        "luma:artifact": made.artifact.digest.removeprefix("sha384:"),
    }
    node = customer.cloud.nsm(AMI, kind="nitrotpm") if level == "L3" else None
    keys = customer.keys("agent", node)
    opened = open_artifact(path, trusted_signer=made.signer, key=keys)
    assert opened.target_payload("cpu") == compiled.payload
    policy = KeyPolicy.from_json(customer.policy())
    found = verify(made, roots, key=customer.keys("agent", node), key_policy=policy)
    assert found.level == level, found.evidence


def test_kms_refuses_another_image_whatever_the_client_accepts(
    rsa_key, cloud, ready, package, roots, tenant, tmp_path
):
    customer = tenant("L2")
    careless = Trust(policy=PcrPolicy.of("nitro-enclave", {0: [OTHER_IMAGE[0].hex()]}), roots=roots)
    wanted = order(
        package,
        level="L2",
        data_key=None,
        kms=customer.reference,
        access=cloud.access(customer.roles["sealer"]),
    )
    with running(rsa_key, attester=Nsm(cloud.nsm(OTHER_IMAGE))) as service:
        with pytest.raises(KeyServiceError) as caught:
            compile_in_service(service.address, wanted, output=tmp_path / "a.luma", trust=careless)
        assert caught.value.reason == "denied"
        service.wait_for_refusal("gone")
    assert list(tmp_path.iterdir()) == []


def test_an_answer_of_kms_for_another_key_does_not_open(
    enclave, package, trust, tenant, tmp_path, monkeypatch
):
    customer = tenant("L2")
    wanted = order(
        package,
        level="L2",
        data_key=None,
        kms=customer.reference,
        access=customer.cloud.access(customer.roles["sealer"]),
    )
    from enclave_image.service import client

    monkeypatch.setattr(client, "ask_kms", lambda *_: (b"w" * 100, b"\x30\x80junk"))
    with pytest.raises(ArtifactError):
        compile_in_service(enclave.address, wanted, output=tmp_path / "a.luma", trust=trust)
    enclave.wait_for_refusal("seal")
    assert list(tmp_path.iterdir()) == []


def test_a_document_of_another_artifact_is_not_taken_to_kms(
    rsa_key, cloud, ready, package, trust, tenant, tmp_path
):
    customer = tenant("L2")

    class Other:
        """A module whose documents of artifacts are of another one."""

        def attestation(self, **asked):
            if len(asked["user_data"]) == 48:
                asked["user_data"] = b"\x0f" * 48
            return cloud.nsm().attest(**asked)

    wanted = order(
        package,
        level="L2",
        data_key=None,
        kms=customer.reference,
        access=cloud.access(customer.roles["sealer"]),
    )
    asked = len(cloud.app.requests)
    with running(rsa_key, attester=Other()) as service:
        with pytest.raises(ArtifactError, match="user_data"):
            compile_in_service(service.address, wanted, output=tmp_path / "a.luma", trust=trust)
        with pytest.raises(ArtifactError, match="user_data"):
            compile_in_service(
                service.address, order(package, level="L2"), output=tmp_path / "b", trust=trust
            )
    assert len(cloud.app.requests) == asked
    assert list(tmp_path.iterdir()) == []


def order_under_kms(package, customer):
    """Give an order that seals under a customer's key in KMS, at L1."""
    access = customer.cloud.access(customer.roles["sealer"])
    return order(package, data_key=None, kms=customer.reference, access=access)


def test_what_is_no_enclave_gets_no_key_that_only_an_enclave_may_have(
    rsa_key, ready, package, tenant, tmp_path
):
    wanted = order_under_kms(package, tenant("L2"))
    with running(rsa_key) as service, pytest.raises(KeyServiceError) as caught:
        compile_in_service(service.address, wanted, output=tmp_path / "a.luma")
    assert caught.value.reason == "denied"
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_enclave_reaches_l1_with_kms_and_claims_no_more(
    rsa_key, ready, package, roots, tenant, tmp_path
):
    customer = tenant("L1")
    wanted = order_under_kms(package, customer)
    with running(rsa_key) as service:
        made = compile_in_service(service.address, wanted, output=tmp_path / "a.luma")
    assert not made.attested
    found = verify(made, roots, key=customer.keys("agent", None))
    assert (found.level, found.claimed) == ("L1", "L1")
