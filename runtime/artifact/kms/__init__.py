"""Customers' keys in AWS KMS: a key service for artifacts, and KMS's answers to attested requests.

    keys = KmsKeys(KeyReference(arn="arn:aws:kms:...:key/...", customer="acme"))
    write_artifact(path, payloads, level="L1", data_key=keys, ...)
    open_artifact(path, trusted_signer=signer, key=keys)

It needs the extra `aws` (botocore), which is imported only when a client is made. It has run against
an emulated KMS (tests/support/fake_kms.py) and never against AWS.
"""

from runtime.artifact.kms.client import AwsAccess, AwsCredentials, KmsKeys, encryption_context
from runtime.artifact.kms.cms import open_enveloped
from runtime.artifact.kms.errors import KeyServiceError, Reason
from runtime.artifact.kms.recipient import Attester, Recipient

__all__ = [
    "Attester",
    "AwsAccess",
    "AwsCredentials",
    "KeyServiceError",
    "KmsKeys",
    "Reason",
    "Recipient",
    "encryption_context",
    "open_enveloped",
]
