import json

import pytest
from pydantic import ValidationError

from runtime.spec import Accelerator, load_catalogue
from runtime.spec.catalogue import CapacityBlock
from runtime.spec.units import check_target


def test_every_row_is_typed_and_named_once():
    catalogue = load_catalogue()
    names = [row.name for row in catalogue.accelerators]
    assert len(names) == len(set(names)) > 50
    assert load_catalogue() is catalogue


def test_every_target_of_the_catalogue_is_one_that_a_job_may_name():
    for row in load_catalogue().accelerators:
        if row.compile_target is not None:
            assert check_target(row.compile_target) == row.compile_target


def test_rows_that_were_recalled_say_which_figures():
    for row in load_catalogue().accelerators:
        assert (row.checked == "memory") == bool(row.memory_fields), row.name
        assert set(row.memory_fields) <= set(type(row).model_fields), row.name


def test_look_ups():
    catalogue = load_catalogue()
    row = catalogue.by_name("p5.48xlarge")
    assert (row.chip, row.count, row.compile_target) == ("H100", 8, "cuda-sm90")
    assert row in catalogue.by_chip("h100")
    assert row in catalogue.by_target("cuda-sm90")
    assert catalogue.by_chip("abacus") == ()
    with pytest.raises(KeyError):
        catalogue.by_name("p99.huge")


def row(**changes) -> Accelerator:
    """The row of c7i.8xlarge with some fields replaced."""
    data = load_catalogue().by_name("c7i.8xlarge").model_dump()
    return Accelerator.model_validate_json(json.dumps({**data, **changes}))


def test_hosts_without_accelerators_are_one_chip_with_their_memory():
    hosts = [row for row in load_catalogue().accelerators if row.is_cpu]
    assert len(hosts) >= 12
    for host in hosts:
        assert (host.count, host.memory_gib_per_chip) == (1, host.host_memory_gib)
        # Two threads a core, but for AMD's seventh generation and Graviton.
        assert host.vcpus / host.cores in {1, 2}
        assert 2000 < host.clock_mhz < 5000
        # The cpu target is x86-64 with AVX2, which Graviton has not.
        assert host.compile_target == (None if host.vendor == "aws" else "cpu")


def test_only_instance_types_can_be_launched():
    catalogue = load_catalogue()
    assert catalogue.by_name("g6.xlarge").launchable
    assert not catalogue.by_name("trn2-ultraserver").launchable
    assert not catalogue.by_name("tpu-v5e").launchable


def test_a_region_that_nobody_asked_is_not_known_and_not_refused():
    plain = row()
    assert plain.offered("us-east-1") is True  # a price of it was read
    assert plain.offered("eu-west-1") is None
    assert plain.on_demand("us-east-1") == (1.428, "2026-07-20")
    assert plain.on_demand("eu-west-1") is None
    # What was read some time ago shows what a region has, not what it lacks.
    listed = row(regions=["eu-west-2"])
    assert listed.offered("eu-west-2") is True
    assert listed.offered("eu-west-1") is None


def test_how_a_type_is_sold_and_what_attests_it():
    catalogue = load_catalogue()
    assert not catalogue.by_name("trn2u.48xlarge").sold("spot")
    assert catalogue.by_name("p5.48xlarge").sold("capacity-block")
    assert row(usage_classes=None).sold("spot")
    assert catalogue.by_name("p5.48xlarge").nitro_tpm is True
    assert catalogue.by_name("p4d.24xlarge").nitro_tpm is False
    assert catalogue.by_name("mi300x").nitro_tpm is None


def test_what_aws_said_comes_before_the_packages_figures():
    said = {"region": "us-east-1", "date": "2026-11-30", "zones": ["us-east-1a"]}
    priced = row(offers=[{**said, "usd_per_hour_on_demand": 1.5}])
    assert priced.on_demand("us-east-1") == (1.5, "2026-11-30")
    assert row(offers=[said]).on_demand("us-east-1") == (1.428, "2026-07-20")
    assert row(offers=[{**said, "zones": []}]).offered("us-east-1") is False
    assert row(offers=[said]).offered("eu-west-1") is None


def test_a_capacity_block_has_a_price_an_hour():
    block = CapacityBlock(
        zone="us-east-1a", start="2026-12-01T11:30:00Z", hours=24, instances=2, usd=4800.0
    )
    assert block.usd_per_hour == 100.0


@pytest.mark.parametrize(
    "change",
    [
        {"usd_per_hour_on_demand": 0},
        {"count": -1},
        {"where": "moon"},
        {"surprise": 1},
        {"clock_mhz": 0},
        {"offers": [{"region": "us-east-1", "date": "2026-11-30"}]},
    ],
)
def test_a_broken_row_is_refused(change):
    with pytest.raises(ValidationError):
        row(**change)
