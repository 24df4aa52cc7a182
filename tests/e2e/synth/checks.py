"""All static checks of one synthesized stack, in the order of the summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.e2e.synth import idle, lint, machines, nag, permissions, roles, stateful
from tests.e2e.synth.findings import Finding
from tests.emulator.node import asl_validator
from tests.support.cdk import Assembly

REGIONS = ("us-east-1", "eu-west-1")
"""Where every resource type of the stack must exist."""


@dataclass(frozen=True)
class Check:
    """One check: what it is called, what it looks at, how it is run."""

    name: str
    what: str
    run: Callable[[Assembly], list[Finding]]


CHECKS = (
    Check("cfn-lint", "the template against CloudFormation's schemas",
          lambda a: lint.lint_findings(a.template, REGIONS)),
    Check("states schema", "each definition against the schema of the States Language",
          lambda a: lint.definition_findings(a.template)),
    Check("states graph", "every target exists, every state is reached and ends",
          lambda a: _each_machine(a, machines.graph_findings)),
    Check("states waits", "every wait for a node has a limit",
          lambda a: _each_machine(a, machines.task_findings)),
    Check("cdk-nag", "AwsSolutions, without a finding that nobody acknowledged",
          nag.nag_findings),
    Check("reasons", "every acknowledgement is needed and has a sentence",
          nag.acknowledgement_findings),
    Check("permissions", "no wildcard action, no wildcard resource without a condition",
          lambda a: permissions.permission_findings(a.template)),
    Check("roles", "every action of every role has a reason",
          roles.reason_findings),
    Check("retain", "data outlives the stack",
          lambda a: stateful.retention_findings(a.template)),
    Check("idle cost", "nothing costs money idle that nobody has said so of",
          lambda a: idle.idle_findings(a.template)),
    Check("custom resources", "none",
          lambda a: stateful.custom_resource_findings(a.template)),
    Check("literals", "no partition's name, nothing secret",
          lambda a: stateful.literal_findings(a.template)),
)  # fmt: skip
"""The checks that need nothing but what is installed with the tests."""


def asl_check() -> Check:
    """Give the check that asl-validator makes; `make synth` has installed it."""
    return Check(
        "asl-validator",
        "each definition, by AWS's own reading of the States Language",
        lambda a: _each_machine(
            a, lambda name, definition: machines.validator_findings(name, definition, asl_validator)
        ),
    )


def _each_machine(assembly: Assembly, check: Callable[[str, dict], list[Finding]]) -> list[Finding]:
    found = machines.definitions(assembly.template)
    if not found:
        return [Finding(machines.CHECK, assembly.stack, "has no state machine", "add one")]
    return [finding for name, machine in found.items() for finding in check(name, machine)]
