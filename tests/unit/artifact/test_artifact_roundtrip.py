"""What is written is read back, at each level, and nothing stands in the open that should not."""

from __future__ import annotations

import os
import stat
import threading
import tracemalloc

import pytest

from runtime.artifact import (
    PayloadDescription,
    PayloadSource,
    open_artifact,
    verify_artifact,
    write_artifact,
)
from runtime.artifact import writer as writer_module
from runtime.artifact.keys import generate_signing_key
from runtime.spec import ArtifactError

LEVELS = ("L0", "L1")


@pytest.mark.parametrize("level", LEVELS)
def test_payloads_come_back_as_they_were(bench, payload_maker, level):
    path = bench.write(f"roundtrip-{level}.luma", level)
    artifact = open_artifact(path, trusted_signer=bench.keys.public_key, key=bench.key_for(level))
    assert artifact.manifest.targets == ("cpu", "tpu")
    for i, target in enumerate(artifact.manifest.targets):
        assert artifact.target_payload(target) == payload_maker(target, 1 + i)
        assert b"".join(artifact.chunks(target)) == artifact.payload(target)


@pytest.mark.parametrize("level", LEVELS)
def test_digest_is_that_of_the_manifest_and_is_returned(bench, payload_maker, level):
    payload = payload_maker("cpu", 3)
    path = bench.folder / f"digest-{level}.luma"
    digest = write_artifact(
        path,
        {"cpu": payload},
        level=level,
        signing_key=bench.keys.signing_key,
        data_key=bench.key_for(level),
        graph_digest="00" * 32,
        statistics={},
        versions={},
    )
    artifact = open_artifact(path, trusted_signer=bench.keys.public_key, key=bench.key_for(level))
    assert digest == artifact.digest == artifact.manifest.digest
    assert digest.startswith("sha384:")
    assert len(digest) == len("sha384:") + 96


def test_manifest_tells_costs_and_class_but_no_names(bench):
    path = bench.write("names.luma", "L1")
    manifest = open_artifact(path, trusted_signer=bench.keys.public_key).manifest
    shown = manifest.to_json()
    assert shown["payloads"][0]["programs"]["forward"]["peak_memory_bytes"] == 4096
    assert shown["payloads"][0]["cpu_name"] == "haswell"
    assert shown["level_claimed"] == "L1"
    stored = path.read_bytes()
    assert b"model.w" not in stored
    assert b"input_ids" not in stored


def test_equal_payloads_are_sealed_to_different_bytes_and_digests(bench):
    one = bench.write("same-1.luma", "L1")
    two = bench.write("same-2.luma", "L1")
    first = open_artifact(one, trusted_signer=None).manifest
    second = open_artifact(two, trusted_signer=None).manifest
    # Without the key nobody can tell from the manifests that the payloads are equal.
    assert not set(first.payloads[0].digests) & set(second.payloads[0].digests)


def test_sealed_payload_needs_the_key(bench):
    artifact = open_artifact(bench.write("no-key.luma", "L1"), trusted_signer=bench.keys.public_key)
    assert not artifact.can_read_payloads
    with pytest.raises(ArtifactError, match="payload cpu: is sealed"):
        artifact.payload("cpu")


def test_wrong_key_is_told_from_a_broken_file(bench):
    path = bench.write("wrong-key.luma", "L1")
    with pytest.raises(ArtifactError, match=r"manifest\.seal\.check: .*another data key"):
        open_artifact(path, trusted_signer=bench.keys.public_key, key=bytes(32))
    with pytest.raises(ArtifactError, match="data key: expected 32 bytes"):
        open_artifact(path, trusted_signer=bench.keys.public_key, key=b"short")


def test_unknown_target_lists_what_there_is(bench):
    artifact = open_artifact(bench.write("target.luma", "L0"), trusted_signer=None)
    with pytest.raises(ArtifactError, match="'rocm'; it holds cpu, tpu"):
        artifact.payload("rocm")


def test_untrusted_signer_is_refused(bench):
    path = bench.write("signer.luma", "L0")
    other = generate_signing_key(bench.folder / "other-signer.pem").public_key()
    with pytest.raises(ArtifactError, match=r"manifest\.signer: .* is not trusted"):
        open_artifact(path, trusted_signer=other)


def test_key_holder_without_signer_refuses_an_unsealed_artifact(bench):
    path = bench.write("downgraded.luma", "L0")
    with pytest.raises(ArtifactError, match=r"manifest\.seal: a key was given"):
        open_artifact(path, trusted_signer=None, key=bench.keys.data_key)


@pytest.mark.parametrize(
    ("level", "with_key", "match"),
    [
        ("L0", True, "L0 seals nothing"),
        ("L1", False, "L1 needs a data key"),
        ("L2", False, "L2 needs a data key"),
        ("L2", True, "L2 needs an attestation document"),
        ("L3", True, "L3 needs a key service"),
        ("L4", True, "'L4' is not allowed; expected L0, L1, L2, L3"),
    ],
)
def test_level_and_key_must_agree(bench, level, with_key, match):
    path = bench.folder / f"refused-{level}-{with_key}.luma"
    with pytest.raises(ArtifactError, match=match):
        bench.write(path.name, level, data_key=bench.keys.data_key if with_key else None)
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"graph_digest": "xyz"}, r"manifest\.graph_digest"),
        ({"chunk_bytes": 512}, r"manifest\.chunk_bytes"),
        ({"chunk_bytes": 1 << 30}, r"manifest\.chunk_bytes"),
        ({"statistics": {"n": 1 << 63}}, "64 bits"),
        ({"statistics": {"n": b"x"}}, r"manifest\.statistics\.n"),
        ({"statistics": {"n" * 65: 1}}, r"manifest\.statistics"),
        ({"versions": {f"v{i}": "1" for i in range(300)}}, r"manifest\.versions"),
    ],
)
def test_writer_makes_nothing_that_a_reader_refuses(bench, change, match):
    with pytest.raises(ArtifactError, match=match):
        bench.write("never.luma", "L0", **change)
    assert not (bench.folder / "never.luma").exists()


def test_payload_for_another_target_is_refused(bench, payload_maker):
    with pytest.raises(ArtifactError, match="payload cpu: was compiled for target 'rocm-gfx942'"):
        write_artifact(
            bench.folder / "never.luma",
            {"cpu": payload_maker("rocm-gfx942", 1).to_bytes()},
            level="L0",
            signing_key=bench.keys.signing_key,
            data_key=None,
            graph_digest="00" * 32,
            statistics={},
            versions={},
        )


def write_source(bench, path, source, level="L1"):
    return write_artifact(
        path,
        {"cpu": source},
        level=level,
        signing_key=bench.keys.signing_key,
        data_key=bench.key_for(level),
        graph_digest="00" * 32,
        statistics={},
        versions={},
    )


def test_large_payload_is_written_and_read_in_constant_memory(bench, payload_maker):
    payload = payload_maker("cpu", 4, size=48 << 20)
    source = bench.folder / "large.payload"
    source.write_bytes(payload.to_bytes())
    description = PayloadDescription.of(payload)
    size = source.stat().st_size
    del payload
    path = bench.folder / "large.luma"
    tracemalloc.start()
    try:
        write_source(bench, path, PayloadSource(path=source, description=description))
        artifact = open_artifact(
            path, trusted_signer=bench.keys.public_key, key=bench.keys.data_key
        )
        assert sum(len(chunk) for chunk in artifact.chunks("cpu")) == size
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20
    source.unlink()
    path.unlink()


def test_source_that_changes_while_it_is_written_is_refused(bench, payload_maker, monkeypatch):
    source = bench.folder / "moving.payload"
    payload = payload_maker("cpu", 5)
    source.write_bytes(payload.to_bytes())
    signed = writer_module.sign1

    def change_then_sign(*arguments):
        source.write_bytes(payload_maker("cpu", 6).to_bytes())
        return signed(*arguments)

    monkeypatch.setattr(writer_module, "sign1", change_then_sign)
    path = bench.folder / "moving.luma"
    with pytest.raises(ArtifactError, match="changed while it was written"):
        write_source(
            bench, path, PayloadSource(path=source, description=PayloadDescription.of(payload))
        )
    assert not path.exists()


def test_failed_write_leaves_the_old_file_and_nothing_else(bench, monkeypatch, tmp_path):
    path = tmp_path / "kept.luma"
    path.write_bytes(bench.write("to-keep.luma", "L0").read_bytes())
    before = path.read_bytes()

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match="cannot be written: No space left on device"):
        bench.write(path, "L0", seed=9)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_readers_see_a_whole_artifact_while_it_is_replaced(bench):
    path = bench.write("replaced.luma", "L1")
    stop = threading.Event()

    def rewrite():
        while not stop.is_set():
            bench.write(path.name, "L1")

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        for _ in range(20):
            open_artifact(path, trusted_signer=bench.keys.public_key, key=bench.keys.data_key)
    finally:
        stop.set()
        thread.join()


def test_missing_file_and_folder_are_named(bench):
    with pytest.raises(ArtifactError, match="cannot be read: No such file"):
        open_artifact(bench.folder / "absent.luma", trusted_signer=None)
    with pytest.raises(ArtifactError, match="cannot be read"):
        open_artifact(bench.folder, trusted_signer=None)


def test_verification_tells_the_level_that_was_reached(bench):
    plain, sealed = bench.write("level-0.luma", "L0"), bench.write("level-1.luma", "L1")
    trusted, key = bench.keys.public_key, bench.keys.data_key

    def label(path, **given):
        return verify_artifact(path, **given).label

    assert label(plain, trusted_signer=trusted) == "L0"
    assert label(sealed, trusted_signer=trusted, key=key) == "L1 (key file)"
    assert label(sealed, trusted_signer=trusted).startswith("L0 (claims L1: the seal was not")
    assert label(plain, trusted_signer=None) == "none (claims L0: no trusted signer was given)"
    assert label(sealed, trusted_signer=None, key=key).startswith("none (claims L1")
    report = verify_artifact(sealed, trusted_signer=trusted, key=key, scan_leaks=True).to_json()
    assert report["leaks"] == {"tensor_name": 4}
    assert report["leaks_by_target"] == {"cpu": {"tensor_name": 2}, "tpu": {"tensor_name": 2}}
    assert report["leak_examples"][0] == {
        "target": "cpu",
        "program": "forward",
        "kind": "tensor_name",
        "count": 2,
        "examples": ["model.w", "input_ids"],
    }
    assert verify_artifact(sealed, trusted_signer=trusted, scan_leaks=True).leaks is None


def test_payload_that_calls_itself_scrubbed_and_is_not_is_refused(bench, payload_maker):
    dirty = payload_maker("cpu", 1, executable=b"\0/home/someone/model.py\0", scrubbed=True)
    with pytest.raises(ArtifactError, match="calls itself scrubbed but holds"):
        write_source(bench, bench.folder / "dirty.luma", dirty.to_bytes())
    # Written by someone who skips that check, it fails verification.
    source = bench.folder / "dirty.payload"
    source.write_bytes(dirty.to_bytes())
    path = bench.folder / "dirty.luma"
    write_source(bench, path, PayloadSource(path=source, description=PayloadDescription.of(dirty)))
    trusted, key = bench.keys.public_key, bench.keys.data_key
    with pytest.raises(ArtifactError, match="payload cpu: the manifest calls it scrubbed"):
        verify_artifact(path, trusted_signer=trusted, key=key, scan_leaks=True)
    # Only a scan can tell: without one the level is told, and nothing of the leaks.
    found = verify_artifact(path, trusted_signer=trusted, key=key)
    assert (found.level, found.leaks) == ("L1", None)


def test_payload_other_than_described_is_refused(bench, payload_maker):
    source = bench.folder / "lied.payload"
    source.write_bytes(payload_maker("cpu", 1).to_bytes())
    description = PayloadDescription.of(payload_maker("cpu", 1, size=10))
    path = bench.folder / "lied.luma"
    write_source(bench, path, PayloadSource(path=source, description=description))
    for scan_leaks in (False, True):
        with pytest.raises(ArtifactError, match="is not what the manifest describes"):
            verify_artifact(
                path,
                trusted_signer=bench.keys.public_key,
                key=bench.keys.data_key,
                scan_leaks=scan_leaks,
            )


def test_memory_of_verifying_does_not_follow_the_executables(bench, payload_maker):
    size = 16 << 20
    path = bench.folder / "large.luma"
    write_source(bench, path, payload_maker("cpu", 1, executable=bytes(size)).to_bytes())
    given = {"trusted_signer": bench.keys.public_key, "key": bench.keys.data_key}
    verify_artifact(bench.write("warm.luma", "L1"), **given)  # what is imported late counts too
    tracemalloc.start()
    try:
        assert verify_artifact(path, **given).level == "L1"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size // 2


def test_artifact_is_readable_by_others_and_not_executable(bench):
    mode = stat.S_IMODE(bench.write("mode.luma", "L1").stat().st_mode)
    assert mode & 0o111 == 0
    assert mode & 0o600 == 0o600
