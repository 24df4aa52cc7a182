"""docs/reference/constructs.md, written from the constructs: their docstrings are the reference.

A prop, a default or a method that changes changes the page, and a test holds it to the code.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType

from constructs import Construct

import luma_constructs
from luma_constructs import (
    accelerator_fleet,
    acknowledgements,
    agent_bootstrap,
    coordinator_host,
    deployment_props,
    drain_document,
    enclave_image_file,
    external_fleet,
    external_identity,
    failover,
    fleet_budget,
    fleet_grants,
    fleet_interface,
    fleet_purchase,
    host_settings,
    inference_front,
    inference_service,
    luma_dashboard,
    luma_deployment,
    luma_stack,
    run_store,
    run_store_grants,
    runtime_asset,
    sealed_compiler,
    spot_interruption_rules,
    training_jobs,
)

MODULES: tuple[ModuleType, ...] = (
    luma_stack,
    luma_deployment,
    deployment_props,
    run_store,
    run_store_grants,
    accelerator_fleet,
    fleet_purchase,
    host_settings,
    agent_bootstrap,
    coordinator_host,
    sealed_compiler,
    enclave_image_file,
    external_fleet,
    external_identity,
    fleet_interface,
    fleet_grants,
    training_jobs,
    failover,
    spot_interruption_rules,
    drain_document,
    luma_dashboard,
    fleet_budget,
    inference_service,
    inference_front,
    runtime_asset,
    acknowledgements,
)
"""Public modules, in the order of the page."""

HEAD = """\
# Constructs

Written from the docstrings of `luma_constructs` by `python -m tests.e2e.synth --docs`, and held to
them by a test. How to join them: [use a construct](../how-to/use-a-construct.md).

All are checked on their templates, and the deployment in an emulated account; nothing was deployed
into AWS. Props are keyword-only. A wrong one raises `PropError` at synth, which names the prop, its
value, what is allowed and the remedy, all of them at once.
"""

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+): (.*(?:\n {4}.*)*)", re.MULTILINE)


def page() -> str:
    """Give the page."""
    return "\n".join([HEAD, *(_module(module) for module in MODULES)])


def public_classes(module: ModuleType) -> list[type]:
    """Give a module's public classes, in its own order."""
    found = (getattr(module, name) for name in module.__all__)
    classes = [one for one in found if inspect.isclass(one)]
    return sorted(classes, key=lambda one: not issubclass(one, Construct))


def _module(module: ModuleType) -> str:
    parts = [_class(one, module) for one in public_classes(module)]
    functions = [getattr(module, name) for name in module.__all__]
    parts += [
        f"## `{one.__name__}`\n\n{_imported(module, one.__name__)}\n\n{_first(one)}\n"
        for one in functions
        if inspect.isfunction(one)
    ]
    return "\n".join(parts)


def _class(one: type, module: ModuleType) -> str:
    lines = [f"## `{one.__name__}`", "", _imported(module, one.__name__), "", _summary(one), ""]
    props = list(_entries(one))
    if props:
        lines += ["| prop | what | default |", "|---|---|---|"]
        lines += [f"| `{name}` | {what} | {default} |" for name, what, default in props]
        lines.append("")
    members = list(_members(one))
    if members:
        lines += ["| member | what |", "|---|---|"]
        lines += [f"| `{name}` | {what} |" for name, what in members]
        lines.append("")
    bases = [base.__name__ for base in one.__mro__[1:] if _listed(base)]
    if bases:
        links = ", ".join(f"[`{base}`](#{base.lower()})" for base in bases)
        lines += [f"Also the members of {links}.", ""]
    return "\n".join(lines)


def _listed(one: type) -> bool:
    """Say whether a class has a place of its own on the page."""
    return any(one in public_classes(module) for module in MODULES)


def _imported(module: ModuleType, name: str) -> str:
    package = "luma_constructs" if name in luma_constructs.__all__ else module.__name__
    return f"`from {package} import {name}`"


def _summary(one: type) -> str:
    text = inspect.cleandoc(one.__doc__ or "")
    return " ".join(_SECTION.split(text, maxsplit=1)[0].split())


def _first(one: object) -> str:
    return " ".join(inspect.cleandoc(getattr(one, "__doc__", "") or "").split("\n\n")[0].split())


def _entries(one: type) -> Iterator[tuple[str, str, str]]:
    """Give (name, what, default) of each entry of the Args or Attributes of a docstring."""
    text = inspect.cleandoc(one.__doc__ or "")
    pieces = _SECTION.split(text)
    for kind, body in zip(pieces[1::2], pieces[2::2], strict=True):
        if kind not in {"Args", "Attributes"}:
            continue
        for name, what in _ENTRY.findall(textwrap.dedent(body)):
            said, _, default = " ".join(what.split()).partition("Default: ")
            shown = default.removeprefix("- ").strip().rstrip(".")
            plain = default.startswith("- ") or "`" in shown
            if not default:
                shown = "none" if name == "options" else "required"
            yield name, _cell(said.strip()), _cell(shown if plain or not default else f"`{shown}`")


def _members(one: type) -> Iterator[tuple[str, str]]:
    """Give public attributes, properties and methods, each with its first sentence.

    Those of a base class that is on the page itself are left out.
    """
    seen: set[str] = set()
    for owner in one.__mro__:
        if not owner.__module__.startswith("luma_constructs") or (
            owner is not one and _listed(owner)
        ):
            continue
        for name, what in _attributes(owner):
            if name not in seen:
                seen.add(name)
                yield f".{name}", what
        for name, member in vars(owner).items():
            if name.startswith("_") or name in seen:
                continue
            shown = _signature(name, member)
            if shown is not None:
                seen.add(name)
                yield shown, _sentence(_first(getattr(owner, name, member)))


def _attributes(owner: type) -> Iterator[tuple[str, str]]:
    """Give the attributes that a class sets and describes by a string behind the assignment."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for before, after in pairwise(function.body):
            target = _set_by(before)
            if target and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                yield target, _sentence(" ".join(str(after.value.value).split()))


def _set_by(statement: ast.stmt) -> str:
    """Give the public attribute of `self` that a statement sets, "" for none."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    for target in targets:
        if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
            return target.attr
    return ""


def _sentence(text: str) -> str:
    return _cell(text.split(". ", maxsplit=1)[0].rstrip("."))


def _signature(name: str, member: object) -> str | None:
    if isinstance(member, property):
        return f".{name}"
    if isinstance(member, classmethod | staticmethod):
        member = member.__func__
        return f"{name}{_parameters(member, skip=1)}"
    if inspect.isfunction(member):
        return f".{name}{_parameters(member, skip=1)}"
    return None


def _parameters(function: object, *, skip: int) -> str:
    assert callable(function)
    names = list(inspect.signature(function).parameters)[skip:]
    return f"({', '.join(names)})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
