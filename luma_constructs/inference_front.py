"""`InferenceFront`: an internal load balancer in front of gateways, whoever owns their instances.

    front = InferenceFront(self, "Front", vpc=vpc)
    front.add_group(instances_that_run_luma_serve)
    front.connections.allow_from(clients, ec2.Port.tcp(front.listener_port))

`InferenceService` makes one together with its instances; alone it takes an existing group.
"""

from __future__ import annotations

from typing import Final, Unpack

import jsii
from aws_cdk import Duration, Stack
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_elasticloadbalancingv2 as elbv2
from aws_cdk import aws_s3 as s3
from constructs import Construct

from luma_constructs._validation import Problems, is_known
from luma_constructs.fleet_interface import MetricOptions

__all__ = ["DRAIN", "PORT", "InferenceFront"]

PORT: Final = 8000
"""Port of the gateway on an instance, unless the author says another."""

DRAIN: Final = Duration.seconds(90)
"""How long answers in flight have on an instance that leaves."""


@jsii.implements(ec2.IConnectable)
class InferenceFront(Construct):
    """A load balancer inside of the VPC. Nobody may connect until its connections allow somebody.

    Args:
        vpc: its network.
        vpc_subnets: where it lies. Default: - private subnets of every zone.
        certificate: for HTTPS. Default: - none; HTTP inside of the VPC.
        port: of the gateway on an instance. Default: 8000
        access_logs_bucket: where access logs go; the stack must then have a region. Default: - no
            access logs.

    Raises:
        PropError: `port` is none, or there are access logs in no known region.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        vpc: ec2.IVpc,
        vpc_subnets: ec2.SubnetSelection | None = None,
        certificate: acm.ICertificate | None = None,
        port: int = PORT,
        access_logs_bucket: s3.IBucket | None = None,
    ) -> None:
        super().__init__(scope, id)
        problems = Problems("InferenceFront", self)
        problems.whole("port", port, 1, 65535)
        problems.check(
            access_logs_bucket is None or is_known(Stack.of(self).region),
            "access_logs_bucket",
            access_logs_bucket,
            "a stack with a region: the logs come from an account of AWS's that differs by region",
            "pass env=cdk.Environment(region=...) to the stack",
        )
        problems.raise_all()
        self.load_balancer = elbv2.ApplicationLoadBalancer(
            self,
            "LoadBalancer",
            vpc=vpc,
            vpc_subnets=vpc_subnets
            or ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS),
            internet_facing=False,
            drop_invalid_header_fields=True,
        )
        """The load balancer."""
        if access_logs_bucket is not None:
            self.load_balancer.log_access_logs(access_logs_bucket, "luma-inference")
        self.target_group = _new_target_group(self, vpc, port)
        """The instances, as the load balancer sees them."""
        self.listener_port = 443 if certificate else 80
        """Port that clients connect to."""
        protocol = elbv2.ApplicationProtocol
        self.load_balancer.add_listener(
            "Listener",
            port=self.listener_port,
            protocol=protocol.HTTPS if certificate else protocol.HTTP,
            certificates=[certificate] if certificate else None,
            ssl_policy=elbv2.SslPolicy.RECOMMENDED_TLS if certificate else None,
            open=False,
            default_target_groups=[self.target_group],
        )

    @property
    def connections(self) -> ec2.Connections:
        """The load balancer, as a network: what clients connect to."""
        return self.load_balancer.connections

    @property
    def url(self) -> str:
        """Base URL of the API, for an OpenAI client."""
        scheme = "https" if self.listener_port == 443 else "http"
        return f"{scheme}://{self.load_balancer.load_balancer_dns_name}/v1"

    def add_group(self, group: autoscaling.AutoScalingGroup) -> None:
        """Put instances behind the load balancer; it may connect to them at the gateway's port."""
        self.target_group.add_target(group)

    def metric_errors(self, **options: Unpack[MetricOptions]) -> cloudwatch.IMetric:
        """Give the answers with status 5xx of the instances, sum over a minute."""
        chosen: MetricOptions = {"statistic": "Sum", "period": Duration.minutes(1)}
        chosen.update(options)
        code = elbv2.HttpCodeTarget.TARGET_5XX_COUNT
        return self.target_group.metrics.http_code_target(code, **chosen)

    def metric_response_time(self, **options: Unpack[MetricOptions]) -> cloudwatch.IMetric:
        """Give the time to the first byte of an answer, in seconds, 95th percentile."""
        chosen: MetricOptions = {"statistic": "p95", "period": Duration.minutes(1)}
        chosen.update(options)
        return self.target_group.metrics.target_response_time(**chosen)


def _new_target_group(scope: Construct, vpc: ec2.IVpc, port: int) -> elbv2.ApplicationTargetGroup:
    """Make the target group.

    The gateway's readiness turns to 503 when it drains, so two checks at five seconds are the time in
    which it still gets requests; answers stream for minutes, hence the least busy instance is next.
    """
    algorithm = elbv2.TargetGroupLoadBalancingAlgorithmType
    return elbv2.ApplicationTargetGroup(
        scope,
        "Targets",
        vpc=vpc,
        port=port,
        protocol=elbv2.ApplicationProtocol.HTTP,
        target_type=elbv2.TargetType.INSTANCE,
        load_balancing_algorithm_type=algorithm.LEAST_OUTSTANDING_REQUESTS,
        deregistration_delay=DRAIN,
        health_check=elbv2.HealthCheck(
            path="/ready",
            healthy_http_codes="200",
            interval=Duration.seconds(5),
            timeout=Duration.seconds(2),
            healthy_threshold_count=2,
            unhealthy_threshold_count=2,
        ),
    )
