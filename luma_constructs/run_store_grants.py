"""Permissions on a `RunStore`: readers, nodes at work, compilers, those who submit runs.

Each method gives one narrow set of actions on `runs/` and on the items of runs; the customer's key is
included where there is one. The table's partition keys are limited by `dynamodb:LeadingKeys`, so a
node can change runs and nodes, and never the claims on capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aws_cdk import aws_iam as iam

from luma_constructs import _names

if TYPE_CHECKING:
    from luma_constructs.run_store import RunStore

__all__ = ["RunStoreGrants"]

_READ_ITEMS = ("dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query")
_WRITE_ITEMS = (
    "dynamodb:PutItem",
    "dynamodb:UpdateItem",
    "dynamodb:DeleteItem",
    "dynamodb:ConditionCheckItem",
)
_PUT = ("s3:PutObject", "s3:AbortMultipartUpload")
_COMPILED_FROM = ("run.json", "plan.json", "job.yaml", "model.graph", "artifact.json")
_COMPILED_TO = ("artifact.luma", "artifact.json", "signer.pem", "logs/*")
_FOLLOWED = (
    "run.json",
    "plan.json",
    "job.yaml",
    "artifact.luma",
    "artifact.json",
    "signer.pem",
    "certificate.json",
    "events.jsonl",
    "logs/*",
    "checkpoints/*",
    "export/*",
)
_NODE_KEYS = ("RUN#*", "NODE#*")
_ALL_KEYS = ("RUN#*", "NODE#*", "EVENT#*", "FLEET#*")


class RunStoreGrants:
    """What can be granted on a run store; each method gives the `iam.Grant`."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    @classmethod
    def from_store(cls, store: RunStore) -> RunStoreGrants:
        """Give the grants of a store."""
        return cls(store)

    def read(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let someone follow runs: read what a run tells, its items and the deployment's parameters.

        A run's `tls/` and data are not among it.
        """
        return self._with_key([*self._follow(grantee)], grantee, write=False)

    def work(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let a node work on runs, as an island or as their coordinator.

        Objects are read and written below `runs/` and deleted below a run's `checkpoints/` alone
        (old checkpoints are pruned); items of runs and nodes are read and written.
        """
        grants = [
            self._objects(grantee, ["s3:GetObject", *_PUT], ["*"]),
            self._objects(grantee, ["s3:DeleteObject"], ["*/checkpoints/*"]),
            self._list(grantee),
            self._items(grantee, (*_READ_ITEMS, *_WRITE_ITEMS), _NODE_KEYS),
            self.read_parameters(grantee),
            self._run_keys(grantee, ["ssm:GetParameter"]),
        ]
        return self._with_key(grants, grantee, write=True)

    def compile(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let a node compile runs: read a run's graph and job, write its artifact and log.

        It sees neither weights nor data, nor the keys of the islands' connections.
        """
        grants = [
            self._objects(grantee, ["s3:GetObject"], [f"*/{name}" for name in _COMPILED_FROM]),
            self._objects(grantee, list(_PUT), [f"*/{name}" for name in _COMPILED_TO]),
            self._list(grantee),
            self._items(grantee, (*_READ_ITEMS, *_WRITE_ITEMS), _NODE_KEYS),
            self.read_parameters(grantee),
            self._run_keys(grantee, ["ssm:GetParameter"]),
        ]
        return self._with_key(grants, grantee, write=True)

    def submit(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let an engineer or a pipeline prepare runs, follow them and ask for their end."""
        grants = [
            *self._follow(grantee),
            self._objects(grantee, list(_PUT), ["*"]),
            self._items(grantee, ("dynamodb:PutItem", "dynamodb:UpdateItem"), ("RUN#*",)),
            self._run_keys(grantee, ["ssm:PutParameter", "ssm:DeleteParameter"]),
        ]
        return self._with_key(grants, grantee, write=True)

    def _follow(self, grantee: iam.IGrantable) -> list[iam.Grant]:
        """Grant what following a run needs."""
        return [
            self._objects(grantee, ["s3:GetObject"], [f"*/{name}" for name in _FOLLOWED]),
            self._list(grantee),
            self._items(grantee, _READ_ITEMS, _ALL_KEYS),
            self.read_parameters(grantee),
        ]

    def _run_keys(self, grantee: iam.IGrantable, actions: Sequence[str]) -> iam.Grant:
        """Grant actions on the data keys of runs that are sealed with a key file."""
        return iam.Grant.add_to_principal(
            grantee=grantee, actions=list(actions), resource_arns=[self._store.run_keys_arn]
        )

    def read_parameters(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let someone read the deployment's parameters, and nothing else."""
        arn = self._store.parameters_arn
        # By-path reads are authorized on the path itself, without its last slash.
        paths = [arn, arn.removesuffix("/*")]
        return iam.Grant.add_to_principal(
            grantee=grantee,
            actions=["ssm:GetParameter", "ssm:GetParameters", "ssm:GetParametersByPath"],
            resource_arns=paths,
        )

    def _objects(
        self, grantee: iam.IGrantable, actions: Sequence[str], below: Sequence[str]
    ) -> iam.Grant:
        """Grant actions on objects below `runs/`."""
        bucket = self._store.bucket
        arns = [bucket.arn_for_objects(f"{_names.RUNS_PREFIX}{pattern}") for pattern in below]
        return iam.Grant.add_to_principal(
            grantee=grantee, actions=list(actions), resource_arns=arns
        )

    def _list(self, grantee: iam.IGrantable) -> iam.Grant:
        """Grant to list runs; without it S3 answers 403 for an object that is not there."""
        return iam.Grant.add_to_principal(
            grantee=grantee,
            actions=["s3:ListBucket"],
            resource_arns=[self._store.bucket.bucket_arn],
            conditions={"StringLike": {"s3:prefix": [f"{_names.RUNS_PREFIX}*"]}},
        )

    def _items(
        self, grantee: iam.IGrantable, actions: Sequence[str], keys: Sequence[str]
    ) -> iam.Grant:
        """Grant actions on items whose partition key has one of these forms."""
        return iam.Grant.add_to_principal(
            grantee=grantee,
            actions=list(actions),
            resource_arns=[self._store.table.table_arn],
            conditions={"ForAllValues:StringLike": {"dynamodb:LeadingKeys": list(keys)}},
        )

    def _with_key(
        self, grants: Sequence[iam.Grant], grantee: iam.IGrantable, *, write: bool
    ) -> iam.Grant:
        """Join grants, and add the use of the customer's key."""
        joined = grants[0]
        for grant in grants[1:]:
            joined = joined.combine(grant)
        key = self._store.encryption_key
        if key is None:
            return joined
        # Not the key's own facade: it grants `kms:GenerateDataKey*` and `kms:ReEncrypt*`.
        actions = ["kms:Decrypt", "kms:GenerateDataKey"] if write else ["kms:Decrypt"]
        return joined.combine(key.grant(grantee, *actions))
