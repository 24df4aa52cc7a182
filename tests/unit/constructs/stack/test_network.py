"""The network of a new deployment: what costs money idle, and what can get in."""

from __future__ import annotations

import re

import pytest

from tests.support.cdk import Assembly, synthesized
from tests.unit.constructs.stack import stacks

pytestmark = pytest.mark.timeout(600)  # a busy machine synthesizes slowly

ANYWHERE = {"0.0.0.0/0", "::/0"}


@pytest.fixture(scope="module")
def nat() -> Assembly:
    return synthesized(stacks.plain)


@pytest.fixture(scope="module")
def public() -> Assembly:
    return synthesized(stacks.public)


def subnets(assembly: Assembly) -> list[dict]:
    return [subnet["Properties"] for subnet in assembly.of_type("AWS::EC2::Subnet").values()]


def test_one_nat_gateway_whatever_the_number_of_zones(nat):
    assert len(nat.of_type("AWS::EC2::NatGateway")) == 1
    kinds = [
        "Private" if "Private" in name else "Public" for name in nat.of_type("AWS::EC2::Subnet")
    ]
    assert sorted(kinds) == ["Private", "Private", "Public", "Public"]
    assert not any(subnet["MapPublicIpOnLaunch"] for subnet in subnets(nat))


def test_the_public_network_has_nothing_that_costs_money_idle(public):
    for costly in ("NatGateway", "EIP"):
        assert public.of_type(f"AWS::EC2::{costly}") == {}
    endpoints = public.of_type("AWS::EC2::VPCEndpoint").values()
    assert {e["Properties"]["VpcEndpointType"] for e in endpoints} == {"Gateway"}
    assert len(subnets(public)) == 3
    assert all(subnet["MapPublicIpOnLaunch"] for subnet in subnets(public))


@pytest.mark.parametrize("kind", ["nat", "public"])
def test_data_never_passes_a_nat_gateway(kind, request):
    assembly = request.getfixturevalue(kind)
    endpoints = assembly.of_type("AWS::EC2::VPCEndpoint").values()
    services = " ".join(str(e["Properties"]["ServiceName"]) for e in endpoints)
    assert sorted(re.findall(r"\.(s3|dynamodb)\b", services)) == ["dynamodb", "s3"]
    tables = {
        ref["Ref"] for e in endpoints for ref in e["Properties"]["RouteTableIds"]
    }  # of every subnet that nodes are launched in
    assert tables >= {
        name
        for name in assembly.of_type("AWS::EC2::RouteTable")
        if kind == "public" or "Private" in name
    }


@pytest.mark.parametrize("kind", ["nat", "public"])
def test_nothing_outside_can_connect_to_a_node(kind, request):
    assembly = request.getfixturevalue(kind)
    rules = [
        rule["Properties"] for rule in assembly.of_type("AWS::EC2::SecurityGroupIngress").values()
    ]
    for group in assembly.of_type("AWS::EC2::SecurityGroup").values():
        rules += group["Properties"].get("SecurityGroupIngress", [])
    assert len(rules) >= 3
    for rule in rules:
        assert "SourceSecurityGroupId" in rule
        assert ANYWHERE.isdisjoint({rule.get("CidrIp"), rule.get("CidrIpv6")})


@pytest.mark.parametrize("kind", ["nat", "public"])
def test_every_group_is_in_every_zone_of_the_right_subnets(kind, request):
    assembly = request.getfixturevalue(kind)
    where = "Private" if kind == "nat" else "Public"
    wanted = {name for name in assembly.of_type("AWS::EC2::Subnet") if where in name}
    assert len(wanted) == {"nat": 2, "public": 3}[kind]
    groups = assembly.of_type("AWS::AutoScaling::AutoScalingGroup")
    assert len(groups) >= 3
    for group in groups.values():
        assert {ref["Ref"] for ref in group["Properties"]["VPCZoneIdentifier"]} == wanted


def test_rejected_traffic_is_logged_for_a_month(nat):
    (log,) = nat.of_type("AWS::EC2::FlowLog").values()
    assert log["Properties"]["TrafficType"] == "REJECT"
    group = nat.template["Resources"][log["Properties"]["LogGroupName"]["Ref"]]
    assert group["Properties"]["RetentionInDays"] == 30


def test_zones_are_cloudformations_even_with_an_account_and_a_region():
    assembly = synthesized(stacks.with_environment)
    zones = {str(subnet["AvailabilityZone"]) for subnet in subnets(assembly)}
    assert zones == {str({"Fn::Select": [index, {"Fn::GetAZs": ""}]}) for index in (0, 1)}
    manifest = assembly.folder.joinpath("manifest.json").read_text(encoding="utf-8")
    assert '"missing"' not in manifest
