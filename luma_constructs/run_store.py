"""`RunStore`: everything a run needs to go on, in one bucket and one table.

The bucket mirrors run folders below `runs/`. The table holds states, slots, commits and claims; its
items are described in `docs/reference`. Whatever is only on an instance's disk may be lost at any
time.

Both are retained when their stack is deleted: a run can be resumed in a new stack that is given the
same bucket and table.
"""

from __future__ import annotations

from aws_cdk import Duration, RemovalPolicy, Stack, Tags
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from luma_constructs import _names
from luma_constructs._validation import Problems, is_known
from luma_constructs.run_store_grants import RunStoreGrants

__all__ = ["RunStore"]

_OLD_VERSIONS = Duration.days(7)


class RunStore(Construct):
    """The bucket and the table of a deployment's runs.

    Stateful: `removal_policy` decides what happens to the data when the stack goes.

    Args:
        bucket: where runs lie. Default: - a new bucket: private, TLS only, versioned, encrypted;
            old versions are kept for 7 days, so that a deleted checkpoint can be had back.
        table: run state, with the string keys `pk` and `sk`. Default: - a new table: pay per
            request, point-in-time recovery, encrypted, expiry by `expires_at`.
        encryption_key: key of the new bucket, the new table and the queues of the fleets that use
            this store. Default: - AWS-managed encryption.
        access_logs_bucket: where the new bucket's access logs go. Default: - no access logs.
        deployment_name: the name under which nodes and engineers find this deployment's parameters,
            `/luma/<name>/`. Default: - the stack's name.
        removal_policy: of the new bucket and table. Default: RemovalPolicy.RETAIN.

    Raises:
        PropError: a prop is not allowed.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        bucket: s3.IBucket | None = None,
        table: dynamodb.ITable | None = None,
        encryption_key: kms.IKey | None = None,
        access_logs_bucket: s3.IBucket | None = None,
        deployment_name: str | None = None,
        removal_policy: RemovalPolicy = RemovalPolicy.RETAIN,
    ) -> None:
        super().__init__(scope, id)
        self.deployment_name = deployment_name or Stack.of(self).stack_name
        """Name of the deployment, part of its parameters' names."""
        problems = Problems("RunStore", self)
        problems.check(
            is_known(self.deployment_name)
            and _names.DEPLOYMENT_NAME.fullmatch(self.deployment_name) is not None,
            "deployment_name",
            self.deployment_name,
            "1 to 128 letters, digits and '-', known at synth",
            "give deployment_name where the stack's name is a token",
        )
        problems.check(
            bucket is None or access_logs_bucket is None,
            "access_logs_bucket",
            access_logs_bucket,
            "nothing beside a bucket of your own",
            "set access logs on that bucket",
        )
        problems.raise_all()
        self.encryption_key = encryption_key
        """Customer's key of the data; None where AWS manages it."""
        self.bucket: s3.IBucket = bucket or _new_bucket(
            self, encryption_key, access_logs_bucket, removal_policy
        )
        """Where runs lie, below `runs/`."""
        self.table: dynamodb.ITable = table or _new_table(self, encryption_key, removal_policy)
        """Run state."""
        Tags.of(self).add(_names.DEPLOYMENT_TAG, self.deployment_name)

    @classmethod
    def from_run_store_attributes(
        cls,
        scope: Construct,
        id: str,
        *,
        bucket: s3.IBucket,
        table: dynamodb.ITable,
        deployment_name: str,
        encryption_key: kms.IKey | None = None,
    ) -> RunStore:
        """Give a store that exists already, such as that of another stack; no resource is made.

        Args:
            scope: the construct that it belongs to.
            id: of the import.
            bucket: where runs lie.
            table: run state.
            deployment_name: name of its deployment.
            encryption_key: key of both. Default: - AWS-managed encryption.
        """
        return cls(
            scope,
            id,
            bucket=bucket,
            table=table,
            deployment_name=deployment_name,
            encryption_key=encryption_key,
        )

    @property
    def grants(self) -> RunStoreGrants:
        """Permissions on the data."""
        return RunStoreGrants.from_store(self)

    @property
    def parameters_arn(self) -> str:
        """ARN pattern of the deployment's parameters, which everyone who follows runs may read."""
        return self._parameters(_names.parameter_root(self.deployment_name))

    @property
    def run_keys_arn(self) -> str:
        """ARN pattern of the data keys of runs that are sealed with a key file."""
        return self._parameters(_names.run_keys_root(self.deployment_name))

    def _parameters(self, root: str) -> str:
        """Give the ARN pattern of the parameters below a path."""
        name = f"{root.strip('/')}/*"
        return Stack.of(self).format_arn(service="ssm", resource="parameter", resource_name=name)


def _new_bucket(
    scope: Construct,
    key: kms.IKey | None,
    logs: s3.IBucket | None,
    removal_policy: RemovalPolicy,
) -> s3.Bucket:
    """Make the bucket. Nothing expires but old versions and uploads that were never completed."""
    return s3.Bucket(
        scope,
        "Bucket",
        encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
        encryption_key=key,
        bucket_key_enabled=True if key else None,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
        enforce_ssl=True,
        minimum_tls_version=1.2,
        versioned=True,
        server_access_logs_bucket=logs,
        server_access_logs_prefix="luma-runs/" if logs else None,
        lifecycle_rules=[
            s3.LifecycleRule(
                id="old-versions",
                noncurrent_version_expiration=_OLD_VERSIONS,
                abort_incomplete_multipart_upload_after=Duration.days(1),
                expired_object_delete_marker=True,
            )
        ],
        removal_policy=removal_policy,
    )


def _new_table(
    scope: Construct, key: kms.IKey | None, removal_policy: RemovalPolicy
) -> dynamodb.Table:
    """Make the table."""
    encryption = dynamodb.TableEncryption
    return dynamodb.Table(
        scope,
        "Table",
        partition_key=dynamodb.Attribute(
            name=_names.PARTITION_KEY, type=dynamodb.AttributeType.STRING
        ),
        sort_key=dynamodb.Attribute(name=_names.SORT_KEY, type=dynamodb.AttributeType.STRING),
        billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
        encryption=encryption.CUSTOMER_MANAGED if key else encryption.AWS_MANAGED,
        encryption_key=key,
        point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
            point_in_time_recovery_enabled=True
        ),
        time_to_live_attribute=_names.EXPIRES_AT,
        deletion_protection=removal_policy == RemovalPolicy.RETAIN,
        removal_policy=removal_policy,
    )
