"""Checkpoints in a bucket: what counts is whole, what is torn is left out, nothing is overwritten."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import boto3
import numpy as np
import pytest
from boto3.exceptions import RetriesExceededError
from botocore.exceptions import ClientError
from moto import mock_aws

from runtime.agent import bucket as bucket_module
from runtime.agent import checkpoints as checkpoints_module
from runtime.agent.bucket import Bucket, BucketPlace, ObjectExistsError
from runtime.agent.checkpoint import (
    CheckpointInfo,
    RejectedCheckpoint,
    load_checkpoint,
    write_checkpoint,
)
from runtime.agent.checkpoint_files import FileRecord
from runtime.agent.checkpoint_remote import RemoteCheckpoints
from runtime.agent.checkpoints import CheckpointStore
from runtime.agent.state import TrainState
from runtime.spec.aws import AwsError
from runtime.spec.errors import CheckpointError, SpecError
from tests.unit.coordinator.account_table import ENVIRONMENT

JOB = "job-digest"
BUCKET = "luma-runs"
MANIFEST = "luma/manifest.json"
_PARTS = 5 << 20  # the least that S3 takes


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """Give a plain client of an emulated account with a bucket."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with patch.dict(os.environ, kept | ENVIRONMENT, clear=True), mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket=BUCKET)
        yield client


class Account:
    """A run's prefix; notes what is requested, and cuts it off where it is told to."""

    def __init__(self) -> None:
        self.prefix = f"runs/{next(_numbers)}/"
        self.bucket = Bucket(BucketPlace(BUCKET, self.prefix), part_bytes=_PARTS)
        self.remote = RemoteCheckpoints(self.bucket, job_digest=JOB)
        self.requests: list[tuple[str, str]] = []
        self._left: int | None = None
        self._lock = threading.Lock()
        self.events.register("before-call.s3", self._see)

    @property
    def events(self) -> Any:
        return self.bucket._s3.meta.events

    def _see(self, model: Any, params: dict[str, Any], **_: Any) -> None:
        with self._lock:  # parts go up in several threads
            if self._left == 0:
                raise KeyboardInterrupt  # what nothing on the way may take for an answer
            if self._left is not None:
                self._left -= 1
        self.requests.append((model.name, params["url_path"].partition(self.prefix)[2]))

    @contextlib.contextmanager
    def dies_after(self, requests: int) -> Iterator[None]:
        """Cut everything off after so many requests, as a kill does."""
        self._left = requests
        with pytest.raises(KeyboardInterrupt):
            yield
        self._left = None

    def lose_answers(self, operation: str) -> None:
        """Have botocore send each such request again after its success."""
        self.events.register_first(
            f"needs-retry.s3.{operation}", lambda attempts, **_: 0.0 if attempts == 1 else None
        )

    def key(self, step: int, name: str) -> str:
        """Give the key of a checkpoint's file."""
        return f"{self.prefix}checkpoints/step-{step:06d}/{name}"


_numbers = itertools.count()


@pytest.fixture
def account(s3: Any) -> Account:
    return Account()


def _state(step: int, *, seed: int = 0, size: int = 12) -> TrainState:
    random = np.random.default_rng((step, seed))

    def arrays() -> dict[str, np.ndarray]:
        return {"a.weight": random.standard_normal(size).astype(np.float32)}

    return TrainState(
        step=step,
        params=arrays(),
        moment1=arrays(),
        moment2=arrays(),
        block_exponents=random.integers(-9, 9, 4, dtype=np.int32),
    )


def _write(root: Path, step: int, **how: Any) -> CheckpointInfo:
    return write_checkpoint(root, _state(step, **how), job_digest=JOB, durable=False)


def _names(s3: Any, account: Account) -> list[str]:
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=account.prefix).get("Contents", [])
    return sorted(entry["Key"] for entry in listed)


def _contents(s3: Any, account: Account) -> dict[str, bytes]:
    names = _names(s3, account)
    return {key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in names}


def _pull(remote: RemoteCheckpoints, root: Path) -> tuple[CheckpointInfo | None, dict[str, str]]:
    report: list[RejectedCheckpoint] = []
    info = remote.pull_newest(root, report=report)
    return info, {item.path.name: item.reason for item in report}


# ------------------------------------------------------------------ there and back


def test_it_comes_back_bit_for_bit(account: Account, s3: Any, tmp_path: Path) -> None:
    written = _write(tmp_path / "here", 12)
    account.remote.push(written.path)
    info, reasons = _pull(account.remote, tmp_path / "there")
    assert info is not None
    assert info.path == tmp_path / "there" / "step-000012"
    assert (info.state_hash, info.manifest_digest) == (written.state_hash, written.manifest_digest)
    assert load_checkpoint(info).hash() == _state(12).hash()
    assert reasons == {}
    assert _names(s3, account) == [
        account.key(12, name)
        for name in (
            "luma/manifest.json",
            "luma/optimizer.safetensors",
            "luma/state.json",
            "model.safetensors",
        )
    ]


def test_the_manifest_is_last_and_every_write_is_conditional(
    account: Account, tmp_path: Path
) -> None:
    conditions: list[str] = []

    def see(params: dict[str, Any], **_: Any) -> None:
        conditions.append(params["headers"].get("If-None-Match"))

    for operation in ("PutObject", "CompleteMultipartUpload"):
        account.events.register(f"before-call.s3.{operation}", see)
    account.remote.push(_write(tmp_path, 4, size=2_000_000).path)
    operations = [name for name, _ in account.requests]
    assert operations[-1] == "PutObject"
    assert account.requests[-1][1].endswith(MANIFEST)
    # 8 MB of weights and 16 MB of moments, in parts of 5 MiB.
    assert operations.count("UploadPart") == 2 + 4
    assert conditions == ["*"] * 4


def test_each_part_s_checksum_is_repeated_at_the_end(account: Account, tmp_path: Path) -> None:
    """What S3 asks for, and the emulator does not."""
    begun, sent, ended = [], [], []
    client = account.bucket._s3
    create, complete = client.create_multipart_upload, client.complete_multipart_upload
    upload = client.upload_part

    def upload_part(**request: Any) -> Any:
        sent.append(request["ChecksumAlgorithm"])
        return {**upload(**request), "ChecksumCRC32": f"crc-{request['PartNumber']}"}

    client.upload_part = upload_part
    client.create_multipart_upload = lambda **r: begun.append(r["ChecksumAlgorithm"]) or create(**r)

    def ending(**request: Any) -> Any:
        ended.extend(request["MultipartUpload"]["Parts"])
        return complete(**request)

    client.complete_multipart_upload = ending
    account.remote.push(_write(tmp_path, 4, size=1_400_000).path)
    assert begun == ["CRC32"] * 2
    assert set(sent) == {"CRC32"}
    assert [part["ChecksumCRC32"] for part in ended if part["PartNumber"] == 1] == ["crc-1"] * 2
    assert all("ETag" in part for part in ended)


def test_a_large_file_comes_back(account: Account, tmp_path: Path) -> None:
    account.remote.push(_write(tmp_path / "here", 4, size=2_000_000).path)
    info, _ = _pull(account.remote, tmp_path / "there")
    assert info is not None
    assert load_checkpoint(info).hash() == _state(4, size=2_000_000).hash()


def test_the_newest_whole_one_counts(account: Account, tmp_path: Path) -> None:
    for step in (0, 4, 12, 8):
        account.remote.push(_write(tmp_path / "here", step).path)
    info, _ = _pull(account.remote, tmp_path / "there")
    assert info is not None
    assert info.step == 12
    assert account.remote.steps() == [12, 8, 4, 0]


def test_an_empty_prefix_has_none(account: Account, tmp_path: Path) -> None:
    assert _pull(account.remote, tmp_path / "there") == (None, {})


def test_what_lies_here_is_not_fetched_again(account: Account, tmp_path: Path) -> None:
    account.remote.push(_write(tmp_path / "here", 4).path)
    _pull(account.remote, tmp_path / "here")
    before = len(account.requests)
    info, _ = _pull(account.remote, tmp_path / "here")
    assert info is not None
    assert [name for name, _ in account.requests[before:]] == ["ListObjectsV2", "GetObject"]


def test_the_bucket_counts_and_not_what_lies_here(account: Account, tmp_path: Path) -> None:
    """The node had another run's folder, or one that never came to the bucket."""
    account.remote.push(_write(tmp_path / "a", 4).path)
    _write(tmp_path / "there", 4, seed=1)
    _write(tmp_path / "there", 8)
    info, _ = _pull(account.remote, tmp_path / "there")
    assert info is not None
    assert info.step == 4
    assert load_checkpoint(info).hash() == _state(4).hash()


# --------------------------------------------------------------------- a cut upload


@pytest.mark.timeout(600)
def test_a_writer_that_dies_anywhere_leaves_the_one_before(
    account: Account, tmp_path: Path
) -> None:
    """After each number of requests; then a new writer finishes, and its bytes are right."""
    older = _write(tmp_path / "here", 4)
    newer = _write(tmp_path / "here", 8, size=700_000)
    account.remote.push(newer.path)
    total = len(account.requests)
    assert total >= 8
    for count in range(total):
        again = Account()
        again.remote.push(older.path)
        with again.dies_after(count):
            again.remote.push(newer.path)
        info, reasons = _pull(again.remote, tmp_path / "there")
        assert info is not None
        assert info.step == 4
        assert not reasons or "its writer did not come to the end" in reasons["step-000008"]
        again.remote.push(newer.path)
        info, _ = _pull(again.remote, tmp_path / "there")
        assert info is not None
        assert info.manifest_digest == newer.manifest_digest


def test_an_upload_that_fails_is_not_left_open(account: Account, s3: Any, tmp_path: Path) -> None:
    error = ClientError({"Error": {"Code": "AccessDenied"}}, "UploadPart")
    _failing(account, "upload_part", error, times=1)
    with pytest.raises(AwsError, match="AccessDenied"):
        account.remote.push(_write(tmp_path, 4, size=2_000_000).path)
    opened = s3.list_multipart_uploads(Bucket=BUCKET, Prefix=account.prefix)
    assert opened.get("Uploads", []) == []


@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload"])
def test_an_answer_that_was_lost_is_no_conflict(
    account: Account, tmp_path: Path, operation: str
) -> None:
    account.lose_answers(operation)
    account.remote.push(_write(tmp_path / "here", 4, size=2_000_000).path)
    info, _ = _pull(account.remote, tmp_path / "there")
    assert info is not None


def test_a_conflict_that_passes_is_tried_again(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "_CONFLICT_WAIT_S", 0.001)
    error = ClientError({"Error": {"Code": "ConditionalRequestConflict"}}, "PutObject")
    calls = _failing(account, "put_object", error, times=2)
    account.remote.push(_write(tmp_path / "here", 4).path)
    assert len(calls) == 6
    assert _pull(account.remote, tmp_path / "there")[0] is not None


def test_a_conflict_that_stays_is_told(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "_CONFLICT_WAIT_S", 0.001)
    error = ClientError({"Error": {"Code": "ConditionalRequestConflict"}}, "PutObject")
    _failing(account, "put_object", error, times=99)
    with pytest.raises(AwsError, match="ConditionalRequestConflict"):
        account.remote.push(_write(tmp_path / "here", 4).path)


def _failing(account: Account, name: str, error: Exception, *, times: int) -> list[int]:
    original, calls = getattr(account.bucket._s3, name), []

    def call(**request: Any) -> Any:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return original(**request)

    setattr(account.bucket._s3, name, call)
    return calls


# ------------------------------------------------------------------ never overwritten


def test_a_second_writer_of_the_same_state_agrees(
    account: Account, s3: Any, tmp_path: Path
) -> None:
    account.remote.push(_write(tmp_path / "a", 4, size=1_400_000).path)
    keys = _names(s3, account)
    before = [s3.head_object(Bucket=BUCKET, Key=key)["LastModified"] for key in keys]
    start = len(account.requests)
    account.remote.push(_write(tmp_path / "b", 4, size=1_400_000).path)
    after = [s3.head_object(Bucket=BUCKET, Key=key)["LastModified"] for key in keys]
    assert before == after
    again = [name for name, _ in account.requests[start:]]
    assert "UploadPart" not in again, "a large file that is there does not go up again"


@pytest.mark.parametrize("size", [12, 1_400_000])
def test_a_second_writer_of_another_state_is_refused(
    account: Account, s3: Any, tmp_path: Path, size: int
) -> None:
    account.remote.push(_write(tmp_path / "a", 4, size=size).path)
    before = _contents(s3, account)
    with pytest.raises(ObjectExistsError, match="never overwritten"):
        account.remote.push(_write(tmp_path / "b", 4, size=size, seed=1).path)
    assert _contents(s3, account) == before


def test_many_writers_of_one_state_at_once(account: Account, tmp_path: Path) -> None:
    paths = [_write(tmp_path / str(number), 4).path for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(account.remote.push, paths))
    info, _ = _pull(account.remote, tmp_path / "there")
    assert info is not None
    assert load_checkpoint(info).hash() == _state(4).hash()


def test_of_two_writers_that_differ_one_wins_whole(account: Account, tmp_path: Path) -> None:
    """The second meets the first's files while the manifest is not there yet."""
    first, second = _write(tmp_path / "a", 4), _write(tmp_path / "b", 4, seed=1)
    with account.dies_after(2):
        account.remote.push(first.path)
    with pytest.raises(ObjectExistsError):
        account.remote.push(second.path)
    account.remote.push(first.path)
    info, _ = _pull(account.remote, tmp_path / "there")
    assert info is not None
    assert info.state_hash == first.state_hash


# ------------------------------------------------------------------------ damage


_FILES = ["luma/optimizer.safetensors", "luma/state.json", "model.safetensors", MANIFEST]


@pytest.mark.parametrize("name", _FILES)
@pytest.mark.parametrize("how", ["gone", "cut", "changed", "empty"])
def test_a_damaged_one_is_left_out_with_its_reason(
    account: Account, s3: Any, tmp_path: Path, name: str, how: str
) -> None:
    for step in (4, 8):
        account.remote.push(_write(tmp_path / "here", step).path)
    key = account.key(8, name)
    data = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    middle = len(data) // 2
    damaged = {
        "cut": data[:-1],
        "changed": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "empty": b"",
    }
    if how == "gone":
        s3.delete_object(Bucket=BUCKET, Key=key)
    else:
        s3.put_object(Bucket=BUCKET, Key=key, Body=damaged[how])
    info, reasons = _pull(account.remote, tmp_path / "there")
    assert info is not None
    if name == MANIFEST and how == "cut":
        assert info.step == 8, "what was cut is the last line's end"
        return
    assert info.step == 4
    assert name in reasons["step-000008"] or "manifest" in reasons["step-000008"]
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["step-000004"]


@pytest.mark.parametrize("name", _FILES)
def test_no_flipped_bit_is_ever_loaded(
    account: Account, s3: Any, tmp_path: Path, name: str
) -> None:
    """Whatever the bit, the state that comes is right, or none does."""
    account.remote.push(_write(tmp_path / "here", 4).path)
    key = account.key(4, name)
    data = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    random = Random(name)
    for _ in range(12):
        flipped = bytearray(data)
        flipped[random.randrange(len(data))] ^= 1 << random.randrange(8)
        s3.put_object(Bucket=BUCKET, Key=key, Body=bytes(flipped))
        info, _ = _pull(account.remote, tmp_path / f"there-{random.random()}")
        if info is not None:
            with contextlib.suppress(CheckpointError):  # the manifest's own hash of the state, say
                assert load_checkpoint(info).hash() == _state(4).hash()


def test_another_job_s_is_left_out(account: Account, tmp_path: Path) -> None:
    account.remote.push(_write(tmp_path / "here", 4).path)
    other = write_checkpoint(tmp_path / "other", _state(8), job_digest="other", durable=False)
    account.remote.push(other.path)
    info, reasons = _pull(account.remote, tmp_path / "there")
    assert info is not None
    assert info.step == 4
    assert reasons == {"step-000008": "it belongs to job other, not to job-digest"}


def test_a_manifest_cannot_lead_out_of_the_folder(
    account: Account, s3: Any, tmp_path: Path
) -> None:
    written = _write(tmp_path / "here", 4)
    manifest = json.loads((written.path / MANIFEST).read_text())
    manifest["files"]["../../escaped"] = manifest["files"].pop("model.safetensors")
    body = json.dumps(manifest).encode()
    s3.put_object(Bucket=BUCKET, Key=account.key(4, MANIFEST), Body=body)
    s3.put_object(Bucket=BUCKET, Key=account.key(4, "../../escaped"), Body=b"x")
    info, reasons = _pull(account.remote, tmp_path / "a" / "b" / "there")
    assert info is None
    assert "escaped" in reasons["step-000004"]
    assert not list(tmp_path.rglob("escaped"))


# ----------------------------------------------------------------------- pruning


def test_pruning_keeps_the_newest_whole_ones(account: Account, s3: Any, tmp_path: Path) -> None:
    for step in (0, 4, 8, 12, 16):
        account.remote.push(_write(tmp_path / "here", step).path)
    for torn in (4, 16):
        s3.delete_object(Bucket=BUCKET, Key=account.key(torn, MANIFEST))
    assert account.remote.prune(2) == [4, 0]
    assert account.remote.steps() == [16, 12, 8]
    info, _ = _pull(account.remote, tmp_path / "there")
    assert info is not None
    assert info.step == 12


def test_pruning_removes_the_manifest_first(account: Account, tmp_path: Path) -> None:
    """Cut at any request, what is left of the oldest is torn, or whole."""
    for step in (0, 4, 8):
        account.remote.push(_write(tmp_path / "here", step).path)
    start = len(account.requests)
    account.remote.prune(2)
    total = len(account.requests) - start
    for count in range(total):
        account.remote.push(_write(tmp_path / "here", 0).path)
        with account.dies_after(count):
            account.remote.prune(2)
        info, reasons = _pull(account.remote, tmp_path / "there")
        assert info is not None
        assert (info.step, reasons) == (8, {})
    account.remote.prune(2)
    assert account.remote.steps() == [8, 4]


def test_one_is_never_enough(account: Account) -> None:
    with pytest.raises(CheckpointError, match="at least 2"):
        account.remote.prune(1)


# ------------------------------------------------------------------------ refusals


def test_a_missing_bucket_is_told(s3: Any, tmp_path: Path) -> None:
    remote = RemoteCheckpoints(Bucket(BucketPlace.parse("s3://no-such-bucket/r")), job_digest=JOB)
    with pytest.raises(AwsError, match="no-such-bucket") as caught:
        remote.pull_newest(tmp_path / "there")
    assert caught.value.reason == "missing"


def test_a_denied_write_is_told(account: Account, tmp_path: Path) -> None:
    error = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject")
    _failing(account, "put_object", error, times=99)
    with pytest.raises(AwsError, match=r"s3 PutObject of s3://luma-runs/runs/.*denied") as caught:
        account.remote.push(_write(tmp_path, 4).path)
    assert "permission" in caught.value.diagnostics()


def test_a_file_that_vanished_is_told(account: Account, tmp_path: Path) -> None:
    written = _write(tmp_path, 4)
    (written.path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        account.remote.push(written.path)


@pytest.mark.parametrize("url", ["s3://b", "s3://b/", "s3:///p", "b/p", "https://b/p", "s3://b//"])
def test_a_place_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(SpecError, match=r"--store: .*expected s3://BUCKET/PREFIX"):
        BucketPlace.parse(url)


def test_a_place_ends_in_one_slash() -> None:
    assert BucketPlace.parse("s3://b/runs/r") == BucketPlace.parse("s3://b/runs/r/")
    assert str(BucketPlace.parse("s3://b/runs/r")) == "s3://b/runs/r/"


def test_an_object_of_another_size_is_another_object(account: Account) -> None:
    account.bucket.put_bytes("x", b"12", FileRecord(size_bytes=2, blake3="a" * 64))
    with pytest.raises(ObjectExistsError):
        account.bucket.put_bytes("x", b"123", FileRecord(size_bytes=3, blake3="a" * 64))


# ---------------------------------------------------------------- the island's store


def _store(run_dir: Path, remote: RemoteCheckpoints) -> CheckpointStore:
    return CheckpointStore(run_dir, job_digest=JOB, keep=2, constants={}, threads=1, remote=remote)


def test_a_checkpoint_counts_once_it_is_in_the_bucket(account: Account, tmp_path: Path) -> None:
    store = _store(tmp_path, account.remote)
    told = store.write(store.take_snapshot(_state(4)), stall_s=0.0)
    assert (told["type"], told["path"]) == ("checkpointed", "checkpoints/step-000004")
    fresh, _ = _pull(account.remote, tmp_path / "elsewhere")
    assert fresh is not None
    assert fresh.state_hash == told["state_hash"]


def test_one_that_does_not_come_up_does_not_count(account: Account, tmp_path: Path) -> None:
    error = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject")
    _failing(account, "put_object", error, times=99)
    store = _store(tmp_path, account.remote)
    told = store.write(store.take_snapshot(_state(4)), stall_s=0.0)
    assert told["type"] == "checkpoint_failed"
    assert "denied" in told["error"]


def test_an_outage_is_waited_for(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last checkpoint of a run, say: there is none after it that would do."""
    monkeypatch.setattr(checkpoints_module, "_UPLOAD_PAUSE_S", 0.001)
    error = ClientError({"Error": {"Code": "SlowDown"}}, "PutObject")
    calls = _failing(account, "put_object", error, times=3)
    store = _store(tmp_path, account.remote)
    assert store.write(store.take_snapshot(_state(4)), stall_s=0.0)["type"] == "checkpointed"
    assert len(calls) == 7
    monkeypatch.setattr(checkpoints_module, "_UPLOAD_PATIENCE_S", 0.0)
    _failing(account, "put_object", error, times=99)
    told = store.write(store.take_snapshot(_state(8)), stall_s=0.0)
    assert told["type"] == "checkpoint_failed"


def test_a_refused_pruning_is_no_failed_checkpoint(account: Account, tmp_path: Path) -> None:
    error = ClientError({"Error": {"Code": "AccessDenied"}}, "DeleteObjects")
    _failing(account, "delete_objects", error, times=99)
    store = _store(tmp_path, account.remote)
    for step in (4, 8, 12):
        told = store.write(store.take_snapshot(_state(step)), stall_s=0.0)
        assert told["type"] == "checkpointed"
    assert account.remote.steps() == [12, 8, 4]


def test_a_download_that_breaks_off_may_be_tried_again(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.remote.push(_write(tmp_path / "here", 4).path)

    def breaks(*_: Any, **__: Any) -> None:
        raise RetriesExceededError(last_exception=ConnectionResetError())

    monkeypatch.setattr(account.bucket._s3, "download_file", breaks)
    with pytest.raises(AwsError, match="broke off") as caught:
        account.remote.pull_newest(tmp_path / "there")
    assert caught.value.transient


def test_the_upload_holds_up_no_snapshot(account: Account, tmp_path: Path) -> None:
    store = _store(tmp_path, account.remote)
    uploading, go_on = threading.Event(), threading.Event()
    original: Callable[[Path], None] = account.remote.push

    def slow(path: Path) -> None:
        uploading.set()
        assert go_on.wait(100)
        original(path)

    account.remote.push = slow  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(store.write, store.take_snapshot(_state(4)), stall_s=0.0)
        assert uploading.wait(100)
        second = store.take_snapshot(_state(8))  # would block for ever
        second.release()
        go_on.set()
        assert first.result(100)["type"] == "checkpointed"


def test_a_wiped_node_starts_from_the_bucket(account: Account, tmp_path: Path) -> None:
    store = _store(tmp_path / "old", account.remote)
    for step in (4, 8, 12):
        store.write(store.take_snapshot(_state(step)), stall_s=0.0)
    fresh = _store(tmp_path / "new", account.remote)
    info = fresh.find_newest()
    assert (info.step, fresh.load(info).hash()) == (12, _state(12).hash())
    assert account.remote.steps() == [12, 8]


def test_the_reasons_are_in_the_error_and_in_the_log(
    account: Account, s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    account.remote.push(_write(tmp_path / "here", 4).path)
    s3.delete_object(Bucket=BUCKET, Key=account.key(4, MANIFEST))
    with pytest.raises(CheckpointError, match=r"step-000004: luma/manifest.json: missing"):
        _store(tmp_path / "new", account.remote).find_newest()
    assert "checkpoint step-000004 is left out" in capsys.readouterr().err
