"""Hostile bytes: no crash but an `AttestationError`, no hang, little memory, never accepted.

`make test` takes a slice of a few thousand inputs; `make test-slow` takes more than 100,000.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import cbor2
import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.artifact.attestation import Attestation, TrustRoots, authenticate
from runtime.artifact.attestation.cbor import read
from runtime.artifact.attestation.chain import verify_chain
from runtime.spec import AttestationError
from tests.attestation_support import Pki, make_document, payload_fields
from tests.attestation_support.documents import indefinite
from tests.attestation_support.pki import EPOCH
from tests.unit.attestation.mutations import mutate

ROOT = Path(__file__).parents[3]
SLOW_SEEDS = range(8)
EACH = {"documents": 10_000, "payloads": 3_000, "chains": 2_000}
"""Inputs of each kind for each slow seed."""

MEMORY_LIMIT_MIB = 64


@pytest.fixture(scope="module")
def whole(pki):
    """A document that is accepted, in AWS's two forms of payload."""
    fields = payload_fields(pki, public_key=b"k" * 294, user_data=b"u" * 48, nonce=b"n" * 32)
    return make_document(pki, fields), make_document(pki, payload=indefinite(fields))


@pytest.fixture(scope="module")
def foreign():
    return make_document(Pki.create(EPOCH))


def refused(document, roots) -> bool:
    """Tell whether a document is refused in the one way that is allowed."""
    try:
        authenticate(document, roots=roots, at=EPOCH)
    except AttestationError:
        return True
    return False


def fuzz_documents(seed, count, whole, foreign, roots) -> int:
    """Change documents as they go over a wire; give how many were refused."""
    rng = random.Random(seed)
    same = {*whole, *(b"\xd2" + document for document in whole)}
    tried = 0
    while tried < count:
        changed = mutate(rng, rng.choice(whole), foreign)
        if changed in same:
            continue
        assert refused(changed, roots), changed.hex()
        tried += 1
    return tried


def fuzz_payloads(seed, count, pki, foreign, roots) -> int:
    """Change payloads and sign them rightly: the reader behind the signature sees them."""
    rng = random.Random(seed)
    payloads = [cbor2.dumps(payload_fields(pki, nonce=b"n" * 32)), indefinite(payload_fields(pki))]
    for _ in range(count):
        document = make_document(pki, payload=mutate(rng, rng.choice(payloads), foreign))
        try:
            found = authenticate(document, roots=roots, at="timestamp")
        except AttestationError:
            continue
        # A change that keeps all rules, such as of a letter in module_id, is no forgery here: the
        # leaf's own key signed it.
        assert isinstance(found, Attestation)
    return count


def fuzz_chains(seed, count, pki) -> int:
    """Change certificates, the trusted root too: the reader of DER sees them."""
    rng = random.Random(seed)
    kept = [*pki.cabundle, pki.leaf]
    for _ in range(count):
        ders = list(kept)
        at = rng.randrange(len(ders))
        ders[at] = mutate(rng, ders[at], kept[(at + 1) % len(kept)]) or b"\x00"
        *cabundle, leaf = ders
        if ders == kept:
            continue
        roots = TrustRoots.of_certificates([cabundle[0]])
        try:
            verify_chain(leaf, tuple(cabundle), roots=roots, moment=EPOCH)
        except AttestationError:
            continue
        # The root is trusted by its bytes, whatever its own signature is worth. Below it, what was
        # signed is unchanged: cryptography reads a bit string's count of unused bits leniently.
        assert _signed_parts(ders[1:]) == _signed_parts(kept[1:])
    return count


def _signed_parts(ders) -> list[bytes]:
    return [x509.load_der_x509_certificate(der).tbs_certificate_bytes for der in ders]


def test_the_unchanged_documents_are_accepted(whole, roots):
    for document in whole:
        assert not refused(document, roots)


def test_changed_documents_are_refused(whole, foreign, roots):
    assert fuzz_documents(1, 1500, whole, foreign, roots) == 1500


def test_changed_payloads_do_not_crash(pki, foreign, roots):
    assert fuzz_payloads(2, 500, pki, foreign, roots) == 500


def test_changed_certificates_do_not_crash(pki):
    assert fuzz_chains(3, 500, pki) == 500


def test_every_byte_of_a_document_counts(whole, roots):
    """A bit of each byte of the envelope, and of every 41st between."""
    document = whole[0]
    for at in [
        *range(64),
        *range(64, len(document), 41),
        *range(len(document) - 96, len(document)),
    ]:
        changed = document[:at] + bytes([document[at] ^ (1 << at % 8)]) + document[at + 1 :]
        assert refused(changed, roots), at


@pytest.mark.parametrize("size", [*range(40), 100, 1000, 3000])
def test_a_document_cut_anywhere_is_refused(size, whole, roots):
    assert refused(whole[0][:size], roots)
    assert refused(whole[0][: len(whole[0]) - size - 1], roots)


CBOR = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.text(max_size=20)
    | st.binary(max_size=60)
    | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=12) | st.integers(-2, 40), inner, max_size=5)
    ),
    max_leaves=20,
)
"""Values of CBOR, with some that no document may hold."""


@given(st.binary(max_size=400))
@settings(max_examples=40)
def test_any_bytes_are_refused(roots, data):
    assert refused(data, roots)


@given(CBOR)
@settings(max_examples=40)
def test_any_cbor_is_refused_as_a_document(roots, value):
    assert refused(cbor2.dumps(value), roots)


FIELDS = (
    "module_id",
    "digest",
    "timestamp",
    "pcrs",
    "certificate",
    "cabundle",
    "public_key",
    "user_data",
    "nonce",
    "nitrotpm_pcrs",
    "other",
)


@given(st.dictionaries(st.sampled_from(FIELDS), CBOR, min_size=1, max_size=3))
@settings(max_examples=40)
def test_any_values_of_fields_do_not_crash(pki, roots, changes):
    document = make_document(pki, payload_fields(pki) | changes)
    try:
        found = authenticate(document, roots=roots, at=EPOCH)
    except AttestationError:
        return
    assert {*changes} <= {"module_id", "timestamp", "public_key", "user_data", "nonce"}
    assert found.module_id == changes.get("module_id", "i-0test-enc0test")


@given(CBOR)
@settings(max_examples=40)
def test_the_reader_agrees_with_cbor2(value):
    """On everything that it accepts, the reader gives what an independent one gives."""
    data = cbor2.dumps(value, canonical=True)
    try:
        found = read(data, what="value", max_bytes=10_000, max_depth=30)
    except AttestationError:
        assert _has_float(value)
        return
    assert found == value
    assert repr(found) == repr(cbor2.loads(data))


def _has_float(value) -> bool:
    if isinstance(value, list | dict):
        inner = value if isinstance(value, list) else value.values()
        return any(_has_float(item) for item in inner)
    return isinstance(value, float)


_MEMORY = """
import random, sys
sys.path.insert(0, sys.argv[1])
from runtime.artifact.attestation import TrustRoots, authenticate
from runtime.spec import AttestationError
from tests.attestation_support import Pki, make_document, payload_fields
from tests.attestation_support.pki import EPOCH
from tests.unit.attestation.mutations import mutate

def peak_mib():
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024

def judge(document):
    try:
        authenticate(document, roots=roots, at=EPOCH)
    except AttestationError:
        pass

pki = Pki.create(EPOCH)
roots = TrustRoots.of_certificates([pki.cabundle[0]])
whole = make_document(pki)
judge(whole)
hostile = [
    b"\\x9b" + b"\\xff" * 8, b"\\xbb" + b"\\xff" * 8, b"\\x5b" + b"\\xff" * 8, b"\\x7b" + b"\\xff" * 8,
    b"\\x9b" + b"\\x00\\x00\\x00\\x00\\x7f\\xff\\xff\\xff", b"\\x81" * 16500, b"\\xbf\\x00" * 8000,
    b"\\x99\\x3f\\xff" + b"\\x80" * 16383, b"\\x99\\x3f\\xff" + b"\\xa0" * 16383,
    make_document(pki, payload_fields(pki, cabundle=[b"\\x30"] * 6000)),
    make_document(pki, payload_fields(pki, pcrs={i: 0 for i in range(5000)})),
    make_document(pki, payload=b"\\xbf" + b"".join(
        b"\\x19" + i.to_bytes(2, "big") + b"\\xa0" for i in range(256, 4300)) + b"\\xff"),
    make_document(pki, payload_fields(pki, cabundle=[pki.cabundle[0]] * 30)),
]
# Larger than the limit by far: a copy of one of them alone would break it.
large = [bytes(100 << 20), b"\\xd2" + bytes(100 << 20)]
before = peak_mib()
for document in large:
    judge(document)
for document in hostile:
    judge(document)
rng = random.Random(4)
for _ in range(400):
    judge(mutate(rng, whole, whole))
print(peak_mib() - before, len(hostile))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_memory_stays_below_64_mib_for_any_input():
    """Measured in a process of its own, native memory too; a document of 100 MiB among them."""
    found = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(ROOT)],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    grown, tried = found.stdout.split()
    assert int(tried) == 13
    assert float(grown) < MEMORY_LIMIT_MIB


def test_the_slow_suite_takes_more_than_100_000_inputs():
    assert len(SLOW_SEEDS) * sum(EACH.values()) >= 100_000


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_values_of_fields_do_not_crash(pki, roots):
    tried = 0

    @given(st.dictionaries(st.sampled_from(FIELDS), CBOR, min_size=1, max_size=3))
    @settings(max_examples=3000)
    def judge(changes):
        nonlocal tried
        tried += 1
        document = make_document(pki, payload_fields(pki) | changes)
        try:
            authenticate(document, roots=roots, at=EPOCH)
        except AttestationError:
            return
        assert {*changes} <= {"module_id", "timestamp", "public_key", "user_data", "nonce"}

    judge()
    assert tried >= 3000


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_many_hostile_inputs(seed, pki, whole, foreign, roots):
    tried = (
        fuzz_documents(100 + seed, EACH["documents"], whole, foreign, roots)
        + fuzz_payloads(200 + seed, EACH["payloads"], pki, foreign, roots)
        + fuzz_chains(300 + seed, EACH["chains"], pki)
    )
    assert tried == sum(EACH.values()) == 15_000
