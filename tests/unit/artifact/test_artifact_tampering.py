"""Every way of changing a `.luma` file gives a clear error and loads nothing."""

from __future__ import annotations

import dataclasses
import itertools
import struct

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.artifact import open_artifact, verify_artifact
from runtime.artifact._cose import sign1, split1
from runtime.artifact.keys import generate_signing_key
from runtime.artifact.manifest import Manifest
from runtime.spec import ArtifactError

LEVELS = ("L0", "L1")
PRELUDE = struct.Struct(">8sHHII")


class Sample:
    """An artifact's bytes, taken apart."""

    def __init__(self, bench, name: str, level: str, **changes) -> None:
        self.bench, self.level = bench, level
        path = bench.write(name, level, **changes)
        self.data = path.read_bytes()
        _, _, _, envelope_size, _ = PRELUDE.unpack(self.data[: PRELUDE.size])
        self.envelope = self.data[PRELUDE.size : PRELUDE.size + envelope_size]
        self.manifest_bytes, self.signature = split1(self.envelope, max_bytes=1 << 20)
        self.manifest = Manifest.from_bytes(self.manifest_bytes)
        self.start = PRELUDE.size + envelope_size + 1
        self.chunks = self._chunks()

    def _chunks(self) -> list[tuple[int, int]]:
        """Give (start, end) of each stored chunk."""
        tag = 16 if self.level == "L1" else 0
        spans, offset = [], self.start
        for entry in self.manifest.payloads:
            left = entry.size
            while left:
                size = min(left, self.manifest.chunk_bytes)
                spans.append((offset, offset + size + tag))
                offset, left = offset + size + tag, left - size
        return spans

    def chunk(self, index: int) -> bytes:
        start, end = self.chunks[index]
        return self.data[start:end]

    def with_chunk(self, index: int, chunk: bytes) -> bytes:
        start, end = self.chunks[index]
        return self.data[:start] + chunk + self.data[end:]

    def with_envelope(self, envelope: bytes) -> bytes:
        head = PRELUDE.pack(b"\x89LUMA\r\n\x1a", 2, 0, len(envelope), 1)
        return head + envelope + b"\xa0" + self.data[self.start :]

    def with_manifest(self, manifest_bytes: bytes, key=None) -> bytes:
        return self.with_envelope(sign1(manifest_bytes, key or self.bench.keys.signing_key))

    def with_fields(self, **fields) -> bytes:
        """Give the file with manifest fields changed, signed by the right key."""
        plain = cbor2.loads(self.manifest_bytes) | fields
        return self.with_manifest(cbor2.dumps(plain, canonical=True))

    def refused(self, data: bytes, match: str | None = None, *, trust: bool = True) -> None:
        """Check that the file is refused with a message, in all ways of reading it."""
        path = self.bench.folder / f"tampered-{self.level}.luma"
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match=match) as caught:
            verify_artifact(
                path,
                trusted_signer=self.bench.keys.public_key if trust else None,
                key=self.bench.key_for(self.level),
            )
        assert ": " in caught.value.message
        assert "Traceback" not in caught.value.diagnostics()


@pytest.fixture(scope="module", params=LEVELS)
def sample(bench, request) -> Sample:
    return Sample(bench, f"sample-{request.param}.luma", request.param)


@pytest.fixture(scope="module")
def sealed(bench) -> Sample:
    return Sample(bench, "sample-sealed.luma", "L1")


def test_the_sample_itself_verifies(bench, sample):
    path = bench.folder / f"sample-{sample.level}.luma"
    verification = verify_artifact(
        path, trusted_signer=bench.keys.public_key, key=bench.key_for(sample.level)
    )
    assert verification.level == sample.level
    assert len(sample.chunks) >= 6
    assert sample.chunks[-1][1] == len(sample.data)


@settings(max_examples=60)
@given(data=st.data())
def test_truncated_anywhere(sample, data):
    size = data.draw(st.integers(0, len(sample.data) - 1))
    sample.refused(sample.data[:size])


@settings(max_examples=150)
@given(data=st.data())
@pytest.mark.parametrize("trust", [True, False])
def test_any_bit_flipped(sample, data, trust):
    position = data.draw(st.integers(0, len(sample.data) - 1))
    bit = data.draw(st.integers(0, 7))
    changed = bytearray(sample.data)
    changed[position] ^= 1 << bit
    sample.refused(bytes(changed), trust=trust)


@pytest.mark.slow
def test_every_byte_flipped(sample):
    # All of what is signed, and the chunks in steps.
    positions = [*range(sample.start), *range(sample.start, len(sample.data), 11)]
    for position in positions:
        changed = bytearray(sample.data)
        changed[position] ^= 1 << (position % 8)
        sample.refused(bytes(changed))


@settings(max_examples=30)
@given(tail=st.binary(min_size=1, max_size=2000))
def test_trailing_garbage(sample, tail):
    sample.refused(sample.data + tail, "file size: .* followed by other bytes")


@settings(max_examples=60)
@given(data=st.data())
def test_random_edits(sample, data):
    start = data.draw(st.integers(0, len(sample.data)))
    end = data.draw(st.integers(start, min(len(sample.data), start + 300)))
    put = data.draw(st.binary(max_size=300))
    changed = sample.data[:start] + put + sample.data[end:]
    if changed != sample.data:
        sample.refused(changed)


@given(data=st.binary(max_size=200))
def test_random_bytes(sample, data):
    sample.refused(data)


def test_empty_and_text_files(sample):
    sample.refused(b"", "magic: not a .luma file")
    sample.refused(b"schema: luma/v1\nname: x\n" * 9, "magic: not a .luma file")
    # As a transfer in text mode would have it.
    sample.refused(sample.data.replace(b"\r\n", b"\n"), "magic")


def test_other_versions_and_flags(sample):
    rest = sample.data[PRELUDE.size :]
    magic, _, _, envelope, evidence = PRELUDE.unpack(sample.data[: PRELUDE.size])
    sample.refused(PRELUDE.pack(magic, 1, 0, envelope, evidence) + rest, "version: 1 is unknown")
    sample.refused(PRELUDE.pack(magic, 3, 0, envelope, evidence) + rest, "version: 3 is unknown")
    sample.refused(PRELUDE.pack(magic, 2, 1, envelope, evidence) + rest, "flags: 1")


@pytest.mark.parametrize("size", [0, (16 << 20) + 129, (1 << 32) - 1])
def test_oversized_lengths_cost_nothing(sample, size):
    rest = sample.data[PRELUDE.size :]
    magic = sample.data[:8]
    sample.refused(PRELUDE.pack(magic, 2, 0, size, 1) + rest, f"envelope size: {size}")
    head = PRELUDE.pack(magic, 2, 0, len(sample.envelope), size)
    sample.refused(head + rest, f"evidence size: {size}")


def test_chunks_reordered_or_doubled(sample):
    # Full chunks have one size, so that only their place tells them apart.
    sizes = [end - start for start, end in sample.chunks]
    full = [i for i, size in enumerate(sizes) if size == max(sizes)]
    assert len(full) >= 4
    for one, two in itertools.permutations(full, 2):
        sample.refused(sample.with_chunk(one, sample.chunk(two)), "payload .*: chunk")
    for one, two in itertools.combinations(full, 2):
        start = sample.with_chunk(one, sample.chunk(two))
        a, b = sample.chunks[two]
        sample.refused(start[:a] + sample.chunk(one) + start[b:], "payload .*: chunk")


def test_payloads_swapped_between_targets(sample):
    half = len(sample.chunks) // 2
    first, second = (
        sample.data[sample.chunks[0][0] : sample.chunks[half - 1][1]],
        sample.data[sample.chunks[half][0] :],
    )
    assert len(first) == len(second)
    sample.refused(sample.data[: sample.start] + second + first, "payload cpu: chunk 0")


def test_chunk_of_another_artifact_of_the_same_key(bench, sample):
    # The same payloads, so that at L0 the chunks are equal; at L1 not even then do they fit.
    other = Sample(bench, f"other-{sample.level}.luma", sample.level, seed=1)
    for index in range(len(sample.chunks)):
        swapped = sample.with_chunk(index, other.chunk(index))
        if sample.level == "L1":
            sample.refused(swapped, "payload .*: chunk .* another artifact")
        else:
            assert swapped == sample.data
    different = Sample(bench, f"different-{sample.level}.luma", sample.level, seed=7)
    sample.refused(sample.with_chunk(0, different.chunk(0)), "payload cpu: chunk 0")


def test_whole_payload_part_of_another_artifact(bench, sample):
    other = Sample(bench, f"replayed-{sample.level}.luma", sample.level, seed=7)
    assert other.start == sample.start
    sample.refused(sample.data[: sample.start] + other.data[sample.start :], "payload cpu: chunk 0")
    sample.refused(other.data[: sample.start] + sample.data[sample.start :], "payload cpu: chunk 0")


def test_last_chunk_dropped_under_a_new_signature(sealed):
    """A signer without the data key cannot shorten or re-describe what is sealed."""
    sample = sealed
    entry = sample.manifest.payloads[-1]
    shorter = dataclasses.replace(
        entry,
        size=sample.manifest.chunk_bytes * (len(entry.digests) - 1),
        digests=entry.digests[:-1],
    )
    manifest = dataclasses.replace(sample.manifest, payloads=(sample.manifest.payloads[0], shorter))
    data = sample.with_manifest(manifest.to_bytes())
    sample.refused(data[: len(data) - (sample.chunks[-1][1] - sample.chunks[-1][0])], "chunk 0")
    sample.refused(sample.with_fields(graph_digest="77" * 32), "payload cpu: chunk 0")


def test_signed_by_another_key(bench, sample):
    thief = generate_signing_key(bench.folder / f"thief-{sample.level}.pem")
    # The envelope alone: the manifest still names the first signer.
    sample.refused(sample.with_manifest(sample.manifest_bytes, thief), "signature: does not fit")
    # With the signer's name changed too, the trusted signer is missed ...
    renamed = dataclasses.replace(sample.manifest, signer=thief.public_key()).to_bytes()
    resigned = sample.with_manifest(renamed, thief)
    sample.refused(resigned, r"manifest\.signer: .* is not trusted")
    # ... and whoever trusts anyone still cannot open a sealed payload with it.
    if sample.level == "L1":
        sample.refused(resigned, "payload cpu: chunk 0 does not open", trust=False)


def test_signature_of_another_manifest(bench, sample):
    other = Sample(bench, f"signature-{sample.level}.luma", sample.level, seed=7)
    parts = cbor2.loads(sample.envelope)
    parts[3] = other.signature
    sample.refused(sample.with_envelope(cbor2.dumps(parts)), "signature: does not fit")


@pytest.mark.parametrize(
    "change",
    [
        lambda p: [b"\xa1\x01\x26", *p[1:]],  # ES256
        lambda p: [b"\xa0", *p[1:]],
        lambda p: [p[0], {4: b"kid"}, *p[2:]],
        lambda p: [p[0], {"x": 1}, *p[2:]],
        lambda p: [*p[:3], p[3][:-1]],
        lambda p: [*p[:3], bytes(96)],
        lambda p: [*p[:3], b"\xff" * 96],
        lambda p: p[:3],
        lambda p: [*p, b""],
        lambda p: [p[0], p[1], None, p[3]],
        lambda p: cbor2.CBORTag(18, p),
        lambda _: {},
        lambda _: "text",
    ],
)
def test_other_envelopes(sample, change):
    envelope = cbor2.dumps(change(cbor2.loads(sample.envelope)), canonical=True)
    sample.refused(sample.with_envelope(envelope), "signature")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"schema": "luma/manifest/3"}, r"manifest\.schema"),
        ({"level": "L4"}, r"manifest\.level: 'L4'"),
        ({"level": "l1"}, r"manifest\.level: 'l1'"),
        ({"level": "L3"}, r"manifest\.seal"),
        ({"graph_digest": "A" * 64}, r"manifest\.graph_digest"),
        ({"signer": b""}, r"manifest\.signer"),
        ({"signer": b"\x30" * 120}, r"manifest\.signer"),
        ({"chunk_bytes": 1}, r"manifest\.chunk_bytes"),
        ({"chunk_bytes": True}, r"manifest\.chunk_bytes"),
        ({"payloads": []}, r"manifest\.payloads"),
        ({"payloads": {}}, r"manifest\.payloads"),
        ({"payloads": [1]}, r"manifest\.payloads\[0\]"),
        ({"statistics": {"n": None}}, r"manifest\.statistics\.n"),
        ({"statistics": []}, r"manifest\.statistics"),
        ({"versions": {"jax": 1}}, r"manifest\.versions\.jax"),
        ({"extra": 1}, r"manifest\.extra: unknown field"),
    ],
)
def test_signed_manifests_with_wrong_fields(sample, fields, match):
    sample.refused(sample.with_fields(**fields), match)


@pytest.mark.parametrize("field", ["schema", "level", "signer", "seal", "payloads", "versions"])
def test_signed_manifest_without_a_field(sample, field):
    plain = cbor2.loads(sample.manifest_bytes)
    del plain[field]
    data = sample.with_manifest(cbor2.dumps(plain, canonical=True))
    sample.refused(data, rf"manifest\.{field}: missing")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"size": 0}, "size"),
        ({"size": 1 << 50}, "size"),
        ({"size": 1}, "digests"),
        ({"size": 1 << 34}, "digests"),
        ({"digests": [bytes(48)] * 4}, "digests"),
        ({"target": "../cpu"}, "target"),
        ({"target": "zebra"}, "manifest.payloads"),
        ({"description": None}, "description"),
    ],
)
def test_signed_payload_entries_with_wrong_fields(sample, change, match):
    entries = cbor2.loads(sample.manifest_bytes)["payloads"]
    sample.refused(sample.with_fields(payloads=[entries[0] | change, entries[1]]), match)


def test_seal_and_level_must_agree(sample):
    seal = {
        "cipher": "AES-256-GCM",
        "kdf": "HKDF-SHA-384",
        "key_source": "key-file",
        "salt": bytes(32),
        "check": bytes(16),
    }
    sample.refused(sample.with_fields(seal=seal if sample.level == "L0" else None), "manifest.seal")
    for name, value in (("cipher", "none"), ("key_source", "hsm"), ("salt", b""), ("more", 1)):
        changed = sample.with_fields(level="L1", seal=seal | {name: value})
        sample.refused(changed, rf"manifest\.seal\.{name}")


def test_manifest_that_is_not_canonical(sample):
    plain = cbor2.loads(sample.manifest_bytes)
    reordered = cbor2.dumps(dict(sorted(plain.items(), reverse=True)))
    sample.refused(sample.with_manifest(reordered), "manifest: CBOR is not in canonical form")
    sample.refused(
        sample.with_manifest(sample.manifest_bytes + b"\x00"), "manifest: 1 bytes follow"
    )


def test_file_swapped_between_opening_and_reading(bench, sample):
    path = bench.folder / f"swapped-{sample.level}.luma"
    path.write_bytes(sample.data)
    artifact = open_artifact(
        path, trusted_signer=bench.keys.public_key, key=bench.key_for(sample.level)
    )
    other = Sample(bench, f"swap-{sample.level}.luma", sample.level, seed=7)
    path.write_bytes(other.data)
    with pytest.raises(ArtifactError, match="payload cpu: chunk 0"):
        artifact.payload("cpu")
    path.write_bytes(sample.data[: sample.start + 10])
    with pytest.raises(ArtifactError, match="payload cpu: chunk 0: the file ends after"):
        artifact.payload("cpu")
