"""`luma catalogue update` against moto's EC2, whose instance types are recorded from AWS.

moto has neither the price list nor capacity blocks: prices are stubbed, and blocks are not asked for
here (tests/unit/plan/test_aws_answers.py reads both in the forms that AWS documents).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import boto3
import pytest
from moto import mock_aws

from runtime.cli.app import main
from runtime.plan import aws_answers, catalogue_file
from runtime.plan.aws_answers import instance_types
from runtime.plan.catalogue_file import current_catalogue, user_file
from runtime.plan.update import update_catalogue
from runtime.spec import Catalogue, SpecError, load_catalogue
from runtime.spec.aws import AwsError
from runtime.spec.catalogue import CapacityBlock

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Prices:
    """A price list with one price for all types, in the form of the service's own answers."""

    def get_paginator(self, _method: str) -> Prices:
        return self

    def paginate(self, **_asked: object) -> list[dict[str, list[str]]]:
        price = {"priceDimensions": {"a": {"unit": "Hrs", "pricePerUnit": {"USD": "1.25"}}}}
        return [{"PriceList": [json.dumps({"terms": {"OnDemand": {"sku": price}}})]}]


def make_client(service: str, region: str):
    """A client of moto, or the price list."""
    return Prices() if service == "pricing" else boto3.client(service, region_name=region)


@pytest.fixture(scope="module")
def cloud():
    """moto's AWS, within this process, with credentials that mean nothing."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        # moto takes seconds for all instance types, and has the same shapes in every region.
        shapes = instance_types(boto3.client("ec2", region_name="us-east-1"))
        patch.setattr(aws_answers, "instance_types", lambda _ec2: shapes)
        yield


def small() -> Catalogue:
    """A package's catalogue with a few rows, so that few prices are asked for."""
    package = load_catalogue()
    kept = {
        "g6.xlarge",
        "trn2.3xlarge",
        "trn2-ultraserver",
        "mi300x",
        "c7i.2xlarge",
        "p4d.24xlarge",
    }
    rows = tuple(row for row in package.accelerators if row.name in kept)
    return package.model_copy(update={"accelerators": rows})


@pytest.fixture(scope="module")
def found(cloud):
    """The catalogue after asking about two regions."""
    said: list[str] = []
    catalogue = update_catalogue(
        small(), None, ["us-east-1", "ap-southeast-4"], client=make_client, now=NOW,
        with_blocks=False, progress=said.append,
    )  # fmt: skip
    assert said[0] == "us-east-1: instance types"
    return catalogue


def test_prices_and_zones_are_those_of_the_regions_that_were_asked(found) -> None:
    row = found.by_name("g6.xlarge")
    assert row.on_demand("us-east-1") == (1.25, "2026-11-30")
    offer = row.offer("us-east-1")
    assert offer.zones
    assert {price.zone for price in offer.spot} <= set(offer.zones)
    assert row.offered("ap-southeast-4") is False
    assert row.offered("ca-central-1") is True  # what the package's record says
    assert (found.updated, found.updated_regions) == (
        "2026-11-30T12:00:00+00:00",
        ("ap-southeast-4", "us-east-1"),
    )


def test_shapes_agree_with_the_packages_and_chips_keep_their_figures(found) -> None:
    for row in small().accelerators:
        new = found.by_name(row.name)
        for field in ("count", "vcpus", "host_memory_gib", "network_gbps", "cores", "clock_mhz"):
            assert getattr(new, field) == getattr(row, field), (row.name, field)
        assert new.bf16_tflops_per_chip == row.bf16_tflops_per_chip
    assert found.by_name("mi300x") == load_catalogue().by_name("mi300x")
    assert found.by_name("trn2-ultraserver").offers == ()


def test_types_of_a_known_chip_that_the_package_lacks_get_rows(found) -> None:
    new = found.by_name("g6.48xlarge")
    listed = load_catalogue().by_name("g6.48xlarge")
    assert (new.chip, new.count, new.compile_target) == ("L4", 8, "cuda-sm89")
    assert (new.vcpus, new.host_memory_gib) == (listed.vcpus, listed.host_memory_gib)
    assert new.usd_per_hour_on_demand is None
    assert new.on_demand("us-east-1") == (1.25, "2026-11-30")
    assert "figures are those of g6.xlarge" in new.note
    assert "c7i.8xlarge" not in {
        row.name for row in found.accelerators
    }  # of CPUs only those listed


def test_other_regions_and_learned_types_stay_with_their_days(cloud, found) -> None:
    later = NOW.replace(month=12, day=1)
    again = update_catalogue(
        small(), found, ["ap-southeast-4"], client=make_client, now=later, with_blocks=False
    )
    offers = {offer.region: offer.date for offer in again.by_name("g6.xlarge").offers}
    assert offers == {"us-east-1": "2026-11-30", "ap-southeast-4": "2026-12-01"}
    assert again.by_name("g6.48xlarge").on_demand("us-east-1") == (1.25, "2026-11-30")
    assert again.updated_regions == ("ap-southeast-4", "us-east-1")


def test_the_file_survives_writing_and_reading(found, tmp_path) -> None:
    path = catalogue_file.write_catalogue(found, tmp_path / "catalogue.json")
    assert catalogue_file.read_catalogue(path) == found


def test_capacity_blocks_are_asked_of_those_types_that_are_sold_so(cloud, monkeypatch) -> None:
    asked: list[str] = []

    def blocks(_ec2: object, name: str) -> tuple[CapacityBlock, ...]:
        asked.append(name)
        return (
            CapacityBlock(zone="us-east-1a", start=NOW.isoformat(), hours=24, instances=1, usd=480),
        )

    monkeypatch.setattr(aws_answers, "capacity_blocks", blocks)
    new = update_catalogue(small(), None, ["us-east-1"], client=make_client, now=NOW)
    assert {"p4d.24xlarge"} <= set(asked) <= {"p4d.24xlarge", "p4de.24xlarge", "trn2.48xlarge"}
    assert new.by_name("p4d.24xlarge").offer("us-east-1").capacity_blocks[0].usd_per_hour == 20
    assert new.by_name("g6.xlarge").offer("us-east-1").capacity_blocks == ()


def test_no_region_is_refused() -> None:
    with pytest.raises(SpecError, match="names no region"):
        update_catalogue(small(), None, [], client=make_client, now=NOW)


def test_a_refusal_half_way_leaves_the_users_file_as_it_was(
    cloud, found, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("LUMA_HOME", str(tmp_path))
    catalogue_file.write_catalogue(found)
    before = user_file().read_bytes()

    def denied(*_arguments: object) -> float:
        raise AwsError("pricing GetProducts: denied (AccessDeniedException)", reason="denied")

    monkeypatch.setattr("runtime.spec.load_catalogue", small)
    monkeypatch.setattr(aws_answers, "on_demand_price", denied)
    assert main(["catalogue", "update", "--region", "us-east-1", "--no-capacity-blocks"]) == 1
    assert "pricing GetProducts: denied" in capsys.readouterr().err
    assert user_file().read_bytes() == before


def test_the_command_writes_the_file_that_plans_use_and_shows_its_day(
    cloud, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("LUMA_HOME", str(tmp_path))
    monkeypatch.setattr("runtime.spec.load_catalogue", small)
    monkeypatch.setattr(aws_answers, "on_demand_price", lambda *_arguments: 1.25)
    words = ["catalogue", "update", "--region", "us-east-1", "--no-capacity-blocks", "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["path"] == str(user_file())
    assert document["regions"] == ["us-east-1"]
    assert current_catalogue().by_name("g6.xlarge").on_demand("us-east-1")[0] == 1.25
    assert main(["catalogue", "show", "L4"]) == 0
    shown = capsys.readouterr()
    assert "g6.xlarge" in shown.out
    assert f"AWS, asked {document['updated']} for us-east-1" in shown.err
