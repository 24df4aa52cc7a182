"""Keys and a payload, made once; the emulated KMS is that of the KMS tests."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from runtime.compiler import compile_package
from runtime.compiler.graph import GraphPackage
from tests.unit.kms.conftest import cloud, recipient, tenant, tenant_maker
from tests.unit.packages import square_graph

__all__ = ["cloud", "recipient", "tenant", "tenant_maker"]


@pytest.fixture(scope="session")
def rsa_key() -> rsa.RSAPrivateKey:
    """The key that sessions are opened to."""
    return rsa.generate_private_key(public_exponent=65537, key_size=3072)


@pytest.fixture(scope="session")
def package() -> GraphPackage:
    """A package with a grad graph only."""
    return GraphPackage({"grad": square_graph()}, config_digest="0" * 64, seq_len=4)


@pytest.fixture(scope="session")
def compiled(package, tmp_path_factory):
    """What the compiler makes of the package."""
    folder = tmp_path_factory.mktemp("cache")
    return compile_package(package, target="cpu", micro_shards=4, cache_dir=folder)
