"""The example apps synthesize, offline, into templates that the static checks have nothing against."""

from __future__ import annotations

import importlib.util
import json
from types import ModuleType

import aws_cdk as cdk
import pytest

from tests.e2e.synth import lint, permissions, stateful
from tests.support.cdk import ROOT, Assembly, assembled
from tests.support.eif import image_bytes

pytestmark = pytest.mark.timeout(600)  # a busy machine synthesizes slowly

EXAMPLES = ROOT / "examples" / "cdk"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/app.py"))


def app_module(name: str) -> ModuleType:
    """Load an example's app.py under a name of its own."""
    path = EXAMPLES / name / "app.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=NAMES)
def example(request, tmp_path_factory) -> Assembly:
    folder = tmp_path_factory.mktemp(request.param) / "out"
    return assembled(app_module(request.param).build, folder)


def stacks(assembly: Assembly) -> list[Assembly]:
    """Every stack of an example, the network's and the application's too."""
    paths = sorted(assembly.folder.glob("*.template.json"))
    return [Assembly(assembly.folder, path.name.removesuffix(".template.json")) for path in paths]


def test_there_are_three():
    assert NAMES == ["fleet_and_failover", "inference_service", "sealed_compiler"]
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in listed for name in NAMES)


def test_nothing_is_looked_up(example):
    manifest = json.loads((example.folder / "manifest.json").read_text(encoding="utf-8"))
    assert "missing" not in manifest


def test_cfn_lint_has_nothing_against_them(example):
    for stack in stacks(example):
        found = lint.lint_findings(stack.template, ("eu-west-1",))
        assert [str(finding) for finding in found] == []


def test_every_permission_has_a_limit(example):
    for stack in stacks(example):
        found = permissions.permission_findings(stack.template)
        own = [
            f for f in found if not f.where.startswith("Answer")
        ]  # CDK's, of a function in a VPC
        assert [str(finding) for finding in own] == []


def test_data_outlives_them(example):
    for stack in stacks(example):
        assert stateful.retention_findings(stack.template) == []
        assert stateful.custom_resource_findings(stack.template) == []


def test_the_compiler_boots_the_image_that_its_key_trusts(tmp_path):
    image = tmp_path / "luma.eif"
    image.write_bytes(image_bytes())
    module = app_module("sealed_compiler")

    def build(app: cdk.App) -> cdk.Stack:
        return module.CompilerStack(app, "Compiler", image=str(image))

    sealed = assembled(build, tmp_path / "out")
    (key,) = sealed.of_type("AWS::KMS::Key").values()
    assert "kms:RecipientAttestation:ImageSha384" in json.dumps(key["Properties"]["KeyPolicy"])
    (template,) = sealed.of_type("AWS::EC2::LaunchTemplate").values()
    assert template["Properties"]["LaunchTemplateData"]["EnclaveOptions"] == {"Enabled": True}


def test_nobody_but_the_application_reaches_the_model(tmp_path):
    module = app_module("inference_service")
    model = assembled(module.build, tmp_path / "out")
    application = Assembly(model.folder, "Application")
    (rule,) = application.of_type("AWS::EC2::SecurityGroupIngress").values()
    assert rule["Properties"]["FromPort"] == 80
    balancers = model.of_type("AWS::ElasticLoadBalancingV2::LoadBalancer").values()
    assert [b["Properties"]["Scheme"] for b in balancers] == ["internal"]
    for group in model.of_type("AWS::EC2::SecurityGroup").values():
        for ingress in group["Properties"].get("SecurityGroupIngress", []):
            assert "CidrIp" not in ingress
