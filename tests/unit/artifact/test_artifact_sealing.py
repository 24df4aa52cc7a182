"""Sealed chunks open only in their place, sealed blobs only in their context."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from runtime.artifact import open_blob, seal_blob
from runtime.artifact.sealing import ChunkPlace, ChunkSealer, ManifestKeys, plain_digest
from runtime.spec import ArtifactError

KEY, SALT, DIGEST = b"\x07" * 32, b"\x09" * 32, b"\x0b" * 48
PLACE = ChunkPlace(payload=1, target="cpu", chunk=2, last=False)


@given(st.binary(max_size=500))
def test_chunk_comes_back(chunk):
    sealed = ChunkSealer(KEY, SALT, DIGEST).seal(chunk, PLACE)
    assert len(sealed) == len(chunk) + 16
    assert ChunkSealer(KEY, SALT, DIGEST).open(sealed, PLACE) == chunk


@pytest.mark.parametrize(
    "moved", [{"payload": 0}, {"target": "cpu2"}, {"chunk": 3}, {"last": True}]
)
def test_chunk_opens_in_no_other_place(moved):
    sealer = ChunkSealer(KEY, SALT, DIGEST)
    sealed = sealer.seal(b"data", PLACE)
    with pytest.raises(ArtifactError, match="does not open"):
        sealer.open(sealed, dataclasses.replace(PLACE, **moved))


@pytest.mark.parametrize(
    "arguments",
    [(bytes(32), SALT, DIGEST), (KEY, bytes(32), DIGEST), (KEY, SALT, bytes(48))],
    ids=["key", "salt", "manifest"],
)
def test_chunk_opens_under_no_other_key_salt_or_manifest(arguments):
    sealed = ChunkSealer(KEY, SALT, DIGEST).seal(b"data", PLACE)
    with pytest.raises(ArtifactError, match="payload cpu: chunk 2 does not open"):
        ChunkSealer(*arguments).open(sealed, PLACE)


def test_digest_depends_on_the_key_and_the_salt():
    digests = {
        ManifestKeys.derive(key, salt).digest(b"chunk")
        for key in (KEY, bytes(32))
        for salt in (SALT, bytes(32))
    }
    assert len(digests) == 4
    assert "digest_key" not in repr(ManifestKeys.derive(KEY, SALT))


def test_chunk_digests_are_the_published_blake3():
    # The test vectors of BLAKE3's own repository, for no bytes at all: plain, and under their key.
    plain = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    keyed = "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26"
    keys = ManifestKeys(check=bytes(16), digest_key=b"whats the Elvish word for friend")
    assert plain_digest(b"").hex() == plain
    assert keys.digest(b"").hex() == keyed


def test_digest_key_is_derived_as_documented():
    prk = hmac.digest(SALT, KEY, "sha384")
    derived = hmac.digest(prk, b"luma/2 digest" + b"\x01", hashlib.sha384)[:32]
    assert ManifestKeys.derive(KEY, SALT).digest_key == derived


def test_cipher_is_plain_aes_gcm_with_the_documented_nonce_and_data():
    # Written out from docs/reference/artifact-format.md, so that another reader can be made.
    prk = hmac.digest(SALT, KEY, "sha384")
    key = hmac.digest(prk, b"luma/1 chunks" + DIGEST + b"\x01", hashlib.sha384)[:32]
    nonce = b"\0\0\0\x01" + b"\0\0\0\0\0\0\0\x02"
    associated = b"\x85\x6cluma/chunk/1\x58\x30" + DIGEST + b"\x63cpu\x02\xf4"
    sealed = ChunkSealer(KEY, SALT, DIGEST).seal(b"data", PLACE)
    assert AESGCM(key).decrypt(nonce, sealed, associated) == b"data"


@given(st.binary(max_size=500), st.binary(max_size=40))
def test_blob_comes_back(data, context):
    sealed = seal_blob(data, KEY, context)
    assert open_blob(sealed, KEY, context) == data
    assert seal_blob(data, KEY, context) != sealed


@given(st.data())
def test_changed_blob_is_refused(data):
    sealed = seal_blob(b"some cached payload", KEY, b"entry")
    position = data.draw(st.integers(0, len(sealed) - 1))
    changed = bytearray(sealed)
    changed[position] ^= 1 << data.draw(st.integers(0, 7))
    for bad in (bytes(changed), sealed[:position], sealed + b"\0"):
        with pytest.raises(ArtifactError, match="blob: "):
            open_blob(bad, KEY, b"entry")


def test_blob_of_another_key_or_context_is_refused():
    sealed = seal_blob(b"data", KEY, b"entry")
    with pytest.raises(ArtifactError, match="blob: does not open"):
        open_blob(sealed, bytes(32), b"entry")
    with pytest.raises(ArtifactError, match="blob: does not open"):
        open_blob(sealed, KEY, b"other")
    with pytest.raises(ArtifactError, match="data key: expected 32 bytes"):
        seal_blob(b"data", b"short", b"entry")
