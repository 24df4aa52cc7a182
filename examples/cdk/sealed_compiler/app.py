"""The compiler alone, in front of a bucket and a network that are there already.

cdk synth -a "python app.py"                        the host compiles, at L1
cdk synth -a "python app.py" -c image=luma.eif      a Nitro Enclave does, at L2
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from luma_constructs import EnclaveImage, RunStore, SealedCompiler, acknowledge

KEY = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


class CompilerStack(cdk.Stack):
    """A compiler for the customer "acme".

    Args:
        image: path of the enclave's image. Default: - none; the host compiles, at L1.
    """

    def __init__(self, scope: cdk.App, construct_id: str, *, image: str | None = None) -> None:
        super().__init__(scope, construct_id)
        vpc = ec2.Vpc.from_vpc_attributes(
            self,
            "Vpc",
            vpc_id="vpc-0123456789abcdef0",
            availability_zones=["eu-west-1a", "eu-west-1b"],
            private_subnet_ids=["subnet-0aaaaaaaaaaaaaaa0", "subnet-0bbbbbbbbbbbbbbb0"],
        )
        store = RunStore(
            self,
            "Runs",
            bucket=s3.Bucket.from_bucket_name(self, "Bucket", "acme-runs"),
            encryption_key=kms.Key.from_key_arn(self, "DataKey", KEY),
        )
        reader = iam.Role.from_role_name(self, "Reader", "acme-training-nodes")
        compiler = SealedCompiler(
            self,
            "Compiler",
            vpc=vpc,
            store=store,
            level="L2" if image else "L1",
            customer="acme",
            enclave_image=EnclaveImage.from_file(image) if image else None,
            agents=[reader],
            administrators=[iam.Role.from_role_name(self, "KeyAdmin", "acme-key-admins")],
        )
        cdk.CfnOutput(self, "Queue", value=compiler.queue.queue_url)
        acknowledge(self)


def build(app: cdk.App) -> cdk.Stack:
    """Add the stack, at L2 where the context names an image."""
    return CompilerStack(app, "Compiler", image=app.node.try_get_context("image"))


if __name__ == "__main__":
    cdk_app = cdk.App()
    build(cdk_app)
    cdk_app.synth()
