"""What moto leaves out, and `FakeKms` adds for it: should moto learn it, a test here fails."""

from __future__ import annotations

import json

import pytest
from moto.kms.models import kms_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from tests.support.fake_kms import ACCOUNT, REGION, Server


@pytest.fixture(scope="module")
def moto(cloud):
    """Give a client of moto without `FakeKms`."""
    with Server(DomainDispatcherApplication(create_backend_app)) as server:
        yield cloud.session.create_client(
            "kms",
            region_name=REGION,
            endpoint_url=server.url,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )


@pytest.fixture
def key(moto) -> str:
    return moto.create_key()["KeyMetadata"]["KeyId"]


def test_recipient_is_ignored(moto, key):
    recipient = {"KeyEncryptionAlgorithm": "RSAES_OAEP_SHA_256", "AttestationDocument": b"none"}
    answer = moto.generate_data_key(KeyId=key, KeySpec="AES_256", Recipient=recipient)
    assert len(answer["Plaintext"]) == 32
    assert "CiphertextForRecipient" not in answer


def test_policies_and_states_are_ignored(moto, key):
    policy = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "kms:*", "Resource": "*"}],
    }
    moto.put_key_policy(KeyId=key, PolicyName="default", Policy=json.dumps(policy))
    moto.disable_key(KeyId=key)
    answer = moto.generate_data_key(KeyId=key, KeySpec="AES_256")
    assert moto.decrypt(CiphertextBlob=answer["CiphertextBlob"])["Plaintext"] == answer["Plaintext"]


def test_rotation_keeps_the_material(moto, key):
    kept = kms_backends[ACCOUNT][REGION].keys[key]
    before = kept.key_material
    moto.rotate_key_on_demand(KeyId=key)
    assert kept.key_material == before


def test_context_is_bound(moto, key):
    # This much moto does itself, and the tests of contexts rest on it.
    answer = moto.generate_data_key(KeyId=key, KeySpec="AES_256", EncryptionContext={"a": "1"})
    with pytest.raises(moto.exceptions.InvalidCiphertextException):
        moto.decrypt(CiphertextBlob=answer["CiphertextBlob"], EncryptionContext={"a": "2"})
