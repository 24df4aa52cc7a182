"""cdk-nag's AwsSolutions pack: findings, and acknowledgements that are worth something.

The pack takes an empty reason and an acknowledgement of a rule that nothing breaks. Both are
findings here, so a reason stays true and a mended construct loses its excuse.
"""

from __future__ import annotations

import re

from tests.e2e.synth.findings import Finding
from tests.support.cdk import Assembly

CHECK = "cdk-nag"
PACK = "AwsSolutions::"

_SENTENCE = re.compile(r"[A-Z`].{38,}[.]", re.DOTALL)


def nag_findings(assembly: Assembly) -> list[Finding]:
    """Each rule that a construct breaks without an acknowledgement.

    Raises:
        ValueError: the pack did not run: no finding would then mean nothing.
    """
    return [
        Finding(CHECK, construct["constructPath"], f"{entry['ruleName']} {entry['description']}",
                f"mend it, or acknowledge '{PACK}{entry['ruleName']}' there with the reason")
        for entry in _plugin(assembly)["violations"]
        for construct in entry["violatingConstructs"]
    ]  # fmt: skip


def acknowledgement_findings(assembly: Assembly) -> list[Finding]:
    """Acknowledgements whose reason is no sentence, or that nothing needs."""
    used = {
        (entry["acknowledgedAt"], entry["acknowledgedId"])
        for entry in _plugin(assembly).get("suppressedViolations", [])
    }
    found = []
    ours = (entry for entry in assembly.acknowledgements() if entry[1].startswith(PACK))
    for path, rule, reason in ours:
        if not _SENTENCE.fullmatch(reason):
            found.append(Finding(CHECK, path, f"the reason for {rule} is no sentence: {reason!r}",
                                 "say in a sentence why the rule does not hold here"))  # fmt: skip
        if (path, rule) not in used:
            found.append(Finding(CHECK, path, f"nothing breaks the acknowledged {rule}",
                                 "remove the acknowledgement"))  # fmt: skip
    return found


def _plugin(assembly: Assembly) -> dict:
    for plugin in assembly.report.get("pluginReports", []):
        if plugin["pluginName"] == PACK.rstrip(":"):
            return plugin
    raise ValueError(f"{assembly.folder}: cdk-nag left no report")
