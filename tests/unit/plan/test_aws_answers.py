"""Answers of the forms that AWS documents, checked by botocore's own models, are read as they mean."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime

import boto3
import pytest
from botocore.stub import ANY, Stubber

from runtime.plan.aws_answers import capacity_blocks, on_demand_price, spot_prices, zones_of
from runtime.spec.aws import AwsError

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def client(service: str):
    """A client that cannot send anything: its answers are stubbed."""
    return boto3.client(
        service, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x",
    )  # fmt: skip


@contextlib.contextmanager
def stubbed(service: str, method: str, *answers, expected=None):
    """Give a client whose calls of a method get these answers, in order; all must be fetched."""
    made = client(service)
    with Stubber(made) as stub:
        for answer in answers:
            if isinstance(answer, str):
                stub.add_client_error(method, answer, "no")
            else:
                stub.add_response(method, answer, expected)
        yield made
        stub.assert_no_pending_responses()


def product(*prices: tuple[str, str]) -> str:
    """One product of the price list, format aws_v1, as the Price List Query API documents it."""
    dimensions = {
        f"JRTCKXETXF.{number}": {
            "unit": unit, "endRange": "Inf", "description": "$ per On Demand Linux Instance Hour",
            "appliesTo": [], "rateCode": f"SKU.{number}", "beginRange": "0",
            "pricePerUnit": {"USD": price},
        }
        for number, (unit, price) in enumerate(prices)
    }  # fmt: skip
    return json.dumps(
        {
            "product": {
                "productFamily": "Compute Instance",
                "attributes": {"instanceType": "g6.xlarge", "regionCode": "us-east-1"},
                "sku": "SKU",
            },
            "serviceCode": "AmazonEC2",
            "terms": {
                "OnDemand": {"SKU.JRTCKXETXF": {"priceDimensions": dimensions, "sku": "SKU"}},
                "Reserved": {"SKU.R": {"priceDimensions": {"SKU.R.1": {"unit": "Quantity"}}}},
            },
            "version": "20261101000000",
        }
    )


def test_an_on_demand_price_is_the_hourly_one_of_linux() -> None:
    asked = {
        "ServiceCode": "AmazonEC2",
        "FormatVersion": "aws_v1",
        "Filters": [
            {"Type": "TERM_MATCH", "Field": "instanceType", "Value": "g6.xlarge"},
            {"Type": "TERM_MATCH", "Field": "regionCode", "Value": "us-east-1"},
            {"Type": "TERM_MATCH", "Field": "operatingSystem", "Value": "Linux"},
            {"Type": "TERM_MATCH", "Field": "tenancy", "Value": "Shared"},
            {"Type": "TERM_MATCH", "Field": "preInstalledSw", "Value": "NA"},
            {"Type": "TERM_MATCH", "Field": "capacitystatus", "Value": "Used"},
        ],
    }
    answer = {"PriceList": [product(("Hrs", "0.8048000000"), ("Quantity", "99"))]}
    with stubbed("pricing", "get_products", answer, expected=asked) as pricing:
        assert on_demand_price(pricing, "g6.xlarge", "us-east-1") == 0.8048


@pytest.mark.parametrize("listed", [[], [product(("Hrs", "0.0000000000"))]])
def test_a_type_without_a_price_has_none_and_not_zero(listed) -> None:
    with stubbed("pricing", "get_products", {"PriceList": listed}) as pricing:
        assert on_demand_price(pricing, "g6.xlarge", "us-east-1") is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"terms": {"OnDemand": {"a": {}}}}', '{"terms": []}', "nothing"]
)
def test_a_price_list_of_another_form_is_an_error(text) -> None:
    with (
        stubbed("pricing", "get_products", {"PriceList": [text]}) as pricing,
        pytest.raises(AwsError, match="no price list of the form aws_v1"),
    ):
        on_demand_price(pricing, "g6.xlarge", "us-east-1")


def test_the_newest_spot_price_of_each_zone_counts_over_all_pages() -> None:
    def entry(zone: str, price: str, hour: int, name: str = "g6.xlarge"):
        return {
            "AvailabilityZone": zone, "InstanceType": name, "ProductDescription": "Linux/UNIX",
            "SpotPrice": price, "Timestamp": datetime(2026, 11, 30, hour, tzinfo=UTC),
        }  # fmt: skip

    pages = (
        {"SpotPriceHistory": [entry("us-east-1a", "0.30", 8), entry("us-east-1b", "0.20", 9)],
         "NextToken": "more"},
        {"SpotPriceHistory": [entry("us-east-1a", "0.35", 11), entry("us-east-1b", "0.10", 7),
                              entry("us-east-1c", "0.000", 7)], "NextToken": ""},
    )  # fmt: skip
    made = client("ec2")
    with Stubber(made) as stub:
        asked = {"InstanceTypes": ["g6.xlarge"], "ProductDescriptions": ANY, "StartTime": NOW}
        stub.add_response("describe_spot_price_history", pages[0], asked)
        stub.add_response("describe_spot_price_history", pages[1], {**asked, "NextToken": "more"})
        found = spot_prices(made, ["g6.xlarge"], NOW)["g6.xlarge"]
        stub.assert_no_pending_responses()
    assert [(price.zone, price.usd_per_hour) for price in found] == [
        ("us-east-1a", 0.35),
        ("us-east-1b", 0.2),
    ]
    assert found[0].since == "2026-11-30T11:00:00+00:00"


def test_zones_are_asked_in_lists_that_a_filter_may_have() -> None:
    names = [f"t{number}.large" for number in range(150)]

    def answer(name: str):
        place = {"InstanceType": name, "LocationType": "availability-zone"}
        zones = ("us-east-1b", "us-east-1a")
        return {"InstanceTypeOfferings": [{**place, "Location": zone} for zone in zones]}

    made = client("ec2")
    with Stubber(made) as stub:
        for part in (names[:100], names[100:]):
            stub.add_response(
                "describe_instance_type_offerings",
                answer(part[0]),
                {
                    "LocationType": "availability-zone",
                    "Filters": [{"Name": "instance-type", "Values": part}],
                },
            )
        found = zones_of(made, names)
        stub.assert_no_pending_responses()
    assert found == {
        "t0.large": ("us-east-1a", "us-east-1b"),
        "t100.large": ("us-east-1a", "us-east-1b"),
    }


def test_capacity_blocks_have_a_price_for_all_of_their_time() -> None:
    answer = {
        "CapacityBlockOfferings": [
            {
                "CapacityBlockOfferingId": "cb-0123456789abcdefg",
                "InstanceType": "p5.48xlarge",
                "AvailabilityZone": "us-east-1a",
                "InstanceCount": 1,
                "StartDate": datetime(2026, 12, 1, 11, 30, tzinfo=UTC),
                "EndDate": datetime(2026, 12, 2, 11, 30, tzinfo=UTC),
                "CapacityBlockDurationHours": 24,
                "UpfrontFee": "756.4800",
                "CurrencyCode": "USD",
                "Tenancy": "default",
            }
        ]
    }
    asked = {"InstanceType": "p5.48xlarge", "InstanceCount": 1, "CapacityDurationHours": 24}
    with stubbed("ec2", "describe_capacity_block_offerings", answer, expected=asked) as ec2:
        (block,) = capacity_blocks(ec2, "p5.48xlarge")
    assert (block.zone, block.hours, block.start) == ("us-east-1a", 24, "2026-12-01T11:30:00+00:00")
    assert block.usd_per_hour == pytest.approx(31.52)


@pytest.mark.parametrize(
    ("code", "reason"), [("UnauthorizedOperation", "denied"), ("RequestLimitExceeded", "throttled")]
)
def test_a_refusal_of_aws_names_the_question_and_the_reason(code, reason) -> None:
    with stubbed("ec2", "describe_capacity_block_offerings", code) as ec2:
        with pytest.raises(AwsError, match="DescribeCapacityBlockOfferings of p5") as caught:
            capacity_blocks(ec2, "p5.48xlarge")
        assert caught.value.reason == reason
