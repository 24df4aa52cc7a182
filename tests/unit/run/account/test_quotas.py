"""Quotas of EC2 held against fleets: names as AWS gives them, vCPUs as the catalogue has them."""

from __future__ import annotations

import pytest

from runtime.run.account.checks import judge_quota
from runtime.spec import load_catalogue
from runtime.spec.account import Fleet

QUOTAS = {
    "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances": 5.0,
    "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests": 640.0,
    "Running On-Demand P instances": 0.0,
    "All P4, P3 and P2 Spot Instance Requests": 768.0,
    "All P5 Spot Instance Requests": 192.0,
    "Running On-Demand G and VT instances": 64.0,
    "All G and VT Spot Instance Requests": 0.0,
    "Running On-Demand Trn instances": 128.0,
    "EC2-VPC Elastic IPs": 5.0,
}


def fleet(purchase: str, *kinds: str) -> Fleet:
    return Fleet(
        name="f",
        target="t",
        chips=1,
        queue="q",
        asg="a",
        purchase=purchase,
        instance_types=kinds,
        order=0,
    )


@pytest.mark.parametrize(
    ("purchase", "kind", "quota", "count"),
    [
        ("on-demand", "c7i.large", "Running On-Demand Standard", 2),
        ("spot", "c7i.large", "All Standard", 320),
        ("spot", "p5.48xlarge", "All P5 Spot", 1),
        ("on-demand", "trn1.32xlarge", "Running On-Demand Trn", 1),
    ],
)
def test_a_quota_says_how_many_instances_it_allows(purchase, kind, quota, count):
    check = judge_quota(fleet(purchase, kind), QUOTAS, load_catalogue())
    assert check.ok, check.detail
    assert f"{kind}: {count} of it ({quota}" in check.detail


@pytest.mark.parametrize(
    ("purchase", "kind"),
    [
        ("on-demand", "p5.48xlarge"),
        ("spot", "g6.xlarge"),
        ("on-demand", "c7i.48xlarge"),
    ],
)
def test_a_quota_below_one_instance_fails_with_a_remedy(purchase, kind):
    check = judge_quota(fleet(purchase, kind), QUOTAS, load_catalogue())
    if (
        kind == "c7i.48xlarge"
    ):  # not in the catalogue: its vCPUs are not known, the quota is above 0
        assert "an unknown number" in check.detail
        return
    assert not check.ok
    assert "Service Quotas" in check.detail


def test_a_mixed_fleet_is_held_against_both():
    check = judge_quota(fleet("mixed", "g6.xlarge"), QUOTAS, load_catalogue())
    assert not check.ok
    assert "All G and VT Spot" in check.detail
    assert "Running On-Demand G and VT" in check.detail


def test_a_family_without_a_quota_is_named():
    check = judge_quota(fleet("spot", "trn1.32xlarge"), QUOTAS, load_catalogue())
    assert "AWS names no quota for it" in check.detail
    assert "no instance type" in judge_quota(fleet("spot"), QUOTAS, load_catalogue()).detail
