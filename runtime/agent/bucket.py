"""A prefix of an S3 bucket whose objects are written once.

Every object is put on condition that there is none of its name (`If-None-Match: *`, on a PUT and on
the completion of an upload in parts). Where there is one, it is ours if it has the same BLAKE3,
which stands in its metadata: two writers of the same bytes agree, others find out. Uploads that a
killed writer left open are never objects; the bucket's lifecycle rule removes them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.agent.checkpoint_files import FileRecord
from runtime.spec.aws import AwsError, aws_client, aws_errors, error_code
from runtime.spec.errors import CheckpointError, SpecError

_SCHEME = "s3://"
_DIGEST = "blake3"
# An object has 10,000 parts of 5 MiB to 5 GiB at most (S3 user guide, "Multipart upload limits").
_MAX_PARTS = 10_000
_PART_BYTES = 16 << 20
_THREADS = 4
_DELETED_AT_ONCE = 1000
_EXISTS = "PreconditionFailed"
# Another conditional write of that name was under way: "upload the object again" (S3 API).
_CONFLICT = "ConditionalRequestConflict"
_CONFLICTS = 5
# botocore adds a checksum to each part by itself. S3 refuses parts of an upload that was not begun
# with one ("expected checksum type: null"), and a completion that does not repeat them.
_CHECKSUM = "CRC32"
_CONFLICT_WAIT_S = 0.2


class ObjectExistsError(CheckpointError):
    """An object of that name, with other bytes, is in the bucket already."""


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A prefix of a bucket.

    Attributes:
        bucket: the bucket's name.
        prefix: what keys begin with, ending in `/`.
    """

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> BucketPlace:
        """Read `s3://BUCKET/PREFIX`.

        Raises:
            SpecError: it has another form.
        """
        bucket, _, prefix = url.removeprefix(_SCHEME).partition("/")
        if not url.startswith(_SCHEME) or not bucket or not prefix.strip("/"):
            raise SpecError(f"--store: {url!r}; expected s3://BUCKET/PREFIX")
        return cls(bucket, prefix.strip("/") + "/")

    def __str__(self) -> str:
        """Give the URL."""
        return f"{_SCHEME}{self.bucket}/{self.prefix}"


class Bucket:
    """Objects under one prefix.

    Args:
        place: where.
        client: a client of S3; default: `aws_client`.
        part_bytes: size of a part, and of the largest file that goes up in one request; 5 MiB at
            least.
    """

    def __init__(
        self, place: BucketPlace, *, client: Any = None, part_bytes: int = _PART_BYTES
    ) -> None:
        self.place = place
        self._s3 = client or aws_client("s3")
        self._part_bytes = part_bytes

    def url(self, name: str) -> str:
        """Give the URL of an object, for messages."""
        return f"{self.place}{name}"

    def folders(self, name: str) -> list[str]:
        """Give the names right under a folder that have something under them.

        Args:
            name: the folder, ending in `/`.
        """
        prefix = self.place.prefix + name
        found: list[str] = []
        with aws_errors(f"s3 ListObjectsV2 of {self.url(name)}"):
            pages = self._s3.get_paginator("list_objects_v2").paginate(
                Bucket=self.place.bucket, Prefix=prefix, Delimiter="/"
            )
            for page in pages:
                found += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
        return [entry.removeprefix(prefix).rstrip("/") for entry in found]

    def names(self, folder: str) -> Iterator[str]:
        """Give the names of all objects under a folder, without the folder."""
        prefix = self.place.prefix + folder
        with aws_errors(f"s3 ListObjectsV2 of {self.url(folder)}"):
            pages = self._s3.get_paginator("list_objects_v2").paginate(
                Bucket=self.place.bucket, Prefix=prefix
            )
            for page in pages:
                for entry in page.get("Contents", []):
                    yield entry["Key"].removeprefix(prefix)

    def read(self, name: str, *, max_bytes: int) -> bytes | None:
        """Give a small object's bytes, None where there is none.

        Raises:
            CheckpointError: it is larger than that.
            AwsError: AWS refuses.
        """
        from botocore.exceptions import ClientError

        with aws_errors(f"s3 GetObject of {self.url(name)}"):
            try:
                answer = self._s3.get_object(Bucket=self.place.bucket, Key=self.place.prefix + name)
            except ClientError as error:
                if error_code(error) in {"NoSuchKey", "404"}:
                    return None
                raise
            if answer["ContentLength"] > max_bytes:
                raise CheckpointError(
                    f"{self.url(name)}: {answer['ContentLength']} bytes; at most {max_bytes}"
                )
            return answer["Body"].read()

    def fetch(self, name: str, path: Path) -> None:
        """Download an object in parts into a new file.

        Raises:
            CheckpointError: there is none.
            AwsError: AWS refuses.
        """
        from boto3.exceptions import Boto3Error
        from boto3.s3.transfer import TransferConfig

        config = TransferConfig(multipart_chunksize=self._part_bytes, max_concurrency=_THREADS)
        what = f"s3 GetObject of {self.url(name)}"
        try:
            with aws_errors(what):
                self._s3.download_file(
                    self.place.bucket, self.place.prefix + name, str(path), Config=config
                )
        except Boto3Error:  # it was cut off again and again
            raise AwsError(f"{what}: the transfer broke off", reason="unreachable") from None
        except AwsError as error:
            if error.reason == "missing":
                raise CheckpointError(f"{self.url(name)}: missing") from None
            raise

    def put_bytes(self, name: str, data: bytes, record: FileRecord) -> None:
        """Write a new object in one request.

        Raises:
            ObjectExistsError: there is another one of that name.
            AwsError: AWS refuses.
        """
        self._once(name, record, lambda: self._put(name, data, record))

    def put_file(self, name: str, path: Path, record: FileRecord) -> None:
        """Write a new object from a file, in parts where it is large.

        Raises:
            ObjectExistsError: there is another one of that name.
            OSError: the file cannot be read.
            AwsError: AWS refuses.
        """
        if record.size_bytes <= self._part_bytes:
            self.put_bytes(name, path.read_bytes(), record)
        elif not self._has(name, record):  # a long upload for nothing, else
            self._once(name, record, lambda: self._put_parts(name, path, record))

    def delete(self, names: list[str]) -> None:
        """Remove objects; those that are gone already are fine.

        Raises:
            AwsError: AWS refuses.
        """
        for start in range(0, len(names), _DELETED_AT_ONCE):
            some = names[start : start + _DELETED_AT_ONCE]
            objects = [{"Key": self.place.prefix + name} for name in some]
            with aws_errors(f"s3 DeleteObjects of {self.place}"):
                answer = self._s3.delete_objects(
                    Bucket=self.place.bucket, Delete={"Objects": objects, "Quiet": True}
                )
            for failed in answer.get("Errors", []):
                raise AwsError(
                    f"s3 DeleteObjects of {self.place}: {failed.get('Code')}", reason="denied"
                )

    def _once(self, name: str, record: FileRecord, put: Callable[[], None]) -> None:
        """Put, unless the object is there with the same bytes."""
        from botocore.exceptions import ClientError

        with aws_errors(f"s3 PutObject of {self.url(name)}"):
            for attempt in range(_CONFLICTS):
                try:
                    put()
                    return
                except ClientError as error:
                    code = error_code(error)
                    # The first answer may have been lost, or another writer has the same bytes.
                    if code in {_EXISTS, _CONFLICT} and self._has(name, record):
                        return
                    if code != _CONFLICT or attempt + 1 == _CONFLICTS:
                        raise
                    time.sleep(_CONFLICT_WAIT_S)

    def _put(self, name: str, data: bytes, record: FileRecord) -> None:
        self._s3.put_object(
            Bucket=self.place.bucket,
            Key=self.place.prefix + name,
            Body=data,
            IfNoneMatch="*",
            Metadata={_DIGEST: record.blake3},
        )

    def _put_parts(self, name: str, path: Path, record: FileRecord) -> None:
        target = {"Bucket": self.place.bucket, "Key": self.place.prefix + name}
        upload = self._s3.create_multipart_upload(
            **target, Metadata={_DIGEST: record.blake3}, ChecksumAlgorithm=_CHECKSUM
        )
        target["UploadId"] = upload["UploadId"]
        size = max(self._part_bytes, -(-record.size_bytes // _MAX_PARTS))
        starts = range(0, record.size_bytes, size)

        def send(number: int) -> dict[str, Any]:
            with path.open("rb") as file:
                file.seek(starts[number])
                part = file.read(size)
            sent = self._s3.upload_part(
                **target, PartNumber=number + 1, Body=part, ChecksumAlgorithm=_CHECKSUM
            )
            told = {name: sent[name] for name in ("ETag", f"Checksum{_CHECKSUM}") if name in sent}
            return {"PartNumber": number + 1, **told}

        try:
            with ThreadPoolExecutor(_THREADS) as pool:
                parts = list(pool.map(send, range(len(starts))))
            self._s3.complete_multipart_upload(
                **target, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                self._s3.abort_multipart_upload(**target)
            raise

    def _has(self, name: str, record: FileRecord) -> bool:
        """Say whether the object is there with these bytes; False where there is none.

        Raises:
            ObjectExistsError: it is there with others.
        """
        from botocore.exceptions import ClientError

        try:
            head = self._s3.head_object(Bucket=self.place.bucket, Key=self.place.prefix + name)
        except ClientError as error:
            if error_code(error) in {"NoSuchKey", "404"}:
                return False
            raise
        if (head["ContentLength"], head["Metadata"].get(_DIGEST)) == (
            record.size_bytes,
            record.blake3,
        ):
            return True
        raise ObjectExistsError(
            f"{self.url(name)}: holds other bytes than {record.blake3[:16]}; "
            "checkpoints are never overwritten",
            remedy="launch the job under another name, or move the old run aside",
        )
