"""Keys, a payload and the emulated KMS: those of the service's own tests and of the KMS tests."""

from tests.unit.enclave_service.conftest import compiled, package, rsa_key
from tests.unit.kms.conftest import cloud, dummy_account, recipient, tenant, tenant_maker

__all__ = [
    "cloud",
    "compiled",
    "dummy_account",
    "package",
    "recipient",
    "rsa_key",
    "tenant",
    "tenant_maker",
]
