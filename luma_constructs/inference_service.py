"""`InferenceService`: a run's model behind an internal load balancer, on spot where it may be.

    service = InferenceService(
        self, "Chat", vpc=vpc, store=store, run="tiny-llama", model_name="tiny-llama",
        target="cuda-sm89", purchase=Purchase.mixed(on_demand_base=1), max_capacity=4,
    )
    service.connections.allow_from(clients, ec2.Port.tcp(service.listener_port))

Each instance runs `luma serve` on the run's export. On a notice it leaves the load balancer, lets
requests in flight end, and a replacement that was asked for earlier takes over. The group follows the
requests in flight. Checked on the template; no instance was ever started.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final, Unpack, cast

import jsii
from aws_cdk import Aws, Duration, Stack, Tags
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from luma_constructs import _fleet_parts as parts
from luma_constructs import _names
from luma_constructs._fleet_types import choose_types
from luma_constructs._node_template import host_parts
from luma_constructs._validation import Problems
from luma_constructs.agent_bootstrap import instance_commands, unpack_commands
from luma_constructs.fleet_interface import MetricOptions
from luma_constructs.fleet_purchase import Purchase
from luma_constructs.host_settings import HostSettings
from luma_constructs.inference_front import DRAIN, PORT, InferenceFront
from luma_constructs.run_store import RunStore
from luma_constructs.runtime_asset import RuntimeAsset

__all__ = ["InferenceService"]

_RUN: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,95}", re.ASCII)
_SPOT: Final = Purchase.spot()
_METRIC: Final = "InFlight"


@jsii.implements(iam.IGrantable, ec2.IConnectable)
class InferenceService(Construct):
    """Instances that answer OpenAI chat completions from a run's export.

    Its connections are those of the load balancer: allow the clients. Nothing else may connect.

    Args:
        vpc: network of load balancer and instances.
        store: where the run lies.
        run: name of the run, whose `export/` is served.
        target: chip to serve on, such as "cuda-sm89" or "cpu".
        model_name: the model's name for clients. Default: - the run's name.
        purchase: how instances are bought. Default: Purchase.spot()
        min_capacity: least instances. Default: 1
        max_capacity: most instances. Default: 4
        target_in_flight: requests in flight of an instance that the group aims at. Default: 16
        instance_types: listed types to use. Default: - all listed types with exactly the target's
            chips.
        unlisted_instance_types: types that the catalogue does not have, used unchecked. Default: -
            none.
        api_key: what clients must send. Default: - a new, generated secret.
        certificate: for HTTPS. Default: - none; HTTP inside of the VPC.
        access_logs_bucket: where access logs of the load balancer go; the stack must then have a
            region. Default: - no access logs.
        vpc_subnets: where load balancer and instances go. Default: - private subnets of every zone.
        role: of the instances. Default: - a new one.
        host: image, disk and packages. Default: - `HostSettings()`

    Raises:
        PropError: props that cannot work, all of them at once.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        vpc: ec2.IVpc,
        store: RunStore,
        run: str,
        target: str,
        model_name: str | None = None,
        purchase: Purchase = _SPOT,
        min_capacity: int = 1,
        max_capacity: int = 4,
        target_in_flight: int = 16,
        instance_types: Sequence[ec2.InstanceType] | None = None,
        unlisted_instance_types: Sequence[ec2.InstanceType] = (),
        api_key: secretsmanager.ISecret | None = None,
        certificate: acm.ICertificate | None = None,
        access_logs_bucket: s3.IBucket | None = None,
        vpc_subnets: ec2.SubnetSelection | None = None,
        role: iam.IRole | None = None,
        host: HostSettings | None = None,
    ) -> None:
        super().__init__(scope, id)
        host = host or HostSettings()
        name = model_name or run
        problems = Problems("InferenceService", self)
        _check(problems, run, name, purchase, min_capacity, max_capacity, target_in_flight)
        host.check(problems)
        parsed, types = choose_types(
            problems,
            target,
            named=instance_types,
            unlisted=unlisted_instance_types,
            purchase=purchase,
            region=Stack.of(self).region,
        )
        self.api_key: secretsmanager.ISecret = api_key or _new_key(self)
        """Secret whose value clients send as bearer token."""
        self.role = parts.fleet_role(self, role)
        """Role of the instances."""
        subnets = vpc_subnets or ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS)
        self.front = InferenceFront(
            self,
            "Front",
            vpc=vpc,
            vpc_subnets=subnets,
            certificate=certificate,
            access_logs_bucket=access_logs_bucket,
        )
        """The load balancer with its target group and metrics."""
        group = ec2.SecurityGroup(self, "SecurityGroup", vpc=vpc, description="Luma gateways")
        template = parts.launch_template(
            self,
            "Template",
            host_parts(
                host,
                family=parsed.family,
                architecture=types.architecture,
                user_data=self._user_data(store, run, name, host),
                role=self.role,
                security_group=group,
            ),
        )
        self.auto_scaling_group = parts.fleet_group(
            self,
            vpc=vpc,
            vpc_subnets=subnets,
            min_capacity=min_capacity,
            max_capacity=max_capacity,
            purchase=purchase,
            templates=[(template, types.names)],
            drain_timeout=DRAIN,
            serves=True,
        )
        """The instances."""
        self.front.add_group(self.auto_scaling_group)
        self.auto_scaling_group.scale_to_track_metric(
            "Load",
            metric=self.metric_in_flight(),
            target_value=target_in_flight,
            estimated_instance_warmup=Duration.minutes(5),
        )
        self._allow(store, run, host)
        Tags.of(self).add(_names.DEPLOYMENT_TAG, store.deployment_name)

    @property
    def grant_principal(self) -> iam.IPrincipal:
        """The instances, as a principal."""
        return self.role.grant_principal

    @property
    def connections(self) -> ec2.Connections:
        """The load balancer, as a network: what clients connect to."""
        return self.front.connections

    @property
    def listener_port(self) -> int:
        """Port that clients connect to."""
        return self.front.listener_port

    @property
    def url(self) -> str:
        """Base URL of the API, for an OpenAI client."""
        return self.front.url

    def metric_in_flight(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the requests in flight of an instance, average over a minute."""
        chosen: MetricOptions = {"statistic": "Average", "period": Duration.minutes(1)}
        chosen.update(options)
        return cloudwatch.Metric(
            namespace=_names.METRIC_NAMESPACE,
            metric_name=_METRIC,
            dimensions_map={"Service": self.node.addr},
            **chosen,
        )

    def metric_errors(self, **options: Unpack[MetricOptions]) -> cloudwatch.IMetric:
        """Give the answers with status 5xx of the instances, sum over a minute."""
        return self.front.metric_errors(**options)

    def metric_response_time(self, **options: Unpack[MetricOptions]) -> cloudwatch.IMetric:
        """Give the time to the first byte of an answer, in seconds, 95th percentile."""
        return self.front.metric_response_time(**options)

    def _user_data(
        self, store: RunStore, run: str, model_name: str, host: HostSettings
    ) -> ec2.UserData:
        """Give what makes an instance a server."""
        asset = RuntimeAsset.of(self)
        asset.grant_read(self.role)
        options = {
            "--model": store.bucket.s3_url_for_object(f"{_names.RUNS_PREFIX}{run}/export/"),
            "--name": model_name,
            "--port": str(PORT),
            "--region": Aws.REGION,
            "--target-group": self.front.target_group.target_group_arn,
            "--service": self.node.addr,
            "--secret": self.api_key.secret_arn,
        }
        if host.wheels is not None:
            options["--wheels"] = host.wheels.url
        words = " ".join(f"{option} {shlex.quote(value)}" for option, value in options.items())
        return instance_commands(
            [*unpack_commands(asset), f"bash /opt/luma/src/node/serve_host.sh {words}"]
        )

    def _allow(self, store: RunStore, run: str, host: HostSettings) -> None:
        """Give the role what a server does: read one export and the key, leave, report."""
        prefix = f"{_names.RUNS_PREFIX}{run}/export/"
        grant = iam.Grant.add_to_principal
        grant(
            grantee=self.role,
            actions=["s3:GetObject"],
            resource_arns=[store.bucket.arn_for_objects(f"{prefix}*")],
        )
        grant(
            grantee=self.role,
            actions=["s3:ListBucket"],
            resource_arns=[store.bucket.bucket_arn],
            conditions={"StringLike": {"s3:prefix": [f"{prefix}*"]}},
        )
        if store.encryption_key is not None:
            store.encryption_key.grant(self.role, "kms:Decrypt")
        grant(
            grantee=self.role,
            actions=["secretsmanager:GetSecretValue"],
            resource_arns=[self.api_key.secret_arn],
        )
        if self.api_key.encryption_key is not None:
            self.api_key.encryption_key.grant(self.role, "kms:Decrypt")
        grant(
            grantee=self.role,
            actions=["elasticloadbalancing:DeregisterTargets"],
            resource_arns=[self.front.target_group.target_group_arn],
        )
        parts.allow_metrics(self.role)
        if host.wheels is not None:
            host.wheels.grant_read(self.role)


def _new_key(scope: Construct) -> secretsmanager.ISecret:
    """Make the clients' key: random, and in no template."""
    secret = secretsmanager.Secret(
        scope,
        "ApiKey",
        description="Bearer token of a Luma gateway",
        generate_secret_string=secretsmanager.SecretStringGenerator(
            exclude_punctuation=True, password_length=48
        ),
    )
    return cast("secretsmanager.ISecret", secret)  # a parameter has two names


def _check(
    problems: Problems,
    run: str,
    model_name: str,
    purchase: Purchase,
    min_capacity: int,
    max_capacity: int,
    target_in_flight: int,
) -> None:
    """Note what is wrong with the props that need no catalogue."""
    problems.check(
        _RUN.fullmatch(run) is not None, "run", run, "a run's name: 1 to 63 of a-z, 0-9 and '-'"
    )
    problems.check(
        _MODEL.fullmatch(model_name) is not None,
        "model_name",
        model_name,
        "1 to 96 letters, digits and any of '._/-'",
    )
    problems.check(not purchase.problem, "purchase", purchase, purchase.problem)
    problems.whole("max_capacity", max_capacity, 1, 1000)
    problems.whole("min_capacity", min_capacity, 0, 1000)
    problems.check(
        min_capacity <= max_capacity,
        "min_capacity",
        min_capacity,
        f"at most max_capacity ({max_capacity})",
    )
    problems.whole("target_in_flight", target_in_flight, 1, 10_000)
