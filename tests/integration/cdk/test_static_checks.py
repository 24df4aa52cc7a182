"""Every static check over the stack of app.py with everything that it can have: nothing is found."""

from __future__ import annotations

import re

import pytest

from tests.e2e.synth import idle, machines, roles
from tests.e2e.synth.__main__ import ROLES_PAGE
from tests.e2e.synth.checks import CHECKS, asl_check
from tests.e2e.synth.stack import default_stack
from tests.support.cdk import ROOT, Assembly, synthesized
from tests.unit.constructs.stack import stacks

pytestmark = pytest.mark.timeout(600)  # a busy machine synthesizes slowly


@pytest.fixture(scope="module")
def stack() -> Assembly:
    return synthesized(default_stack, nag=True)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_stack_passes(stack, check):
    assert [str(finding) for finding in check.run(stack)] == []


@pytest.mark.parametrize("build", [stacks.public, stacks.own_everything, stacks.in_china])
@pytest.mark.parametrize("name", ["cdk-nag", "reasons", "permissions", "cfn-lint"])
def test_other_shapes_pass_too(build, name):
    """Another network, brought resources, another partition: other policies, other logical ids."""
    (check,) = (check for check in CHECKS if check.name == name)
    shape = synthesized(build, nag=True)
    assert [str(finding) for finding in check.run(shape)] == []


def test_the_stack_is_not_empty(stack):
    """An app that lost its constructs must not pass for a sound one."""
    assert len(stack.template["Resources"]) >= 140
    assert len(machines.definitions(stack.template)) >= 3
    assert len(list(stack.acknowledgements())) >= 20
    assert len(roles.rows(stack)) >= 60


def test_asl_validator_takes_every_definition(stack):
    assert [str(finding) for finding in asl_check().run(stack)] == []


def test_asl_validator_does_find_a_lost_target(stack):
    from tests.emulator.node import asl_validator

    name, definition = next(iter(machines.definitions(stack.template).items()))
    first = definition["States"][definition["StartAt"]]
    first["Next"] = "Nope"
    found = machines.validator_findings(name, definition, asl_validator)
    assert "MISSING_TRANSITION_TARGET" in str(found[0])


def test_the_page_of_roles_is_the_templates(stack):
    """`python -m tests.e2e.synth --roles` writes it again."""
    assert roles.page(stack) == ROLES_PAGE.read_text(encoding="utf-8")


def test_the_page_of_roles_names_every_role(stack):
    page = ROLES_PAGE.read_text(encoding="utf-8")
    assert {row.role for row in roles.rows(stack)} == set(
        re.findall(r"^- `(.+?)`: ", page, re.MULTILINE)
    )


def test_a_permission_without_a_reason_is_found(stack, monkeypatch):
    monkeypatch.delitem(roles.REASONS, ("", "sqs:ReceiveMessage"))
    found = [str(finding) for finding in roles.reason_findings(stack)]
    assert len(found) >= 3
    assert all("may sqs:ReceiveMessage, and nothing says why" in finding for finding in found)


def test_a_stale_reason_is_found(stack, monkeypatch):
    monkeypatch.setitem(roles.REASONS, ("", "s3:DeleteBucket"), "x")
    assert "s3:DeleteBucket has a reason and is allowed nowhere" in str(
        roles.reason_findings(stack)[0]
    )


def test_the_idle_cost_is_the_pages(stack):
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    costs = idle.costs(stack.template)
    network = costs["AWS::EC2::NatGateway"] + costs["AWS::EC2::EIP"]
    assert f"| {network:.2f} (0.045 and 0.005 an hour) |" in page
    alarms = costs["AWS::CloudWatch::Alarm"] / idle.USD_PER_MONTH["AWS::CloudWatch::Alarm"]
    assert set(costs) == {
        "AWS::EC2::NatGateway",
        "AWS::EC2::EIP",
        "AWS::CloudWatch::Dashboard",
        "AWS::CloudWatch::Alarm",
    }
    assert round(sum(costs.values())) == round(network + 3 + alarms / 10)
