"""Two fleets in a network that another stack owns, with failover from one to the other."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_sns as sns

from luma_constructs import (
    AcceleratorFleet,
    FailoverStateMachine,
    Purchase,
    RunStore,
    SpotInterruptionRules,
    acknowledge,
)

PAGER = "platform-pager"
"""The topic that wakes people, which is there already."""


class TrainingStack(cdk.Stack):
    """Spot L4s first; a fleet on demand takes what spot cannot hold.

    Args:
        vpc: the company's network.
    """

    def __init__(self, scope: cdk.App, construct_id: str, *, vpc: ec2.IVpc) -> None:
        super().__init__(scope, construct_id)
        store = RunStore(self, "Runs")
        spot = AcceleratorFleet(
            self, "Spot", fleet_name="l4", target="cuda-sm89", vpc=vpc, store=store, order=0
        )
        floor = AcceleratorFleet(
            self,
            "Floor",
            fleet_name="l4-floor",
            target="cuda-sm89",
            vpc=vpc,
            store=store,
            purchase=Purchase.on_demand(),
            max_capacity=2,
            order=1,
        )
        spot.connect_islands(floor)
        pager = sns.Topic.from_topic_arn(
            self, "Pager", self.format_arn(service="sns", resource=PAGER)
        )
        failover = FailoverStateMachine(
            self, "Failover", fleets=[spot, floor], store=store, topic=pager
        )
        SpotInterruptionRules(self, "Interruptions").start(failover.state_machine)
        acknowledge(self)


def build(app: cdk.App) -> cdk.Stack:
    """Add both stacks."""
    network = cdk.Stack(app, "Network")
    vpc = ec2.Vpc(network, "Vpc", max_azs=2, restrict_default_security_group=False)
    return TrainingStack(app, "Training", vpc=vpc)


if __name__ == "__main__":
    cdk_app = cdk.App()
    build(cdk_app)
    cdk_app.synth()
