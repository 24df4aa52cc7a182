"""The bucket of runs: whole objects up and down, and conditional writes.

A download is retried a bounded number of times, then it is an error: a mount that fails for ever
must end in an answer. It goes to a hidden file first, so that a file under its own name is whole.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from runtime.spec.aws import AwsError, aws_client, aws_errors, error_code
from runtime.spec.errors import RunError

__all__ = ["Bucket", "Cancelled", "RemoteObject"]

_ATTEMPTS: Final = 2
"""Downloads of one object; in each, botocore asks several times by itself."""
_PAUSE_S: Final = 1.0
_EXISTS: Final = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict"})


class Cancelled(Exception):
    """The caller wants no more of it."""


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object of the bucket.

    Attributes:
        key: its key.
        size_bytes: its size.
    """

    key: str
    size_bytes: int


class Bucket:
    """A bucket.

    Args:
        name: its name.
        region: its region.
    """

    def __init__(self, name: str, *, region: str | None = None) -> None:
        self.name = name
        self._s3: Any = aws_client("s3", region=region)

    def list(self, prefix: str) -> Iterator[RemoteObject]:
        """Give the objects below a prefix, in the order of their keys.

        Raises:
            AwsError: the bucket cannot be read.
        """
        with aws_errors(f"list s3://{self.name}/{prefix}"):
            pages = self._s3.get_paginator("list_objects_v2").paginate(
                Bucket=self.name, Prefix=prefix
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    yield RemoteObject(item["Key"], int(item["Size"]))

    def read(self, key: str) -> bytes | None:
        """Read a small object, None where there is none.

        Raises:
            AwsError: the bucket cannot be read.
        """
        try:
            with aws_errors(f"read s3://{self.name}/{key}"):
                return self._s3.get_object(Bucket=self.name, Key=key)["Body"].read()
        except AwsError as error:
            if error.reason == "missing":
                return None
            raise

    def write(self, key: str, data: bytes, *, new: bool = False) -> bool:
        """Write a small object.

        Args:
            key: its key.
            data: its bytes.
            new: only where there is none of this key.

        Returns:
            Whether it was written; False where `new` and there is one.

        Raises:
            AwsError: the bucket cannot be written.
        """
        condition = {"IfNoneMatch": "*"} if new else {}
        with aws_errors(f"write s3://{self.name}/{key}"):
            try:
                self._s3.put_object(Bucket=self.name, Key=key, Body=data, **condition)
            except Exception as error:
                if new and hasattr(error, "response") and error_code(error) in _EXISTS:
                    return False
                raise
        return True

    @property
    def client(self) -> Any:
        """The client of S3, for requests that this class has no method for."""
        return self._s3

    def head(self, key: str) -> dict[str, Any] | None:
        """Give what S3 says of an object (`ContentLength`, `Metadata`, ...), None where none is.

        Raises:
            AwsError: the bucket cannot be read.
        """
        try:
            with aws_errors(f"look at s3://{self.name}/{key}"):
                return self._s3.head_object(Bucket=self.name, Key=key)
        except AwsError as error:
            if error.reason == "missing":
                return None
            raise

    def upload(self, path: Path, key: str, *, metadata: Mapping[str, str] | None = None) -> None:
        """Upload a file, in parts where it is large; it appears whole.

        Args:
            path: the file.
            key: the object's key.
            metadata: goes with the object.

        Raises:
            AwsError: the bucket cannot be written.
            RunError: the file cannot be read.
        """
        try:
            # Not `upload_file`, which wraps AWS's answer into an error of its own.
            with path.open("rb") as file, aws_errors(f"write s3://{self.name}/{key}"):
                self._s3.upload_fileobj(
                    file, self.name, key, ExtraArgs={"Metadata": dict(metadata or {})}
                )
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror})") from error

    def delete(self, key: str) -> None:
        """Delete an object; one that is not there is fine.

        Raises:
            AwsError: the bucket cannot be written.
        """
        with aws_errors(f"delete s3://{self.name}/{key}"):
            self._s3.delete_object(Bucket=self.name, Key=key)

    def download(
        self, key: str, path: Path, *, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Download an object into a file, which appears whole.

        Args:
            key: the object's key.
            path: the file; its folder is made.
            cancelled: asked now and then; True ends it.

        Raises:
            Cancelled: the caller said so.
            AwsError: it cannot be read, after a bounded number of attempts.
            RunError: the disk refuses.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._download_once(key, path, cancelled)
            except AwsError as error:
                if not error.transient or attempt == _ATTEMPTS:
                    raise
            time.sleep(_PAUSE_S)
        return None

    def download_tree(
        self,
        prefix: str,
        folder: Path,
        *,
        wanted: Callable[[str], bool] = lambda _: True,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> int:
        """Download the objects below a prefix into a folder.

        Args:
            prefix: it ends with `/`.
            folder: gets them, by the rest of their keys.
            wanted: which of them, by the rest of the key.
            cancelled: as `download`.

        Returns:
            How many there were.

        Raises:
            Cancelled: the caller said so.
            AwsError: one cannot be read, or a key leads out of the folder.
            RunError: the disk refuses.
        """
        count = 0
        for item in self.list(prefix):
            rest = item.key.removeprefix(prefix)
            if not rest or rest.endswith("/") or not wanted(rest):
                continue
            parts = PurePosixPath(rest).parts
            if ".." in parts or PurePosixPath(rest).is_absolute():
                raise RunError(f"s3://{self.name}/{item.key}: the key leads out of its folder")
            self.download(item.key, folder.joinpath(*parts), cancelled=cancelled)
            count += 1
        return count

    def _download_once(self, key: str, path: Path, cancelled: Callable[[], bool]) -> None:
        def look(_: int) -> None:
            if cancelled():
                raise Cancelled

        hidden = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        look(0)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with hidden.open("xb") as file, aws_errors(f"read s3://{self.name}/{key}"):
                self._s3.download_fileobj(self.name, key, file, Callback=look)
            hidden.rename(path)
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror})") from error
        finally:
            hidden.unlink(missing_ok=True)
