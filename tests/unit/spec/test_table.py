"""The table of runs: values, conditions and pages, on moto's DynamoDB."""

from __future__ import annotations

import boto3
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto import mock_aws

from runtime.spec.aws import AwsError
from runtime.spec.table import ConditionFailed, Table, from_item, to_item


@pytest.fixture
def table(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        boto3.client("dynamodb", region_name="us-east-1").create_table(
            TableName="luma",
            KeySchema=[
                {"AttributeName": "pk", "KeyType": "HASH"},
                {"AttributeName": "sk", "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[
                {"AttributeName": "pk", "AttributeType": "S"},
                {"AttributeName": "sk", "AttributeType": "S"},
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        yield Table("luma", region="us-east-1")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(min_size=1), VALUES, max_size=4))
def test_values_come_back_as_they_were(values):
    assert from_item(to_item(values)) == values


def test_what_the_table_cannot_hold_is_refused():
    with pytest.raises(TypeError, match="set cannot be put"):
        to_item({"x": {1, 2}})


# DynamoDB's own range: 1e-130 to just below 1e126, and zero.
KEPT = st.floats(1e-120, 1e120) | st.floats(-1e120, -1e-120) | st.just(0.0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
@given(number=KEPT)
def test_a_float_survives_the_table(table, number):
    table.put({"pk": "a", "sk": "b", "n": number})
    assert table.get("a", "b")["n"] == number


def test_a_new_item_is_not_written_over_an_old_one(table):
    table.put({"pk": "a", "sk": "b", "n": 1}, new=True)
    with pytest.raises(ConditionFailed):
        table.put({"pk": "a", "sk": "b", "n": 2}, new=True)
    assert table.get("a", "b")["n"] == 1
    table.put({"pk": "a", "sk": "b", "n": 3})
    assert table.get("a", "b") == {"pk": "a", "sk": "b", "n": 3}
    assert table.get("a", "c") is None


def test_items_are_put_together_or_not_at_all(table):
    table.put({"pk": "a", "sk": "2"})
    with pytest.raises(ConditionFailed):
        table.put_together([{"pk": "a", "sk": "1"}, {"pk": "a", "sk": "2"}])
    assert table.get("a", "1") is None


def test_an_update_sets_adds_and_removes(table):
    with pytest.raises(ConditionFailed):
        table.update("a", "b", {"x": 1})
    table.update("a", "b", {"state": "new", "y": 1}, exists=False)
    found = table.update("a", "b", {"state": "old"}, add={"cost": 0.5}, remove=("y",))
    assert found == {"pk": "a", "sk": "b", "state": "old", "cost": 0.5}
    assert table.update("a", "b", {}, add={"cost": 1.25})["cost"] == 1.75
    table.update("a", "b", {"n": 1}, where={"state": ("old", "older")})
    with pytest.raises(ConditionFailed):
        table.update("a", "b", {"n": 2}, where={"state": ("new",)})
    assert table.get("a", "b")["n"] == 1


def test_a_query_gives_what_begins_so_in_order_and_after(table):
    for key in ("A#1", "A#2", "A#3", "B#1"):
        table.put({"pk": "p", "sk": key})
    table.put({"pk": "q", "sk": "A#9"})

    def keys(*arguments, **options) -> list[str]:
        return [item["sk"] for item in table.query("p", *arguments, **options)]

    assert keys("A#") == ["A#1", "A#2", "A#3"]
    assert keys() == ["A#1", "A#2", "A#3", "B#1"]
    assert keys("A#", after="A#1") == ["A#2", "A#3"]
    assert keys("A#", after="A#3") == []
    assert table.newest("p", "A#")["sk"] == "A#3"
    assert table.newest("p", "C#") is None
    assert {item["pk"] for item in table.scan("A#9")} == {"q"}


def test_many_items_come_over_several_pages(table):
    text = "x" * 100_000
    for number in range(25):
        table.put({"pk": "p", "sk": f"{number:03d}", "text": text})
    assert [item["sk"] for item in table.query("p")] == [f"{n:03d}" for n in range(25)]
    assert len(list(table.scan("007"))) == 1


def test_a_missing_table_is_an_error_with_its_name(table):
    with pytest.raises(AwsError, match="luma-other") as refused:
        Table("luma-other", region="us-east-1").get("a", "b")
    assert refused.value.reason == "missing"
