"""Every statement of a template: who may do what, on what, and under which condition.

Identity policies say what a role may do, trust policies who may be the role, resource policies who
may use a key, bucket, queue or topic. One walk finds them all, so that no policy hides in a resource
that a check has not heard of: anything that looks like a policy document is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.e2e.synth.intrinsics import is_function, plain, text

Kind = Literal["identity", "trust", "resource"]


@dataclass(frozen=True)
class Statement:
    """One statement of a policy in a template.

    Attributes:
        owner: logical id of the resource that holds the policy.
        kind: whose permissions it describes.
        roles: logical ids of the roles that have an identity policy.
        effect: "Allow" or "Deny".
        principal: as written, with placeholders; None in an identity policy.
        actions: actions, sorted; those of a NotAction have "not " in front.
        resources: what it is about, sorted; those of a NotResource have "not " in front.
        conditions: as written, with placeholders.
    """

    owner: str
    kind: Kind
    roles: tuple[str, ...]
    effect: str
    principal: Any
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: Mapping[str, Any]


def statements(template: Mapping[str, Any]) -> list[Statement]:
    """Find every statement of a template, in the template's order."""
    return [
        statement
        for name, resource in template["Resources"].items()
        for kind, document in _documents(resource.get("Properties", {}), resource["Type"])
        for statement in _read(name, resource, kind, document)
    ]


def _documents(value: Any, owner: str, key: str = "") -> Iterator[tuple[Kind, dict[str, Any]]]:
    """Find policy documents at any depth."""
    if isinstance(value, list):
        for item in value:
            yield from _documents(item, owner, key)
    elif isinstance(value, dict) and isinstance(value.get("Statement"), list | dict):
        yield _kind(owner, key), value
    elif isinstance(value, dict) and not is_function(value):
        for name, item in value.items():
            yield from _documents(item, owner, name)


def _kind(owner: str, key: str) -> Kind:
    if key == "AssumeRolePolicyDocument":
        return "trust"
    return "identity" if owner.startswith("AWS::IAM::") else "resource"


def _read(
    name: str, resource: Mapping[str, Any], kind: Kind, document: Mapping[str, Any]
) -> Iterator[Statement]:
    entries = document["Statement"]
    for entry in entries if isinstance(entries, list) else [entries]:
        yield Statement(
            owner=name,
            kind=kind,
            roles=_roles(name, resource),
            effect=entry["Effect"],
            principal=plain(entry.get("Principal", entry.get("NotPrincipal"))),
            actions=_either(entry, "Action"),
            resources=_either(entry, "Resource"),
            conditions=plain(entry.get("Condition", {})),
        )


def _roles(name: str, resource: Mapping[str, Any]) -> tuple[str, ...]:
    if resource["Type"] == "AWS::IAM::Role":
        return (name,)
    return tuple(text(role).strip("<>") for role in resource.get("Properties", {}).get("Roles", []))


def _either(entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = _texts(entry.get(key, []))
    found += [f"not {value}" for value in _texts(entry.get(f"Not{key}", []))]
    return tuple(sorted(found))


def _texts(value: Any) -> list[str]:
    return [text(item) for item in (value if isinstance(value, list) else [value])]
