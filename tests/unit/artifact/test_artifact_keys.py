"""Key files: private, whole, never overwritten; errors that say what to do."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from runtime.artifact import (
    default_home,
    generate_data_key,
    generate_signing_key,
    load_data_key,
    load_or_create_keys,
    load_public_key,
    load_signing_key,
    private_folder,
)
from runtime.artifact.keys import public_key_bytes, public_key_from_bytes
from runtime.spec import ArtifactError


def test_keys_are_made_once_and_loaded_again(tmp_path):
    first = load_or_create_keys(tmp_path / "home")
    second = load_or_create_keys(tmp_path / "home")
    assert first.data_key == second.data_key
    assert public_key_bytes(first.public_key) == public_key_bytes(second.public_key)
    for file in (first.signing_key_file, first.data_key_file):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(first.signing_key_file.parent.stat().st_mode) == 0o700
    assert sorted(f.name for f in first.data_key_file.parent.iterdir()) == [
        "data.key",
        "signing.pem",
    ]


def test_two_homes_have_different_keys(tmp_path):
    one, two = load_or_create_keys(tmp_path / "1"), load_or_create_keys(tmp_path / "2")
    assert one.data_key != two.data_key


def test_many_at_once_end_with_the_same_keys(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: load_or_create_keys(tmp_path / "home"), range(16)))
    assert len({key.data_key for key in keys}) == 1
    assert len({public_key_bytes(key.public_key) for key in keys}) == 1


def test_home_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("LUMA_HOME", str(tmp_path / "elsewhere"))
    assert default_home() == tmp_path / "elsewhere"
    assert load_or_create_keys().home == tmp_path / "elsewhere"
    monkeypatch.delenv("LUMA_HOME")
    assert default_home().name == ".luma"


def test_secrets_stand_in_no_representation(tmp_path):
    keys = load_or_create_keys(tmp_path)
    assert keys.data_key.hex() not in repr(keys)
    assert repr(keys.data_key) not in repr(keys)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601])
def test_files_that_others_can_reach_are_refused(tmp_path, mode):
    keys = load_or_create_keys(tmp_path)
    for file, load in (
        (keys.data_key_file, load_data_key),
        (keys.signing_key_file, load_signing_key),
    ):
        file.chmod(mode)
        with pytest.raises(ArtifactError, match=f"mode {mode:04o}") as caught:
            load(file)
        assert f"chmod 600 {file}" in caught.value.diagnostics()


def test_keys_are_never_overwritten(tmp_path):
    for make in (generate_data_key, generate_signing_key):
        path = tmp_path / make.__name__
        make(path)
        before = path.read_bytes()
        with pytest.raises(ArtifactError, match="never overwritten"):
            make(path)
        assert path.read_bytes() == before


def test_every_damage_of_a_data_key_file_is_seen(tmp_path):
    path = tmp_path / "data.key"
    key = generate_data_key(path)
    whole = path.read_bytes()
    for position in range(len(whole) - 1):
        changed = bytearray(whole)
        changed[position] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises(ArtifactError, match=r"not of the form|does not fit the key"):
            load_data_key(path)
    for size in range(len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ArtifactError, match="not of the form"):
            load_data_key(path)
    path.write_bytes(whole.replace(b"\n", b"\r\n"))
    assert load_data_key(path) == key


@pytest.mark.parametrize("content", [b"", b"\0" * 40_000, b"-----BEGIN PRIVATE KEY-----\n"])
def test_other_files_are_no_keys(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    path.chmod(0o600)
    for load in (load_data_key, load_signing_key, load_public_key):
        with pytest.raises(ArtifactError, match=str(path)):
            load(path)
        with pytest.raises(ArtifactError, match="No such file"):
            load(tmp_path / "absent")


@pytest.mark.parametrize(
    "other",
    [ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()],
    ids=["P-256", "Ed25519"],
)
def test_other_kinds_of_keys_are_refused(tmp_path, other):
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(
        other.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    private.chmod(0o600)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(other.public_key().public_bytes(serialization.Encoding.PEM, form))
    with pytest.raises(ArtifactError, match="expected P-384"):
        load_signing_key(private)
    with pytest.raises(ArtifactError, match="expected P-384"):
        load_public_key(public)
    der = other.public_key().public_bytes(serialization.Encoding.DER, form)
    with pytest.raises(ArtifactError, match=r"manifest\.signer: holds another kind"):
        public_key_from_bytes(der, "manifest.signer")


def test_encrypted_signing_key_is_refused(tmp_path):
    path = tmp_path / "locked.pem"
    path.write_bytes(
        ec.generate_private_key(ec.SECP384R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    path.chmod(0o600)
    with pytest.raises(ArtifactError, match="no unencrypted private key"):
        load_signing_key(path)


def test_public_key_file_of_a_signer_is_read(tmp_path):
    key = generate_signing_key(tmp_path / "signing.pem").public_key()
    path = tmp_path / "signer.pub"
    path.write_bytes(
        key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    assert public_key_bytes(load_public_key(path)) == public_key_bytes(key)


def test_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match="cannot be written: No space left"):
        generate_data_key(tmp_path / "data.key")
    assert list(tmp_path.iterdir()) == []


def test_home_that_is_a_file_is_named(tmp_path):
    (tmp_path / "home").write_text("")
    with pytest.raises(ArtifactError, match="folder") as caught:
        load_or_create_keys(tmp_path / "home")
    assert "LUMA_HOME" in caught.value.diagnostics()


def test_folders_of_keys_and_caches_are_closed_to_others(tmp_path):
    home = tmp_path / "home"
    loose = home / "cache"
    loose.mkdir(parents=True, mode=0o755)
    private_folder(loose / "deep" / "er")
    load_or_create_keys(tmp_path / "new")
    made = [loose / "deep", loose / "deep" / "er", tmp_path / "new", tmp_path / "new" / "keys"]
    assert [folder.stat().st_mode & 0o777 for folder in made] == [0o700] * 4
    assert loose.stat().st_mode & 0o777 == 0o755  # it was there, and is not the one asked for
    private_folder(loose)
    assert loose.stat().st_mode & 0o777 == 0o700
