"""A trained model beside an application that has a stack, and a `runtime/`, of its own."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3

from luma_constructs import InferenceService, Purchase, RunStore, acknowledge

HANDLER = """
import json, os, urllib.request
import boto3

KEY = boto3.client("secretsmanager").get_secret_value(SecretId=os.environ["KEY"])["SecretString"]

def answer(event, context):
    body = json.dumps({"model": "tiny-llama", "messages": event["messages"]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    url = os.environ["URL"] + "/v1/chat/completions"
    request = urllib.request.Request(url, body, headers)
    return json.load(urllib.request.urlopen(request, timeout=60))
"""


class ModelStack(cdk.Stack):
    """The run's model: one instance on demand, more on spot as requests come.

    Args:
        vpc: the application's network.
        runs: name of the bucket that the run's export lies in.
    """

    def __init__(self, scope: cdk.App, construct_id: str, *, vpc: ec2.IVpc, runs: str) -> None:
        super().__init__(scope, construct_id)
        bucket = s3.Bucket.from_bucket_name(self, "Bucket", runs)
        self.service = InferenceService(
            self,
            "Chat",
            vpc=vpc,
            store=RunStore(self, "Runs", bucket=bucket),
            run="tiny-llama",
            target="cuda-sm89",
            purchase=Purchase.mixed(on_demand_base=1),
            max_capacity=4,
        )
        acknowledge(self)


class ApplicationStack(cdk.Stack):
    """The application: a function that asks the model, and the only one who can.

    Args:
        vpc: its network.
        model: whom it asks.
    """

    def __init__(
        self, scope: cdk.App, construct_id: str, *, vpc: ec2.IVpc, model: InferenceService
    ) -> None:
        super().__init__(scope, construct_id)
        function = lambda_.Function(
            self,
            "Answer",
            runtime=lambda_.Runtime.PYTHON_3_13,
            handler="index.answer",
            code=lambda_.Code.from_inline(HANDLER),
            vpc=vpc,
            environment={"URL": model.url, "KEY": model.api_key.secret_arn},
            timeout=cdk.Duration.minutes(1),
        )
        model.api_key.grant_read(function)
        function.connections.allow_to(model, ec2.Port.tcp(model.listener_port), "the model")


def build(app: cdk.App) -> cdk.Stack:
    """Add the network, the model and the application."""
    network = cdk.Stack(app, "Network")
    vpc = ec2.Vpc(network, "Vpc", max_azs=2, restrict_default_security_group=False)
    model = ModelStack(app, "Model", vpc=vpc, runs="acme-runs")
    ApplicationStack(app, "Application", vpc=vpc, model=model.service)
    return model


if __name__ == "__main__":
    cdk_app = cdk.App()
    build(cdk_app)
    cdk_app.synth()
