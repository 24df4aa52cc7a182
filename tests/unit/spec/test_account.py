"""Names of a job in an account: equal on both sides, and read strictly."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luma_constructs import _names, _run_items
from runtime.spec import account
from runtime.spec.account import AccountConfig, Fleet, Work
from runtime.spec.errors import SpecError

WORK = {
    "schema": "luma/work/1",
    "kind": "island",
    "run": "tiny-1",
    "slot": 3,
    "attempt": 0,
    "token": "secret-token",
    "heartbeat_s": 90,
}
CONFIG = {
    "schema": "luma/account/1",
    "stack": "Luma",
    "region": "us-east-1",
    "bucket": "b",
    "table": "t",
    "jobs_machine": "arn:jobs",
    "failover_machine": "arn:failover",
    "topic": None,
    "coordinator_fleet": "coordinator",
    "compiler_queue": None,
    "compiler_fleet": None,
}
FLEET = {
    "fleet": "h100",
    "target": "cuda-sm90",
    "chips": 8,
    "queue": "https://queue",
    "asg": "group",
    "purchase": "spot",
    "instance_types": ["p5.48xlarge"],
    "order": 0,
}


def test_constructs_and_runtime_have_the_same_names():
    for here, there in (
        (account.ACCOUNT_SCHEMA, _names.ACCOUNT_SCHEMA),
        (account.WORK_SCHEMA, _names.WORK_SCHEMA),
        (account.COORDINATOR_FLEET, _names.COORDINATOR_FLEET),
        (account.COMPILER_FLEET, _names.COMPILER_FLEET),
        (account.EXPIRES, _names.EXPIRES_AT),
        (account.DRAIN_HOOK, _names.DRAIN_HOOK),
        (account.DEPLOYMENT_TAG, _names.DEPLOYMENT_TAG),
        (account.FLEET_TAG, _names.FLEET_TAG),
        (account.METRIC_NAMESPACE, _names.METRIC_NAMESPACE),
        (account.STACK_NAME, _names.DEPLOYMENT_NAME),
        (account.parameters_path("S"), _names.parameter_root("S")),
        (account.config_parameter("S"), _names.config_parameter("S")),
        (account.fleet_parameter("S", "f"), _names.fleet_parameter("S", "f")),
        (account.MAX_SLOT, _run_items.MOST_SLOTS - 1),
        ({"S": account.RUN_ITEM}, _run_items.RUN),
        ({"S": account.NODE_ITEM}, _run_items.NODE),
        ({"S": account.EVENT_ITEM}, _run_items.EVENT),
        ({"S": account.FLEET_ITEM}, _run_items.FLEET),
    ):
        assert here == there
    assert account.run_prefix("r").startswith(_names.RUNS_PREFIX)
    assert account.key_parameter("S", "r").startswith(_names.run_keys_root("S"))
    slots = [account.slot_item(n) for n in range(_run_items.MOST_SLOTS)]
    assert tuple(slots) == _run_items.PLACES[2:]


def test_sort_keys_order_as_their_numbers():
    for name in (account.commit_item, account.epoch_item, account.note_item):
        keys = [name(n) for n in (0, 9, 10, 123_456_789)]
        assert keys == sorted(keys)


@given(
    kind=st.sampled_from(["compile", "coordinate", "island", "export"]),
    run=st.from_regex(account.RUN_NAME, fullmatch=True),
    slot=st.integers(0, account.MAX_SLOT),
    attempt=st.integers(0, 1 << 31),
    token=st.text(min_size=1),
    heartbeat_s=st.floats(0.1, 86_400),
)
def test_work_comes_back_as_it_was_given(**fields):
    work = Work(**fields)
    assert Work.from_json(work.to_json()) == work


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema": "luma/work/2"}, "schema"),
        ({"kind": "train"}, "kind"),
        ({"run": "Tiny"}, "run"),
        ({"run": "../x"}, "run"),
        ({"slot": 98}, "slot"),
        ({"slot": True}, "slot"),
        ({"slot": "1"}, "slot"),
        ({"attempt": -1}, "attempt"),
        ({"token": ""}, "token"),
        ({"token": 7}, "token"),
        ({"heartbeat_s": 0}, "heartbeat_s"),
        ({"heartbeat_s": True}, "heartbeat_s"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_wrong_work_message_is_refused_by_its_field(change, named):
    with pytest.raises(SpecError) as refused:
        Work.from_json(json.dumps(WORK | change))
    assert named in refused.value.message
    assert "secret-token" not in refused.value.diagnostics()


@pytest.mark.parametrize("missing", sorted(WORK))
def test_a_work_message_without_a_field_is_refused(missing):
    rest = {name: value for name, value in WORK.items() if name != missing}
    with pytest.raises(SpecError, match=missing):
        Work.from_json(json.dumps(rest))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000])
def test_what_is_no_object_is_refused(text):
    for read in (Work.from_json, AccountConfig.from_json, Fleet.from_json):
        with pytest.raises(SpecError, match="JSON"):
            read(text)


def test_parameters_are_read_strictly():
    config = AccountConfig.from_json(json.dumps(CONFIG))
    assert (config.stack, config.topic, config.compiler_queue) == ("Luma", None, None)
    fleet = Fleet.from_json(json.dumps(FLEET | {"usd_per_hour": 30, "max": 4}))
    assert (fleet.chips, fleet.usd_per_hour, fleet.most) == (8, 30.0, 4)
    assert Fleet.from_json(json.dumps(FLEET | {"asg": None})).asg is None
    for read, good in ((AccountConfig.from_json, CONFIG), (Fleet.from_json, FLEET)):
        with pytest.raises(SpecError, match="newer"):
            read(json.dumps(good | {"newer": 1}))
    with pytest.raises(SpecError, match="purchase"):
        Fleet.from_json(json.dumps(FLEET | {"purchase": "free"}))
