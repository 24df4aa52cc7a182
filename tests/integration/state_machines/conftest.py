"""One emulated account with the deployed machines for each module of tests."""

import json

import pytest

from tests.emulator.branches import record_all
from tests.emulator.server import EmulatedServer
from tests.integration.state_machines.world import World
from tests.support.cdk import synthesized
from tests.unit.constructs.orchestration.stacks import DEPLOYMENT, machines


@pytest.fixture(scope="module")
def deployed():
    template = synthesized(machines).template
    with EmulatedServer() as server:
        server.client("cloudformation").create_stack(
            StackName=DEPLOYMENT,
            TemplateBody=json.dumps(template),
            Capabilities=["CAPABILITY_IAM"],
        )
        yield World(server)
        record_all(server)


@pytest.fixture
def world(deployed):
    deployed.clear()
    return deployed
