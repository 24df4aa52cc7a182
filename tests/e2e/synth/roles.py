"""What each role may do, and why: docs/reference/roles.md is written from the template.

An action without a reason is a finding, and so is a reason that no role needs any more. The page is
the readable difference of a change: a new permission is a new row in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.e2e.synth.findings import Finding
from tests.e2e.synth.reasons import OF_RESOURCES, REASONS, TITLES
from tests.e2e.synth.statements import Statement, statements
from tests.support.cdk import Assembly

CHECK = "roles"

_OWN_ACCOUNT = re.compile(r"arn:<AWS::Partition>:([a-z0-9-]*):<AWS::Region>:<AWS::AccountId>:")
_ASSET = re.compile(r"arn:<AWS::Partition>:s3:::cdk-[^/]+/[0-9a-f]{64}\.zip")
_PLACE = re.compile(r"<([A-Za-z0-9]+)((?:\.[A-Za-z0-9]+)*)>")


@dataclass(frozen=True, order=True)
class Row:
    """One action of a role.

    Attributes:
        role: what the role is for, a key of `TITLES`.
        action: the action.
        resource: what it is about, with construct paths for references.
        condition: when it is allowed; "" for always.
    """

    role: str
    action: str
    resource: str
    condition: str


def rows(assembly: Assembly) -> list[Row]:
    """Give every allowed action of every role of a stack."""
    paths = assembly.logical_ids()
    found = {
        Row(
            title,
            action,
            _readable(resource, paths).replace(f"<{title}/", "<OWN/"),
            _condition(statement, paths),
        )
        for statement in statements(assembly.template)
        if statement.kind == "identity" and statement.effect == "Allow"
        for role in statement.roles
        for title in (_title(paths.get(role, role)),)
        for action in statement.actions
        for resource in statement.resources
    }
    return sorted(found)


def reason_findings(assembly: Assembly) -> list[Finding]:
    """Actions without a reason, roles without a title, reasons that nothing needs."""
    found = []
    used = set()
    allowed = {(row.role, row.action) for row in rows(assembly)}
    for role in sorted({role for role, _ in allowed} - set(TITLES)):
        found.append(Finding(CHECK, role, "is a role that reasons.py does not know",
                             "add it to TITLES"))  # fmt: skip
    for role, action in sorted(allowed):
        key = _reason_key(role, action)
        if key is None:
            found.append(Finding(CHECK, role, f"may {action}, and nothing says why",
                                 "add the reason to reasons.py, or take the action away"))  # fmt: skip
        else:
            used.add(key)
    stale = [(role or "every role", action) for role, action in sorted(set(REASONS) - used)]
    every = rows(assembly)
    stale += [
        (resource, action)
        for action, resource in OF_RESOURCES
        if not any(row.action == action and resource in row.resource for row in every)
    ]
    return found + [
        Finding(CHECK, where, f"{action} has a reason and is allowed nowhere", "remove the reason")
        for where, action in stale
    ]


def page(assembly: Assembly) -> str:
    """Give docs/reference/roles.md; roles that may do the same share a table."""
    by_role: dict[str, list[Row]] = {}
    for row in rows(assembly):
        by_role.setdefault(row.role, []).append(row)
    tables: dict[str, list[str]] = {}
    for title in TITLES:
        if title in by_role:
            tables.setdefault(_table(by_role[title]), []).append(title)
    return "\n".join([_HEAD, *(_section(titles, table) for table, titles in tables.items())])


def _section(titles: list[str], table: str) -> str:
    what = "\n".join(f"- `{title}`: {TITLES[title]}" for title in titles)
    heading = ", ".join(titles)
    return f"## {heading}\n\n{what}\n\n{table}"


_HEAD = """\
# What each role may do, and why

Written from the synthesized stack by `python -m tests.e2e.synth --docs`, and held to it by a test: a
permission that is not here is in no policy of the stack. Names in angle brackets are constructs of
the stack; `OWN` is the role's own construct, `NAME` stands for each fleet. IAM was never asked: these
are the policies of the template, which no emulator enforces.

No action has a wildcard. An action on `*` or on all instances has a condition: AWS knows no narrower
resource for it.
"""


def _table(found: Iterable[Row]) -> str:
    """Give the rows of one role; what has the same limits and the same reason shares one."""
    actions: dict[tuple[str, str, str], list[str]] = {}
    for row in found:
        why = _reason(row) or "?"
        actions.setdefault((row.resource, row.condition, why), []).append(row.action)
    resources: dict[tuple[str, str, str], list[str]] = {}
    for (resource, condition, why), names in actions.items():
        listed = ", ".join(f"`{name}`" for name in names)
        resources.setdefault((listed, condition, why), []).append(f"`{resource}`")
    lines = ["| actions | on | when | why |", "|---|---|---|---|"]
    for (listed, condition, why), where in sorted(resources.items()):
        lines.append(f"| {listed} | {', '.join(where)} | {condition or 'always'} | {why} |")
    return "\n".join(lines) + "\n"


def _reason(row: Row) -> str | None:
    """A resource's own reason wins over the action's."""
    for (action, resource), why in OF_RESOURCES.items():
        if row.action == action and resource in row.resource:
            return why
    key = _reason_key(row.role, row.action)
    return REASONS[key] if key else None


def _reason_key(role: str, action: str) -> tuple[str, str] | None:
    """A role's own reason wins over the one for every role."""
    return next((key for key in ((role, action), ("", action)) if key in REASONS), None)


def _title(path: str) -> str:
    """What a role is for: its construct's path in the stack, without the parts CDK adds."""
    parts = _inner(path).split("/")
    while parts and parts[-1] in {"Resource", "Role", "ServiceRole", "DefaultPolicy"}:
        parts.pop()
    return "/".join(parts)


def _inner(path: str) -> str:
    """A construct's path below its stack; every fleet is called NAME, for they have the same role."""
    parts = [part for part in path.split("/")[1:] if part != "Default"]
    if parts[:1] == ["Fleets"]:
        parts[1] = "NAME"
    return "/".join(parts)


def _readable(value: str, paths: Mapping[str, str]) -> str:
    """Put construct paths in the place of logical ids, and leave out whose account it is."""

    def named(match: re.Match[str]) -> str:
        path = paths.get(match[1])
        return match[0] if path is None else f"<{_inner(path).removesuffix('/Resource')}>"

    shown = _ASSET.sub("<the runtime>", value)
    return _OWN_ACCOUNT.sub(r"\1:", _PLACE.sub(named, shown))


def _condition(statement: Statement, paths: Mapping[str, str]) -> str:
    parts = []
    for operator, tests in sorted(statement.conditions.items()):
        for key, value in sorted(tests.items()):
            shown = value if isinstance(value, str) else json.dumps(_flat(value))
            if key.endswith("/luma:fleet"):
                shown = "the fleet's"
            parts.append(f"{operator} `{key}` = `{_readable(shown, paths)}`")
    return " and ".join(parts)


def _flat(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value
