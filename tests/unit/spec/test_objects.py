"""The bucket of runs: whole objects, conditional writes, downloads that end, on moto's S3."""

from __future__ import annotations

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from runtime.spec import objects
from runtime.spec.aws import AwsError
from runtime.spec.errors import RunError
from runtime.spec.objects import Bucket, Cancelled


@pytest.fixture
def bucket(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setattr(objects, "_PAUSE_S", 0.0)
    with mock_aws():
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="runs")
        yield Bucket("runs", region="us-east-1")


def failing(bucket, monkeypatch, *codes: str) -> list[str]:
    """Have the next downloads fail with these codes; give what is left of them."""
    left, real = list(codes), bucket.client.download_fileobj

    def download(name, key, file, Callback):
        if left:
            file.write(b"half")
            raise ClientError({"Error": {"Code": left.pop(0), "Message": "m"}}, "GetObject")
        return real(name, key, file, Callback=Callback)

    monkeypatch.setattr(bucket.client, "download_fileobj", download, raising=False)
    return left


def test_objects_go_up_and_down_whole(bucket, tmp_path):
    (tmp_path / "a").write_bytes(b"data" * 1000)
    bucket.upload(tmp_path / "a", "runs/r/deep/a", metadata={"blake3": "x"})
    assert bucket.head("runs/r/deep/a")["Metadata"] == {"blake3": "x"}
    assert bucket.head("runs/r/none") is None
    bucket.download("runs/r/deep/a", tmp_path / "new" / "b")
    assert (tmp_path / "new" / "b").read_bytes() == b"data" * 1000
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["b"]
    bucket.delete("runs/r/deep/a")
    assert bucket.read("runs/r/deep/a") is None


def test_a_new_object_is_written_once(bucket):
    assert bucket.write("k", b"1", new=True)
    assert not bucket.write("k", b"2", new=True)
    assert bucket.read("k") == b"1"
    assert bucket.write("k", b"3")
    assert bucket.read("k") == b"3"


def test_a_tree_comes_down_as_wanted(bucket, tmp_path):
    for key in ("runs/r/a", "runs/r/b/c", "runs/r/checkpoints/x", "runs/r2/a"):
        bucket.write(key, key.encode())
    count = bucket.download_tree(
        "runs/r/", tmp_path, wanted=lambda name: not name.startswith("checkpoints/")
    )
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert (count, found) == (2, {"a", "b/c"})


def test_a_key_that_leads_out_is_refused(bucket, tmp_path):
    bucket.write("runs/r/../../evil", b"x")
    with pytest.raises(RunError, match="leads out"):
        bucket.download_tree("runs/r/", tmp_path / "in")
    assert not (tmp_path / "evil").exists()


def test_what_may_pass_is_tried_again(bucket, tmp_path, monkeypatch):
    bucket.write("k", b"data")
    left = failing(bucket, monkeypatch, "SlowDown")
    bucket.download("k", tmp_path / "k")
    assert (left, (tmp_path / "k").read_bytes()) == ([], b"data")


def test_a_download_that_keeps_failing_ends(bucket, tmp_path, monkeypatch):
    bucket.write("k", b"data")
    left = failing(bucket, monkeypatch, *["SlowDown"] * 10)
    with pytest.raises(AwsError) as failed:
        bucket.download("k", tmp_path / "k")
    assert failed.value.transient
    assert len(left) == 10 - objects._ATTEMPTS
    assert list(tmp_path.iterdir()) == []


def test_what_will_not_pass_is_not_tried_again(bucket, tmp_path, monkeypatch):
    left = failing(bucket, monkeypatch, "AccessDenied", "SlowDown")
    with pytest.raises(AwsError, match="denied"):
        bucket.download("k", tmp_path / "k")
    assert left == ["SlowDown"]


def test_a_download_can_be_given_up(bucket, tmp_path):
    bucket.write("k", b"data")
    with pytest.raises(Cancelled):
        bucket.download("k", tmp_path / "k", cancelled=lambda: True)
    assert list(tmp_path.iterdir()) == []
