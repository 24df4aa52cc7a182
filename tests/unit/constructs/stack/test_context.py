"""Context parameters: both forms mean the same, mistakes are all named, nothing else escapes."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luma_constructs._context import DEFAULT_FLEETS, AppContext, ContextError
from luma_constructs._context_keys import KEYS
from luma_constructs._context_values import FLEET_FIELDS
from luma_constructs.deployment_props import FleetProps
from luma_constructs.fleet_purchase import Purchase
from tests.support.cdk import flags

CDKS_OWN = {
    **flags(),
    "aws:cdk:enable-path-metadata": True,
    "availability-zones:account=123456789012:region=us-east-1": ["us-east-1a"],
}


def refused(**context) -> str:
    with pytest.raises(ContextError) as caught:
        AppContext.read(context)
    return str(caught.value)


def test_without_parameters_everything_has_a_default():
    assert AppContext.read(CDKS_OWN) == AppContext()
    assert AppContext().fleets == DEFAULT_FLEETS


def test_every_key_is_an_attribute_and_the_other_way_round():
    assert [key.name for key in KEYS] == [field.name for field in dataclasses.fields(AppContext)]


def test_the_short_form_of_fleets():
    read = AppContext.read({"fleets": "l4:cuda-sm89, h100:cuda-sm90x8:2:70%,cpu:cpu:3:on-demand"})
    assert read.fleets == (
        FleetProps(name="l4", target="cuda-sm89"),
        FleetProps(
            name="h100",
            target="cuda-sm90x8",
            max_capacity=2,
            purchase=Purchase.mixed(on_demand_percent=30),
        ),
        FleetProps(name="cpu", target="cpu", max_capacity=3, purchase=Purchase.on_demand()),
    )


def test_json_says_the_same_as_the_short_form():
    listed = [
        {"name": "l4", "target": "cuda-sm89", "max": 2, "purchase": "spot"},
        {"name": "p5", "target": "cuda-sm90x8", "purchase": "cr-0123456789abcdef0"},
    ]
    short = AppContext.read({"fleets": "l4:cuda-sm89:2,p5:cuda-sm90x8:8:cr-0123456789abcdef0"})
    assert AppContext.read({"fleets": listed}) == short
    assert AppContext.read({"fleets": json.dumps(listed)}) == short


def test_only_json_names_instance_types():
    fleet = {"name": "l4", "target": "cuda-sm89", "instance_types": ["g6.xlarge"]}
    types = AppContext.read({"fleets": [fleet]}).fleets[0].instance_types
    assert types is not None
    assert [one.to_string() for one in types] == ["g6.xlarge"]
    assert set(fleet) <= set(FLEET_FIELDS)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("budget", "500.5/month,40/h", ["500.5/month", "40/h"]),
        ("heartbeat", "5", 5),
        ("zones", "3", 3),
        ("failover", "eu-west-1,us-gov-west-1", ["eu-west-1", "us-gov-west-1"]),
    ],
)
def test_text_of_the_command_line_and_json_of_the_file_mean_the_same(key, text, value):
    assert AppContext.read({key: text}) == AppContext.read({key: value})


def test_subnets_by_zone():
    text = "us-east-1a=subnet-0a000000,us-east-1b=subnet-0b000000"
    subnets = {"us-east-1a": "subnet-0a000000", "us-east-1b": "subnet-0b000000"}
    read = AppContext.read({"vpc": "vpc-01234567", "subnets": text})
    assert read == AppContext.read({"vpc": "vpc-01234567", "subnets": subnets})
    assert read.subnets == subnets


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("stack", "my_stack", "expected letters, digits and '-'"),
        ("stack", 7, "7"),
        ("fleets", "", "expected NAME:TARGET[:MAX[:PURCHASE]]"),
        ("fleets", "l4", "'l4' is not NAME:TARGET"),
        ("fleets", "l4:", "'l4:' is not NAME:TARGET"),
        ("fleets", "l4:cuda-sm89:8:spot:x", "is not NAME:TARGET"),
        ("fleets", "l4:cuda-sm89:many", "max 'many' is no whole number from 1 to 1000"),
        ("fleets", "l4:cuda-sm89:0", "max '0' is no whole number"),
        ("fleets", "l4:cuda-sm89:8:cheap", "purchase 'cheap' is neither spot"),
        ("fleets", "l4:cuda-sm89:8:0%", "purchase '0%' is neither spot"),
        ("fleets", "l4:cuda-sm89:8:100%", "purchase '100%' is neither spot"),
        ("fleets", "a:cpu,a:cpu", "the name 'a' stands twice"),
        ("fleets", "[", "Expecting value"),
        ("fleets", [{"name": "a"}], "a fleet needs a name and a target"),
        ("fleets", [{"name": "a", "target": "cpu", "maximum": 1}], "a fleet has no 'maximum'"),
        ("fleets", [{"name": "a", "target": "cpu", "instance_types": "x"}], "is no list of names"),
        ("fleets", [{"name": [], "target": "cpu"}] * 2, "a fleet needs a name and a target"),
        ("fleets", "[" * 100_000, "too deep"),
        ("fleets", [7], "7 is no fleet"),
        ("fleets", True, "True"),
        ("level", "L3", "expected none, L1 or L2"),
        ("level", "l1", "expected none, L1 or L2"),
        ("budget", "500", "'500' has no unit"),
        ("budget", 500, "expected USD above zero with a unit"),
        ("budget", "0/h", "'0/h' is zero or stands twice"),
        ("budget", "1/h,2/h", "'2/h' is zero or stands twice"),
        ("budget", "-5/h", "expected USD above zero with a unit"),
        ("budget", "500 USD", "expected USD above zero with a unit"),
        ("budget", "nan/h", "expected USD above zero with a unit"),
        ("budget", True, "expected USD above zero with a unit"),
        ("failover", "eu-west", "'eu-west' is no region"),
        ("failover", "eu-west-1,eu-west-1", "a region stands twice"),
        ("failover", "", "expected regions"),
        ("heartbeat", "1", "expected whole seconds from 2 to 3600"),
        ("heartbeat", "1.5", "expected whole seconds"),
        ("patience", "1", "expected whole seconds from 2 to 3600"),
        ("customer", "Acme", "expected 1 to 63"),
        ("image", "luma.iso", "expected the path of an image"),
        ("heartbeat", "90s", "expected whole seconds"),
        ("network", "none", "expected nat or public"),
        ("zones", "0", "expected a whole number from 1 to 6"),
        ("zones", "7", "expected a whole number from 1 to 6"),
        ("bucket", "My_Bucket", "expected a bucket's name"),
        ("table", "a table", "expected a table's name"),
        ("key", "alias/mine", "expected a KMS key's ARN"),
        ("email", "me", "expected an address"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(key, value, said):
    message = refused(**{key: value})
    assert message.startswith(f"context {key}: ")
    assert said in message
    assert message.count("\n") == 0
    assert message.count("; ") >= 2  # the value, what is allowed, the remedy


def test_vpc_and_subnets_go_together():
    assert "subnets: not given, though vpc is" in refused(vpc="vpc-01234567")
    assert "vpc: not given, though subnets is" in refused(subnets="us-east-1a=subnet-01234567")
    said = refused(vpc="vpc-01234567", subnets="us-east-1a=subnet-01234567", zones=3)
    assert said.startswith("context zones: 3 beside vpc")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("vpc-0", "a VPC's id"),
        ("subnet-01234567", "'subnet-01234567' is not ZONE=SUBNET"),
        ("a=subnet-01234567,a=subnet-01234567", "zone a stands twice"),
    ],
)
def test_a_network_that_cannot_be_is_refused(value, said):
    key = "vpc" if value.startswith("vpc") else "subnets"
    assert said in refused(**{key: value})


def test_an_enclave_needs_a_customer_and_an_image():
    said = refused(level="L2").splitlines()
    assert [line.split(":")[0] for line in said] == ["context customer", "context image"]
    assert "without level=L2" in refused(image="build/luma.eif")
    read = AppContext.read({"level": "L2", "customer": "acme", "image": "build/luma.eif"})
    assert (read.level, read.customer, read.image) == ("L2", "acme", "build/luma.eif")


def test_all_mistakes_are_named_at_once():
    message = refused(budget="x", zones="9", level="L9")
    assert [line.split(":")[0] for line in message.splitlines()] == [
        "context level",
        "context budget",
        "context zones",
    ]


@pytest.mark.parametrize(
    ("wrong", "right"), [("flets", "fleets"), ("fleet", "fleets"), ("zone", "zones")]
)
def test_a_misspelt_key_is_no_silent_default(wrong, right):
    message = refused(**{wrong: "1"})
    assert f"context {wrong}: there is no such parameter" in message
    assert message.endswith(f"write {right}")


def test_a_value_that_is_long_is_shown_short():
    assert len(refused(fleets="x" * 100_000)) < 100_700


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(key=st.sampled_from([key.name for key in KEYS]), value=json_values)
def test_whatever_is_given_is_read_or_refused(key, value):
    with contextlib.suppress(ContextError):
        AppContext.read({key: value})
