"""Production trusts AWS's root and nothing else, whatever a test, a user or a host brings."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import runtime.artifact.attestation as package
from runtime.artifact.attestation import (
    PRODUCTION_ROOTS,
    PcrPolicy,
    TrustRoots,
    authenticate,
    verify_attestation,
)
from runtime.spec import AttestationError
from tests.attestation_support import Pki, SoftwareNsm, make_document, payload_fields
from tests.attestation_support.documents import MEASURED
from tests.attestation_support.pki import EPOCH

NONCE = bytes(range(32))
AWS = "641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b"
FOLDER = Path(package.__file__).parent


def test_production_trusts_exactly_awss_root():
    assert PRODUCTION_ROOTS.sha256 == {bytes.fromhex(AWS)}


@pytest.mark.parametrize("function", [verify_attestation, authenticate])
def test_production_is_the_default(function):
    assert inspect.signature(function).parameters["roots"].default is PRODUCTION_ROOTS


@pytest.mark.parametrize("kind", ["nitro-enclave", "nitrotpm"])
def test_production_refuses_the_software_nsm(kind):
    nsm = SoftwareNsm(kind=kind)
    pins = {"nitro-enclave": {0: [MEASURED[0].hex()]}, "nitrotpm": {7: ["11" * 48]}}[kind]
    with pytest.raises(AttestationError) as refused:
        verify_attestation(nsm.attest(nonce=NONCE), policy=PcrPolicy.of(kind, pins), nonce=NONCE)
    assert refused.value.rule == "chain.root"


def test_a_foreign_hierarchy_with_the_same_names_is_refused(pki, roots):
    with pytest.raises(AttestationError) as refused:
        authenticate(make_document(Pki.create(EPOCH)), roots=roots, at=EPOCH)
    assert refused.value.rule == "chain.root"


def test_a_root_that_is_not_first_is_refused(pki, roots):
    fields = payload_fields(pki, cabundle=list(pki.cabundle[::-1]))
    with pytest.raises(AttestationError) as refused:
        authenticate(make_document(pki, fields), roots=roots, at=EPOCH)
    assert refused.value.rule == "chain.root"


def test_a_foreign_chain_below_a_trusted_root_is_refused(pki, roots):
    foreign = Pki.create(EPOCH)
    fields = payload_fields(foreign, cabundle=[pki.cabundle[0], *foreign.cabundle[1:]])
    with pytest.raises(AttestationError) as refused:
        authenticate(make_document(foreign, fields), roots=roots, at=EPOCH)
    assert refused.value.rule == "chain.issuer"


def test_the_trusted_root_itself_is_judged(pki):
    """A root named by its digest must still be a valid CA: an expired one is refused."""
    ended = pki.with_ca(0, EPOCH, last=EPOCH - timedelta(seconds=1))
    roots = TrustRoots.of_certificates([ended.cabundle[0]])
    with pytest.raises(AttestationError) as refused:
        authenticate(make_document(ended), roots=roots, at=EPOCH)
    assert refused.value.rule == "chain.validity"


def test_a_set_of_roots_holds_the_certificates_it_was_made_of(pki):
    other = Pki.create(EPOCH)
    roots = TrustRoots.of_certificates([pki.cabundle[0], other.cabundle[0]])
    assert roots.sha256 == {pki.root_sha256, other.root_sha256}
    assert roots.holds(other.cabundle[0])
    assert not roots.holds(other.cabundle[1])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            frozenset(),
            "roots: frozenset() is not allowed; expected a frozenset of at least one digest",
        ),
        ({7}, "roots: {7} is not allowed; expected a frozenset of at least one digest"),
        (
            frozenset({bytes(31)}),
            "roots: 31 bytes is not allowed; expected SHA-256 digests of 32 bytes",
        ),
        (
            frozenset({AWS}),
            f"roots: '{AWS[:59]}... is not allowed; expected SHA-256 digests of 32 bytes",
        ),
    ],
)
def test_a_set_that_is_no_set_of_digests_is_refused(value, message):
    with pytest.raises(AttestationError) as refused:
        TrustRoots(value)
    assert refused.value.rule == "roots"
    assert refused.value.message == message


def test_a_set_of_roots_cannot_be_widened(pki):
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRODUCTION_ROOTS.sha256 = frozenset({pki.root_sha256})
    with pytest.raises(AttributeError):
        PRODUCTION_ROOTS.sha256.add(pki.root_sha256)


def test_the_verifier_reads_no_environment_variable_option_or_file():
    """By its imports and calls: there is no door through which a root could come in."""
    forbidden = {"os", "sys", "pathlib", "io", "argparse", "importlib", "configparser", "json"}
    for path in sorted(FOLDER.glob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & forbidden, path.name
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"open", "eval", "exec", "__import__"}, path.name


def test_no_environment_variable_makes_production_trust_a_test_root(tmp_path):
    """Nor does any variable, OpenSSL's own among them, in a process of its own."""
    root = Pki.create(EPOCH).cabundle[0]
    file = tmp_path / "root.der"
    file.write_bytes(root)
    code = (
        "from pathlib import Path; import sys\n"
        "from runtime.artifact.attestation import PRODUCTION_ROOTS\n"
        "print(PRODUCTION_ROOTS.holds(Path(sys.argv[1]).read_bytes()), len(PRODUCTION_ROOTS.sha256))"
    )
    names = (
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "LUMA_ROOTS",
        "LUMA_TEST",
        "LUMA_HOME",
        "AWS_CA_BUNDLE",
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        check=True,
        capture_output=True,
        text=True,
        cwd=FOLDER.parents[2],
        env={"PYTHONPATH": str(FOLDER.parents[2])}
        | dict.fromkeys(names, str(file))
        | {"LUMA_ROOT_SHA256": hashlib.sha256(root).hexdigest()},
    )
    assert found.stdout.split() == ["False", "1"]
