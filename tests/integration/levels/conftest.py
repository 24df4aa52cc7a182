"""The emulated KMS of the unit tests, for whole jobs."""

from tests.unit.kms.conftest import cloud, dummy_account, recipient, tenant, tenant_maker

__all__ = ["cloud", "dummy_account", "recipient", "tenant", "tenant_maker"]
