"""`RuntimeAsset`: the runtime that instances install, as one deterministic file.

The same sources give the same bytes, so the same asset hash, on every machine: files in order, no
times, no compression (whose bytes differ between versions of zlib), and no Docker.

In Luma's repository the file is made from the tree at synth. The distribution `luma-constructs`
carries it ready made, so that another CDK app may have a folder `runtime/` of its own.
"""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from luma_constructs._bundle import BUNDLED, RuntimeSourceError, bundle, repository_of

__all__ = ["RuntimeAsset", "RuntimeSourceError", "runtime_bytes"]

_PACKAGE = Path(__file__).resolve().parent
_ID = "LumaRuntime"


class RuntimeAsset(Construct):
    """The runtime in the account's asset bucket. `RuntimeAsset.of` gives one for a whole stack.

    Raises:
        RuntimeSourceError: the package has no bundled runtime and lies in no checkout of Luma.
    """

    def __init__(self, scope: Construct, id: str) -> None:
        super().__init__(scope, id)
        content = runtime_bytes()
        self.digest = hashlib.sha256(content).hexdigest()
        """SHA-256 of the file, in hex: instances check it, and the asset's hash follows from it."""
        # CDK copies the file into the cloud assembly while the asset is made.
        with tempfile.TemporaryDirectory(prefix="luma-runtime-") as folder:
            path = Path(folder, "runtime.zip")
            path.write_bytes(content)
            self.asset = s3_assets.Asset(
                self, "Asset", path=str(path), asset_hash=self.digest, display_name="Luma runtime"
            )
        """The asset."""

    @classmethod
    def of(cls, scope: Construct) -> RuntimeAsset:
        """Give the stack's one runtime, made when it is first asked for."""
        stack = Stack.of(scope)
        found = stack.node.try_find_child(_ID)
        return found if isinstance(found, cls) else cls(stack, _ID)

    @property
    def url(self) -> str:
        """S3 URL of the file."""
        return self.asset.s3_object_url

    def grant_read(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let an instance fetch this one file."""
        # Not the asset's own method: it grants `s3:GetObject*` and more on the whole bucket.
        arn = self.asset.bucket.arn_for_objects(self.asset.s3_object_key)
        return iam.Grant.add_to_principal(
            grantee=grantee, actions=["s3:GetObject"], resource_arns=[arn]
        )


@cache
def runtime_bytes() -> bytes:
    """Give the runtime's file: the one that the distribution carries, else one from the tree.

    Raises:
        RuntimeSourceError: there is neither.
    """
    bundled = _PACKAGE / BUNDLED
    if bundled.is_file():
        return bundled.read_bytes()
    root = repository_of(_PACKAGE)
    if root is None:
        raise RuntimeSourceError(
            f"no runtime: neither {BUNDLED} in {_PACKAGE} nor Luma's repository around it; "
            "install luma-constructs from its wheel"
        )
    return bundle(root, _PACKAGE)
