"""One PKI for all tests of attestation: it is immutable, and its keys take time to make."""

from __future__ import annotations

import pytest

from runtime.artifact.attestation import PcrPolicy, TrustRoots
from tests.attestation_support import Pki
from tests.attestation_support.documents import MEASURED
from tests.attestation_support.pki import EPOCH


@pytest.fixture(scope="session")
def pki():
    return Pki.create(EPOCH)


@pytest.fixture(scope="session")
def roots(pki):
    return TrustRoots.of_certificates([pki.cabundle[0]])


@pytest.fixture(scope="session")
def policy():
    return PcrPolicy.of("nitro-enclave", {0: [MEASURED[0].hex()], 8: [MEASURED[8].hex()]})
