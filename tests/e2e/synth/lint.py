"""cfn-lint over a template, and over each state machine's definition as data.

A definition with references is a Fn::Join, which cfn-lint does not look into: as data, with
placeholders, it is held to the schema of the Amazon States Language.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.e2e.synth.findings import Finding
from tests.e2e.synth.machines import MACHINE, definitions

CHECK = "cfn-lint"

IGNORED: dict[str, str] = {
    "I1022": "CDK writes Fn::Join, never Fn::Sub",
    "W3005": "a dependency on a role's policy lists the role too, which a reference implies already",
}
"""Rules that are left out, with the reason."""


def lint_findings(template: Mapping[str, Any], regions: tuple[str, ...]) -> list[Finding]:
    """What cfn-lint says, informational rules included.

    Args:
        template: the template.
        regions: where it must be deployable: a type that is missing in one is a finding.
    """
    return _lint(json.dumps(template), regions)


def definition_findings(template: Mapping[str, Any]) -> list[Finding]:
    """What cfn-lint's schema of state machines says of each definition."""
    found = []
    for name, definition in definitions(template).items():
        machine = {
            "Type": MACHINE,
            "Properties": {"RoleArn": "arn:aws:iam::123456789012:role/r", "Definition": definition},
        }
        found += _lint(json.dumps({"Resources": {name: machine}}), ("us-east-1",))
    return found


def _lint(source: str, regions: tuple[str, ...]) -> list[Finding]:
    from cfnlint.api import lint
    from cfnlint.config import ManualArgs

    matches = lint(
        source,
        config=ManualArgs(regions=list(regions), include_checks=["I"], ignore_checks=[*IGNORED]),
    )
    return [
        Finding(CHECK, "/".join(str(part) for part in match.path or ["template"]),
                f"{match.rule.id} {match.message}", "see cfn-lint's rule")
        for match in matches
    ]  # fmt: skip
