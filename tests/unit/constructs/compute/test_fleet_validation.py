"""Props that are refused: each names the prop, the value, what is allowed and the remedy."""

from __future__ import annotations

import dataclasses
import re

import aws_cdk as cdk
import pytest
from aws_cdk import aws_ec2 as ec2

from luma_constructs import (
    AcceleratorFleet,
    CoordinatorHost,
    DrainDocument,
    FleetNetwork,
    HostSettings,
    PropError,
    Purchase,
    RunStore,
    _fleet_types,
)
from luma_constructs._catalogue import known_regions, load_rows, row_of


@pytest.fixture
def scope():
    stack = cdk.Stack(cdk.App(), "Luma")
    vpc = ec2.Vpc.from_vpc_attributes(
        stack, "Vpc", vpc_id="vpc-1", availability_zones=["a"], private_subnet_ids=["subnet-1"]
    )
    return stack, {"vpc": vpc, "store": RunStore(stack, "Store")}


def types(*names):
    return [ec2.InstanceType(name) for name in names]


GOOD = {"fleet_name": "l4", "target": "cuda-sm89"}

WRONG = {
    "an empty name": ({"fleet_name": ""}, r"fleet_name: ''; expected 1 to 32 of a-z, 0-9 and '-'"),
    "capitals": ({"fleet_name": "L4"}, "fleet_name: 'L4'; expected 1 to 32"),
    "a long name": ({"fleet_name": "a" * 33}, "fleet_name: 'aaaa"),
    "the coordinator's name": ({"fleet_name": "coordinator"}, "and not coordinator or compiler"),
    "the compiler's name": ({"fleet_name": "compiler"}, "and not coordinator or compiler"),
    "no target": (
        {"target": "h100"},
        "target: 'h100'; expected one of cpu, cuda-sm100, .*trn3, with xN",
    ),
    "groups that do not divide": ({"target": "cuda-sm90x8-tp3"}, "target: 'cuda-sm90x8-tp3'"),
    "a chip that EC2 lacks": (
        {"target": "tpu-v5e"},
        (
            "target: 'tpu-v5e'; expected one that an instance type of EC2 runs: .*; join such hosts with "
            "ExternalFleet"
        ),
    ),
    "a chip that nobody knows": (
        {"target": "cuda-sm999"},
        r"target: 'cuda-sm999'; expected one that an instance type of EC2 runs: [^;]*$",
    ),
    "an island that no host holds": (
        {"target": "cuda-sm90x3"},
        (
            "target: 'cuda-sm90x3'; expected an island that one listed host holds; hosts have 1, 8 chips; "
            "change the target's xN, the purchase or the region, or name instance_types"
        ),
    ),
    "only UltraServers": (
        {"target": "trn3"},
        "hosts have an unknown number of chips",
    ),
    "a type of another chip": (
        {"instance_types": types("p5.48xlarge")},
        "instance_types: 'p5.48xlarge'; expected a type that runs cuda-sm89: g6.xlarge, ",
    ),
    "a type that the catalogue lacks": (
        {"instance_types": types("g99.large")},
        (
            "instance_types: 'g99.large'; expected types of the catalogue: g6.xlarge, .*; name it in "
            "unlisted_instance_types"
        ),
    ),
    "a listed type as unlisted": (
        {"unlisted_instance_types": types("g6.xlarge")},
        (
            "unlisted_instance_types: 'g6.xlarge'; expected types that the catalogue does not have; name it "
            "in instance_types"
        ),
    ),
    "too few chips": (
        {"target": "cuda-sm89x8", "instance_types": types("g6.12xlarge")},
        "instance_types: 'g6.12xlarge'; expected a type with 8 chips; it has 4",
    ),
    "two architectures": (
        {"target": "cuda-sm75", "instance_types": types("g4dn.xlarge", "g5g.xlarge")},
        "instance_types: .*; expected types of one processor architecture; make one fleet of x86_64",
    ),
    "no types": ({"instance_types": []}, "expected an island that one listed host holds"),
    "EFA where a type has none": (
        {"network": FleetNetwork.EFA, "instance_types": types("g6.xlarge")},
        "network: 'EFA'; expected types with EFA interfaces; g6.xlarge has none: leave it out",
    ),
    "EFA where nobody knows": (
        {
            "target": "cuda-sm100x4",
            "network": FleetNetwork.EFA,
            "instance_types": types("p6e-gb200.36xlarge"),
        },
        "p6e-gb200.36xlarge has an unknown number",
    ),
    "EFA on an unlisted type": (
        {"network": FleetNetwork.EFA, "unlisted_instance_types": types("g99.large")},
        "g99.large has an unknown number",
    ),
    "EFA on no type of the target": (
        {"target": "inf2", "network": FleetNetwork.EFA},
        "expected an island that one listed host holds, with EFA, sold as spot;",
    ),
    "no capacity": ({"max_capacity": 0}, "max_capacity: 0; expected a whole number from 1 to 1000"),
    "a type that is not sold as spot": (
        {"target": "trn2x16", "instance_types": types("trn2u.48xlarge")},
        "purchase: 'spot'; expected one that trn2u.48xlarge can be bought as: capacity-block, ",
    ),
    "half an instance": ({"max_capacity": 1.5}, "max_capacity: 1.5; expected a whole number"),
    "a truth as a number": ({"max_capacity": True}, "max_capacity: True; expected a whole number"),
    "a negative order": ({"order": -1}, "order: -1; expected a whole number from 0 to 65536"),
    "a short drain": (
        {"drain_timeout": cdk.Duration.seconds(5)},
        "drain_timeout: 5; expected a whole number from 30 to 7200",
    ),
    "a share above all": (
        {"purchase": Purchase.mixed(on_demand_percent=101)},
        "purchase: .*; expected on_demand_base of at least 0 and on_demand_percent of 0 to 100",
    ),
    "a negative base": (
        {"purchase": Purchase.mixed(on_demand_base=-1)},
        "on_demand_base of at least 0",
    ),
    "a mix of nothing": (
        {"purchase": Purchase.mixed()},
        r"expected a share on demand; use Purchase.spot\(\) for none",
    ),
    "no reservation": (
        {"purchase": Purchase.capacity_block("r-1"), "instance_types": types("g6.xlarge")},
        "expected the id of a capacity block, such as cr-",
    ),
    "a block of several types": (
        {"purchase": Purchase.capacity_block("cr-0123456789abcdef0")},
        "instance_types: .*; expected the one type of the capacity block",
    ),
    "a small disk": (
        {"host": HostSettings(root_volume_size=cdk.Size.gibibytes(1))},
        "host.root_volume_size: 1; expected a whole number from 8 to 16384",
    ),
    "a device that is none": (
        {"host": HostSettings(root_device="xvda")},
        "host.root_device: 'xvda'; expected a device of the image",
    ),
    "a variable that is none": (
        {"host": HostSettings(environment={"A B": "1"})},
        "host.environment: 'A B'; expected names of letters",
    ),
    "a value with quotes": (
        {"host": HostSettings(environment={"A": 'say "hi"'})},
        "values of one line without quotes and backslashes",
    ),
    "a value of two lines": (
        {"host": HostSettings(environment={"A": "1\nB=2"})},
        "host.environment: 'A'; expected names of letters, digits and '_', values of one line",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_props_of_a_fleet_are_refused_before_any_resource(case, scope):
    stack, shared = scope
    wrong, message = WRONG[case]
    with pytest.raises(PropError, match=message):
        AcceleratorFleet(stack, "Fleet", **{**GOOD, **shared, **wrong})
    left = stack.node.find_child("Fleet").node.find_all()
    assert not [c for c in left if isinstance(c, cdk.CfnResource)]


def test_everything_that_is_wrong_is_said_at_once(scope):
    stack, shared = scope
    with pytest.raises(PropError) as raised:
        AcceleratorFleet(
            stack, "Fleet", fleet_name="L 4", target="cuda-sm90x3", max_capacity=-1, **shared
        )
    assert [p.partition(":")[0] for p in raised.value.problems] == [
        "fleet_name",
        "max_capacity",
        "target",
    ]
    assert str(raised.value).startswith("AcceleratorFleet 'Luma/Fleet': 3 problems\n  fleet_name: ")


def test_a_block_of_a_type_that_cdk_cannot_take_apart(scope):
    stack, shared = scope
    fleet = AcceleratorFleet(
        stack, "Fleet", fleet_name="b200", target="cuda-sm100x8", **shared,
        purchase=Purchase.capacity_block("cr-0123456789abcdef0"),
    )  # fmt: skip
    assert fleet.instance_types == ("p6-b200.48xlarge",)


def test_too_many_types_are_refused(scope):
    stack, shared = scope
    many = types(*(f"g{number}.large" for number in range(100, 141)))
    with pytest.raises(PropError, match="instance_types: 41; expected at most 40 types"):
        AcceleratorFleet(stack, "Fleet", **GOOD, **shared, unlisted_instance_types=many)


IRELAND = cdk.Environment(account="111122223333", region="eu-west-1")


def new_scope(env):
    stack = cdk.Stack(cdk.App(), "Luma", env=env)
    vpc = ec2.Vpc.from_vpc_attributes(
        stack, "Vpc", vpc_id="vpc-1", availability_zones=["a"], private_subnet_ids=["subnet-1"]
    )
    return stack, {"vpc": vpc, "store": RunStore(stack, "Store")}


def test_a_region_s_lack_is_refused_where_the_catalogue_knows_it():
    lacking = [
        row
        for row in load_rows()
        if row.regions and "eu-west-1" not in row.regions and row.launchable and row.target
    ]
    row = next(row for row in lacking if row.count)
    assert "eu-west-1" in known_regions()
    stack, shared = new_scope(IRELAND)
    target = f"{row.target}x{row.count}" if row.count > 1 else row.target
    message = f"instance_types: '{row.name}'; expected types of region eu-west-1; it is offered in "
    with pytest.raises(PropError, match=re.escape(message)):
        AcceleratorFleet(
            stack, "Fleet", fleet_name="far", target=target, **shared,
            purchase=Purchase.capacity_block("cr-0123456789abcdef0"),
            instance_types=types(row.name),
        )  # fmt: skip


def test_default_types_are_those_of_the_region():
    stack, shared = new_scope(IRELAND)
    fleet = AcceleratorFleet(stack, "Fleet", **{**GOOD, **shared, "target": "cuda-sm75"})
    rows = [row_of(name) for name in fleet.instance_types]
    assert rows
    assert all(row.regions is None or "eu-west-1" in row.regions for row in rows)


def test_a_target_that_a_region_lacks_is_said_with_the_region():
    row = next(
        row
        for row in load_rows()
        if row.target and row.count == 1 and row.launchable and row.regions
        and not any(
            other.regions is None or "eu-west-1" in other.regions
            for other in load_rows()
            if other.target == row.target and other.count == 1 and other.launchable
        )
    )  # fmt: skip
    stack, shared = new_scope(IRELAND)
    with pytest.raises(PropError, match="listed host holds, sold as on-demand in eu-west-1; hosts"):
        AcceleratorFleet(
            stack,
            "Fleet",
            fleet_name="far",
            target=row.target,
            purchase=Purchase.on_demand(),
            **shared,
        )


def test_of_a_region_that_the_catalogue_does_not_have_nothing_is_known():
    nowhere = cdk.Environment(account="111122223333", region="xx-new-1")
    stack, shared = new_scope(nowhere)
    fleet = AcceleratorFleet(stack, "Fleet", **GOOD, **shared)
    assert fleet.instance_types
    said = str([entry.data for entry in fleet.node.metadata])
    assert "xx-new-1: the catalogue does not know which types it offers" in said


def test_tokens_are_no_mistakes(scope):
    stack, shared = scope
    number = cdk.CfnParameter(stack, "Most", type="Number").value_as_number
    fleet = AcceleratorFleet(stack, "Fleet", **GOOD, **shared, max_capacity=number)
    assert fleet.max_capacity == number


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_capacity": 101}, "max_capacity: 101; expected a whole number from 1 to 100"),
        ({"instance_types": []}, "instance_types: .*; expected at least one type"),
        ({"instance_types": types("c7i.large", "c8g.large")}, "all of one processor architecture"),
        ({"host": HostSettings(root_device="sda")}, "host.root_device: 'sda'"),
    ],
)
def test_wrong_props_of_a_coordinator_are_refused(wrong, message, scope):
    stack, shared = scope
    with pytest.raises(PropError, match=message):
        CoordinatorHost(stack, "Coordinator", **{**shared, **wrong})


@pytest.mark.parametrize("seconds", [9, 3601])
def test_a_drain_s_time_has_limits(seconds):
    with pytest.raises(
        PropError, match=f"timeout: {seconds}; expected a whole number from 10 to 3600"
    ):
        DrainDocument(cdk.Stack(cdk.App(), "Luma"), "D", timeout=cdk.Duration.seconds(seconds))


def test_what_synth_cannot_check_is_said_with_a_stable_id(scope, monkeypatch):
    stack, shared = scope
    row = dataclasses.replace(row_of("trn2.48xlarge"), name="trn2.99xlarge", count=None)
    monkeypatch.setattr(
        _fleet_types, "row_of", lambda name: row if name == row.name else row_of(name)
    )
    fleet = AcceleratorFleet(
        stack, "Fleet", fleet_name="own", target="trn2", **shared,
        instance_types=types("trn2.99xlarge"), unlisted_instance_types=types("trn9.large"),
    )  # fmt: skip
    said = " ".join(str(entry.data) for entry in fleet.node.metadata)
    assert "trn9.large: not in the catalogue" in said
    assert "[ack: luma:unlistedInstanceTypes]" in said
    assert "trn2.99xlarge: the catalogue does not know the number of chips" in said
    assert "[ack: luma:unknownChips]" in said
